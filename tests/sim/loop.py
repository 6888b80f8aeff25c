"""An event loop without time or input: sleeping moves the clock, and the order of everything follows from the seed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

BEGINS_S = 1_000.0


class Stuck(Exception):
    """Nothing is ready and nothing is due: whatever is waited for can never happen."""


class Running(Protocol):
    """A process, as far as the loop must know it."""

    alive: bool
    frozen_until_s: float


#: The process that a piece of code belongs to; whatever it starts belongs to it too.
running: ContextVar[Running | None] = ContextVar("running", default=None)


class Step:
    """A call that is to be made; does for `asyncio.TimerHandle`, and costs less."""

    __slots__ = ("args", "callback", "context", "dropped", "due_s")

    def __init__(
        self, due_s: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.due_s, self.callback, self.args = due_s, callback, args
        self.context = copy_context() if context is None else context
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.due_s


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs the real engine in virtual time. Code of a killed process never runs again, of a frozen one not yet."""

    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.now_s = BEGINS_S
        self._soon: deque[Step] = deque()
        self._later: list[tuple[float, float, int, Step]] = []  # when, since when it is due, number
        self._buried: list[Step] = []  # kept, so that not even the `finally` of killed code runs
        self._numbers = count()

    def time(self) -> float:
        return self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        step = Step(0.0, callback, args, context)
        self._soon.append(step)
        return step

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_soon(callback, *args, context=context)  # there is one thread

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        when = self.now_s + delay
        step = Step(when, callback, args, context)
        heappush(self._later, (when, when, next(self._numbers), step))
        return step

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        step = Step(when, callback, args, context)
        heappush(self._later, (when, when, next(self._numbers), step))
        return step

    def add_signal_handler(self, *_: Any) -> None:  # type: ignore[override]
        """Signals are blows of the nemesis."""

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        sock.heard(data)

    def _run_once(self) -> None:
        """Make all calls until the loop is stopped."""
        soon = self._soon
        while not self._stopping:
            if not soon:
                self._wait()
            step = soon.popleft()
            if step.dropped:
                continue
            process = step.context.get(running)
            if process is None or (process.alive and process.frozen_until_s <= self.now_s):
                try:
                    step.context.run(step.callback, *step.args)
                except Exception:
                    continue  # tasks keep their errors; nobody waits for other calls
            elif process.alive:
                # once it thaws everything comes in the order in which it was due
                heappush(self._later, (process.frozen_until_s, step.due_s, next(self._numbers), step))
            else:
                self._buried.append(step)

    def _wait(self) -> None:
        """Let the time pass until something is due."""
        later, soon = self._later, self._soon
        while later and later[0][3].dropped:
            heappop(later)
        if not later:
            raise Stuck
        self.now_s = max(self.now_s, later[0][0])
        while later and later[0][0] <= self.now_s:
            soon.append(heappop(later)[3])

    def exhume(self) -> None:
        """At the world's end: let the code of killed processes unwind."""
        self._soon.extend(self._buried)
        self._buried.clear()
