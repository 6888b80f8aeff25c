"""An event loop without time or input: sleeping moves the clock, and the order of everything follows from the seed."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any


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


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs the real engine in virtual time."""

    def __init__(self) -> None:
        selector = _NoInput()
        self.now_s = 1_000.0
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.now_s
