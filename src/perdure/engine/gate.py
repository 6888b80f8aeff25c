"""Memory that all cells of a worker may take together. Whoever finds no room waits, and organisations take turns.

A cell counts with its limit (`memory_mb`), whatever it uses, so that no number of cells can take more than there is.
One that may take more than all of it runs alone. No process is ever killed for this bound.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import inf
from pathlib import Path

_Waiting = deque[tuple[int, asyncio.Future[None]]]


class Gate:
    """Lets cells in while there is room for them."""

    def __init__(self, room_bytes: float) -> None:
        self.room_bytes = room_bytes
        self.used: Counter[str] = Counter()  # by organisation
        self._waiting: dict[str, _Waiting] = {}  # by organisation, the one that was let in last at the end

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def enter(self, org: str, size_bytes: int) -> AsyncIterator[None]:
        """Hold this much memory; wait until there is room."""
        size = int(min(size_bytes, self.room_bytes))
        let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(org, deque()).append((size, let_in))
        self._let_in()
        try:
            await let_in
        except asyncio.CancelledError:
            self._gives_up(org, size, let_in)
            raise
        try:
            yield
        finally:
            self._leaves(org, size)

    def _let_in(self) -> None:
        """The next is the organisation that holds least, of equals the one that waits longest. What does not fit is
        waited for: smaller ones that come later must not go before it again and again."""
        while self._waiting:
            org = min(self._waiting, key=lambda each: self.used[each])
            size, let_in = self._waiting[org][0]
            gave_up = let_in.cancelled()
            if self.used.total() + size > self.room_bytes and not gave_up:
                return
            waiting = self._waiting.pop(org)
            waiting.popleft()
            if waiting:
                self._waiting[org] = waiting
            if not gave_up:
                self.used[org] += size
                let_in.set_result(None)

    def _gives_up(self, org: str, size: int, let_in: asyncio.Future[None]) -> None:
        if let_in.cancelled():
            self._let_in()  # others may have waited behind it
        else:
            self._leaves(org, size)

    def _leaves(self, org: str, size: int) -> None:
        self.used[org] -= size
        if not self.used[org]:
            del self.used[org]
        self._let_in()


def memory_bytes() -> float:
    """The memory of this machine, or of the group of processes that we are in; infinite where nobody says."""
    found: list[float] = []
    with suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):
        group = next(
            line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")
        )
        for path in _upwards(Path("/sys/fs/cgroup") / group[4:].lstrip("/")):
            with suppress(OSError, ValueError):
                found.append(int((path / "memory.max").read_text()))
    with suppress(OSError, ValueError):
        found.append(int(Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").read_text()))
    return min(found, default=inf)


def _upwards(path: Path) -> list[Path]:
    top = Path("/sys/fs/cgroup")
    return [each for each in (path, *path.parents) if each == top or top in each.parents]
