"""The only reader of time. Everything else takes a `Clock`, so tests can turn it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for judging one's own lease."""

    def now_ms(self) -> int | None:
        """Wall time in milliseconds, or None to let the database tell the time."""

    def monotonic_s(self) -> float:
        """Seconds that never jump."""


class SystemClock:
    """The machine's clocks. Leases are judged by the database's time, so `now_ms` is None."""

    def now_ms(self) -> int | None:
        return None

    def monotonic_s(self) -> float:
        return time.monotonic()


def wall_ms() -> int:
    """The machine's wall time in milliseconds."""
    return time.time_ns() // 1_000_000
