"""Daemon threads for `def` stages. A thread whose stage hangs is left behind and replaced, never waited for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Threads:
    """Runs plain functions beside the event loop; idle threads are reused."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()
        self._closed = False
        self.started = 0

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Start the function in a thread; cancelling the future abandons the thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def resolve(value: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)

        def work() -> None:
            value: Any = None
            error: BaseException | None = None
            try:
                value = context.run(function)
            except StopIteration as stop:  # a future cannot carry it
                error = RuntimeError(f"stage code raised StopIteration: {stop}")
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(resolve, value, error)
            except RuntimeError:
                return  # the loop is gone, and with it whoever wanted the answer

        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self.started += 1
                threading.Thread(target=self._live, name=f"perdure-stage-{self.started}", daemon=True).start()
        self._work.put(work)
        return future

    def close(self) -> None:
        """Let idle threads go, and the others when their stage ends."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._work.put(None)

    def _live(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                if self._closed:
                    return
                self._idle += 1
