"""`perdure serve`: the HTTP server, with workers beside it that live and die with it.

A worker is a process of its own (a supervisor with its child): a stage that crashes or holds the interpreter cannot
touch the server. One that ends unasked is started again, ever more slowly.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI

from perdure.api.build import build
from perdure.api.caller import is_loopback
from perdure.api.connections import Guarded, log_seldom, raise_descriptors
from perdure.core.frozen import frozen
from perdure.errors import SettingInvalid
from perdure.service import AsyncPerdure
from perdure.watch.log import configure, log_events

HEAD_BYTES_MAX = 65_536
BACKLOG = 128  # connections that are accepted before the first is looked at: a burst needs descriptors, too
AGAIN_S = (1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_S = 60.0  # of life, after which a worker's end is forgotten
STOP_S = 30.0
BEHIND = 5  # levels of niceness that a worker stands behind its server


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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping: asyncio.Event | None = getattr(self.config.app.state, "stopping", None)  # type: ignore[union-attr]
        if stopping is not None:
            stopping.set()
        await super().shutdown(sockets)


def configured(app: FastAPI, **more: Any) -> uvicorn.Config:
    """How this application is served, wherever it listens: within the limits of its guard."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        http=Guarded, ws="none", lifespan="on", backlog=BACKLOG, timeout_keep_alive=app.state.guard.idle_s, **more,
    )  # fmt: skip
    log_seldom()
    return config


async def serve(service: AsyncPerdure, serving: Serving) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit status."""
    check(serving)
    configure(service.settings.log_level)
    log_events(service.events)
    raise_descriptors()
    app = build(service, open_=serving.open_)
    server = Server(configured(app, host=serving.host, port=serving.port, timeout_graceful_shutdown=10))
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # which it raises again once it has stopped: the workers come first
        signal.signal(number, server.handle_exit)
    workers = [asyncio.create_task(_worker(serving, n)) for n in range(serving.workers)]
    try:
        await server.serve()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return 0 if server.started else 1


async def _worker(serving: Serving, number: int) -> None:
    """Keep a worker running until this is cancelled; then it is stopped in good order."""
    options = json.dumps({"store": serving.store, "with_parent": True})
    environment = os.environ | ({"PERDURE_STORE": serving.store} if serving.store else {})
    ends, loop = 0, asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "perdure.cli.supervise", serving.target, options, stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True, env=environment,
        )  # fmt: skip
        with suppress(OSError):  # what is asked for is answered before what can wait
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + BEHIND)
        try:
            status = await process.wait()
        except asyncio.CancelledError:
            await _stop(process)
            raise
        ends = 0 if loop.time() - began_s > STEADY_S else ends + 1
        wait_s = AGAIN_S[min(ends, len(AGAIN_S)) - 1] if ends else 0.0
        print(
            f"perdure: worker {number + 1} ended with status {status}; again in {wait_s:g} s", file=sys.stderr
        )
        await asyncio.sleep(wait_s)


async def _stop(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
