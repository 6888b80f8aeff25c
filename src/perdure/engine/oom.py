"""The kernel's count of processes that it killed because memory ran out; of Linux, elsewhere it never rises."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: The kernel may kill several cells at once, and each asks when it is reaped.
TOGETHER_S = 30.0


class OomKills:
    """Asked when a cell was killed, so that a call costs nothing."""

    def __init__(
        self, source: Path = Path("/proc/vmstat"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._clock = source, clock
        self._seen = self._count()
        self._left, self._noticed_s = 0, 0.0

    def rose(self) -> bool:
        """Whether the kernel killed a process since the last time this was asked; each kill that is noticed answers
        for one cell, within `TOGETHER_S`."""
        before, self._seen = self._seen, self._count()
        now_s = self._clock()
        if now_s - self._noticed_s > TOGETHER_S:
            self._left = 0
        if self._seen > before:
            self._left, self._noticed_s = self._left + self._seen - before, now_s
        self._left -= (excused := self._left > 0)
        return excused

    def _count(self) -> int:
        with suppress(OSError, ValueError):
            for line in self._source.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0
