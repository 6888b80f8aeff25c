"""Awaited attempts that hang are cut off at their deadline, as `asyncio.timeout` would, at a small part of its cost.

All attempts of an event loop share one timer, for the first deadline that is known. It is not moved when an attempt
ends: when it fires it cuts off what is due and is set again for what still runs. So most attempts touch no timer.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable
from contextvars import Context
from typing import TypeVar

T = TypeVar("T")


class Attempt:
    """An awaited attempt that must be over by `due_s` of its loop's time."""

    __slots__ = ("cancelling", "cut", "due_s", "task")

    def __init__(self, task: asyncio.Task[object], due_s: float) -> None:
        self.task, self.due_s = task, due_s
        self.cancelling = task.cancelling()
        self.cut = False

    def withdraw(self) -> bool:
        """Take our cancellation of the task back; whether there was one, and no other."""
        was_cut, self.cut = self.cut, False
        return was_cut and self.task.uncancel() <= self.cancelling


class Watch:
    """The attempts of one event loop, and the timer for the first deadline of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.attempts: set[Attempt] = set()
        self.next_s = math.inf  # when the timer fires
        self.timer: asyncio.TimerHandle | None = None
        self.context = Context()  # that of an attempt would be kept alive until the timer fires

    def set(self, due_s: float) -> None:
        """Let the timer fire then, and not before."""
        if self.timer is not None:
            self.timer.cancel()
        self.next_s = due_s
        self.timer = self.loop.call_at(due_s, self._fire, context=self.context)

    def _fire(self) -> None:
        """Cut off what is due."""
        due_s = max(self.next_s, self.loop.time())
        self.next_s, self.timer = math.inf, None
        for attempt in list(self.attempts):
            if not attempt.cut and attempt.due_s <= due_s:
                attempt.cut = attempt.task.cancel()
        left_s = min((one.due_s for one in self.attempts if not one.cut), default=math.inf)
        if left_s < math.inf:
            self.set(left_s)


class _Watches(threading.local):
    """The watch of this thread: it runs one event loop at a time."""

    watch: Watch | None = None


_watches = _Watches()


async def cut_off(attempt: Awaitable[T], after_s: float) -> T:
    """Await it. Raises: TimeoutError if it is not over after `after_s`."""
    loop, watch = asyncio.get_running_loop(), _watches.watch
    if watch is None or watch.loop is not loop:
        watch = _watches.watch = Watch(loop)
    if (task := asyncio.current_task(loop)) is None:
        raise RuntimeError("only a task can be cut off")
    running = Attempt(task, loop.time() + after_s)
    watch.attempts.add(running)
    if running.due_s < watch.next_s:
        watch.set(running.due_s)
    try:
        return await attempt
    except asyncio.CancelledError as error:
        if running.withdraw():
            raise TimeoutError from error
        raise
    finally:
        watch.attempts.discard(running)
        if running.cut:  # too late: it ended in another way
            running.withdraw()
