"""`perdure serve`: the HTTP server, with workers beside it that live and die with it.

A worker is a process of its own (a supervisor with its child): a stage that crashes or holds the interpreter cannot
touch the server (`workers_beside`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from typing import Any

import uvicorn
from fastapi import FastAPI

from perdure.api.build import build
from perdure.api.caller import is_loopback
from perdure.api.connections import HEAD_BYTES_MAX, Guarded, log_seldom, raise_descriptors
from perdure.api.workers_beside import WorkersBeside
from perdure.core.frozen import frozen
from perdure.engine.child_process import WAIT_S
from perdure.engine.collector import calm_collector
from perdure.engine.loop_watch import alarm
from perdure.engine.memory import few_arenas
from perdure.engine.supervisor import USAGE
from perdure.errors import SettingInvalid, StoreBusy, StoreUnavailable
from perdure.service import AsyncPerdure
from perdure.watch.log import configure, log_events

log = logging.getLogger("perdure.api")
BACKLOG = 128  # connections that are accepted before the first is looked at: a burst needs descriptors, too
REQUESTS_S = 5  # that requests which are under way have when the server stops
TICK_S = 0.1  # between looks for a signal while the store is waited for
THREADS = 64  # that wait for disks; each is started when there is something to do for it


@frozen
class Serving:
    """How to serve."""

    target: str
    store: str | None
    host: str
    port: int
    workers: int
    open_: bool


def check(serving: Serving) -> None:
    """SettingInvalid where an open server could be reached from elsewhere."""
    if serving.open_ and not is_loopback(serving.host):
        raise SettingInvalid(
            f"--open is for trials on this machine, not for {serving.host}; leave it out and make a key with "
            "`perdure key add`", code="open_refused",
        )  # fmt: skip


class Server(uvicorn.Server):
    """Tells streams that it stops, which would never end by themselves, before it waits for what is under way."""

    ready: Callable[[int], None] | None = None  # called with the port once it listens
    stops: Callable[[], None] | None = None  # called when it begins to stop

    def leave(self) -> None:
        """Stop as a signal would have it."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.ready is not None and sockets:
            self.ready(sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state: Any = self.config.app.state  # type: ignore[union-attr]
        if self.stops is not None:
            self.stops()
        if (stopping := getattr(state, "stopping", None)) is not None:
            stopping.set()
            state.uploads.stop()
        await super().shutdown(sockets)


def configured(app: FastAPI, **more: Any) -> uvicorn.Config:
    """How this application is served, wherever it listens: within the limits of its guard."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        http=Guarded, ws="none", lifespan="on", backlog=BACKLOG, timeout_keep_alive=app.state.guard.idle_s, **more,
    )  # fmt: skip
    log_seldom()
    return config


async def serve(service: AsyncPerdure, serving: Serving, ready: Callable[[int], None] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit status. `ready` is called with the port once the server listens.

    A store that cannot be reached is waited for. Raises: SettingInvalid if a setting is wrong or the address cannot be
    listened on, StoreError if the store cannot be used.
    """
    check(serving)
    service.check_settings()  # a worker beside it would refuse them, too
    configure(service.settings.log_level, service.settings.log_format)
    log_events(service.events)
    raise_descriptors()
    sockets = await _bound(serving.host, serving.port)
    app = build(service, open_=serving.open_, started=True)
    server = Server(configured(app, timeout_graceful_shutdown=REQUESTS_S))
    server.ready = ready
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # which it raises again once it has stopped: the workers come first
        signal.signal(number, server.handle_exit)
    if not await _started(service, server):
        return 0
    service.store.must_write()
    calm_collector()
    use_many_threads()
    workers = app.state.workers = WorkersBeside(serving.target, serving.store, serving.workers, server.leave)
    beside = [asyncio.create_task(workers.keep(n)) for n in range(serving.workers)]
    if service.settings.loop_stall_s:
        beside.append(asyncio.create_task(alarm(service.settings.loop_stall_s)))

    def stop_beside() -> None:
        """The workers stop while the last requests are answered, not after them."""
        server.stops = None  # a second time would leave a worker that stops
        for task in beside:
            task.cancel()

    server.stops = stop_beside
    try:
        await server.serve(sockets)
    except OSError as error:
        if server.started:
            raise
        raise _unusable(
            serving.host, serving.port, error
        ) from None  # another one bound it, too, and was first
    finally:
        if server.stops is not None:
            stop_beside()
        await asyncio.gather(*beside, return_exceptions=True)
    return USAGE if workers.refused else 0 if server.started else 1


def use_many_threads() -> None:
    """Have files of several uploads written at a time: Python has six threads for that on two cores, and whoever
    searches or uploads a small file would wait for one behind the disk of others."""
    few_arenas()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "perdure-files"))


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Bind the port, without listening yet. Raises: SettingInvalid."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except OSError as error:
        raise _unusable(host, port, error) from None
    try:
        return [one.dup() for one in found.sockets]
    finally:
        found.close()


def _unusable(host: str, port: int, error: OSError) -> SettingInvalid:
    if error.errno == errno.EADDRINUSE:
        message = (
            f"port {port} of {host} is in use; choose another with --port, or stop the program that uses it"
        )
        return SettingInvalid(message, code="port_taken")
    message = f"cannot listen on port {port} of {host}: {error.strerror}; check --host and --port"
    return SettingInvalid(message, code="address_unusable")


async def _started(service: AsyncPerdure, server: Server) -> bool:
    """Start the app, and wait for its store while that cannot be reached; False if a signal ended the wait."""
    starting = asyncio.create_task(_start(service))
    while not server.should_exit:  # signals set it, and wake nobody
        if (await asyncio.wait({starting}, timeout=TICK_S))[0]:
            starting.result()
            return True
    starting.cancel()
    await asyncio.wait({starting})
    return False


async def _start(service: AsyncPerdure) -> None:
    for pause_s in chain(WAIT_S, repeat(WAIT_S[-1])):
        try:
            return await service.start()
        except (StoreUnavailable, StoreBusy) as error:
            log.warning("waiting for the store: %s", error)
            await asyncio.sleep(pause_s)
