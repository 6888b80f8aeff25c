"""The keeper in a thread, for apps that run embedded: its own event loop and its own connections.

Weaker than a supervisor process: no process ends one whose event loop stands still. After PERDURE_LOOP_STALL_S it
is logged, and if other workers live its leases are not renewed any more: they take its documents, and its late writes
are refused. Stage code that holds the interpreter holds this thread, too: then the leases run out, and nothing is
logged.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from perdure.core.events import Events, WorkerStalled
from perdure.core.stuck import StuckPolicy
from perdure.engine.keeper import Keeper
from perdure.engine.loop_watch import own_stack
from perdure.engine.slate import Slate
from perdure.engine.sweeper import Retention, Sweeper
from perdure.store.open import open_store


class KeeperThread:
    """Registers a worker, keeps its leases and watches over the others until it is stopped."""

    def __init__(
        self, url: str, direct_url: str | None, slate: Slate, events: Events, retention: Retention,
        stuck: StuckPolicy, queues: Sequence[str], on_absence: Callable[[], None], stall_s: float,
    ) -> None:  # fmt: skip
        self._url, self._direct_url = url, direct_url
        self._slate, self._events, self._retention = slate, events, retention
        self._stuck, self._queues, self._on_absence, self._stall_s = stuck, queues, on_absence, stall_s
        self._registered: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._live, name="perdure-keeper", daemon=True)

    def start(self) -> Future[int]:
        """The worker's id, once its lock is held."""
        self._thread.start()
        return self._registered

    def stop(self) -> None:
        """Retire the worker; returns when that is done."""
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def _live(self) -> None:
        try:
            asyncio.run(self._keep())
        except BaseException as error:
            if not self._registered.done():
                self._registered.set_exception(error)

    async def _keep(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        store = open_store(self._url, None, self._direct_url)
        await store.open()
        try:
            worker = await store.register("worker", f"{socket.gethostname()}:{os.getpid()}", self._queues)
            self._registered.set_result(worker)
            sweeper = Sweeper(store, self._events, self._retention, self._stuck)

            def stalled(silent_ms: int) -> None:
                self._events.publish(WorkerStalled(worker, silent_ms, (), own_stack()))

            keeper = Keeper(
                store, self._events, worker, self._slate, sweeper, on_absence=self._on_absence,
                stall_ms=int(self._stall_s * 1000), on_stall=stalled,
            )  # fmt: skip
            await keeper.run(self._stopping)
            if not await store.in_hand(worker):
                await store.retire(worker)
        finally:
            await store.close()
