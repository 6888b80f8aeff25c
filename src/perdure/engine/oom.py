"""The kernel's count of processes that it killed because memory ran out; of Linux, elsewhere it never rises."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


class OomKills:
    """Asked when a cell was killed, so that a call costs nothing."""

    def __init__(self, source: Path = Path("/proc/vmstat")) -> None:
        self._source = source
        self._seen = self._count()

    def rose(self) -> bool:
        """Whether the kernel killed a process since the last time this was asked."""
        before, self._seen = self._seen, self._count()
        return self._seen > before

    def _count(self) -> int:
        with suppress(OSError, ValueError):
            for line in self._source.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0
