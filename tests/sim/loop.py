"""An event loop without time or input: sleeping moves the clock, and the order of everything follows from the seed."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol


class Stuck(Exception):
    """Nothing is ready and nothing is due: whatever is waited for can never happen."""


class _NoInput(selectors.BaseSelector):
    """Nothing ever arrives; waiting makes the time pass."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert self.loop is not None
        if timeout is None:
            raise Stuck
        self.loop.now_s += max(0.0, timeout)
        return []


class Running(Protocol):
    """A process, as far as the loop must know it."""

    alive: bool
    frozen_until_s: float


#: The process that a piece of code belongs to; whatever it starts belongs to it too.
running: ContextVar[Running | None] = ContextVar("running", default=None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs the real engine in virtual time. Code of a killed process never runs again, of a frozen one not yet."""

    def __init__(self) -> None:
        selector = _NoInput()
        self.now_s = 1_000.0
        self.buried: list[Any] = []  # kept, so that not even the `finally` of killed code runs
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        process = (context or copy_context()).get(running)
        if process is None or (process.alive and process.frozen_until_s <= self.now_s):
            return super().call_soon(callback, *args, context=context)
        if process.alive:
            return self.call_at(process.frozen_until_s, callback, *args, context=context)
        self.buried.append((callback, args, context))
        handle = asyncio.Handle(callback, args, self, context)
        handle.cancel()
        return handle
