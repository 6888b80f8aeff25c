"""The time of a store on SQLite, which has no clock of its own: the machine's wall clock, made steady.

The processes of one store share a mark in a file: the highest time that any of them had, and when by the machine's
monotonic clock. So they agree about the time after the wall clock was set back, also with those that start later.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from perdure.core.clock import wall_ms
from perdure.store.descriptors import close_unshared, open_unshared

APART_MS = 50.0  # by which the times of two processes may differ
STALE_NS = 1_000_000_000  # the age at which a mark is renewed, because the speed may change
_MARK = struct.Struct("<dqI")
_SUM = struct.Struct("<I")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Noted(NamedTuple):
    """A time of the store, and when that was by the monotonic clock."""

    ms: float
    ns: int


class Mark:
    """The time that the processes of one store share, in the file at `path`."""

    def __init__(self, path: Path, boot: str | None = None, mode: int = 0o600) -> None:
        self._fd = open_unshared(path, os.O_RDWR | os.O_CREAT, mode)
        if boot is None:
            boot = _BOOT.read_text() if _BOOT.exists() else ""
        self._boot = zlib.crc32(boot.encode())

    def close(self) -> None:
        close_unshared(self._fd)

    def read(self, now_ns: int) -> Noted | None:
        """The mark; None if there is none, or two processes are writing it. The monotonic clock of another boot says
        nothing: such a mark is taken to be of this moment."""
        found = os.pread(self._fd, _MARK.size + _SUM.size, 0)
        body, sum_ = found[: _MARK.size], found[_MARK.size :]
        if len(sum_) != _SUM.size or _SUM.unpack(sum_)[0] != zlib.crc32(body):
            return None
        ms, ns, boot = _MARK.unpack(body)
        return Noted(ms, ns if boot == self._boot and ns <= now_ns else now_ns)

    def write(self, noted: Noted) -> None:
        body = _MARK.pack(*noted, self._boot)
        with suppress(OSError):  # a full disk does not stop the time
            os.pwrite(self._fd, body + _SUM.pack(zlib.crc32(body)), 0)


class SteadyWall:
    """Wall time that never goes back. A clock set ahead is followed at once.

    After the clock was set back, the time goes on at nine tenths of the speed until the clock has caught up, so that a
    delay of a second lasts about a second; at half the speed while the time is more than `NEAR_MS` ahead. So a delay
    lasts at most twice as long, however wrong the clock was.
    """

    SPEED = 0.9
    NEAR_MS = 900_000
    FAR_SPEED = 0.5

    def __init__(
        self,
        wall_ms: Callable[[], int] = wall_ms,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        mark: Mark | None = None,
    ) -> None:
        self._wall_ms, self._monotonic_ns = wall_ms, monotonic_ns
        self._mark = mark
        self._turn = threading.Lock()
        self._last = Noted(0.0, monotonic_ns())

    def now_ms(self) -> int:
        with self._turn:
            wall_ms, now_ns = self._wall_ms(), self._monotonic_ns()
            shared = None if self._mark is None else self._mark.read(now_ns)
            shared_ms = 0.0 if shared is None else self._slow_ms(shared, wall_ms, now_ns)
            self._last = Noted(max(self._slow_ms(self._last, wall_ms, now_ns), shared_ms, wall_ms), now_ns)
            if self._mark is not None and (
                shared is None or self._last.ms - shared_ms > APART_MS or now_ns - shared.ns > STALE_NS
            ):
                self._mark.write(self._last)
            return int(self._last.ms)

    def _slow_ms(self, noted: Noted, wall_ms: int, now_ns: int) -> float:
        """What the time is now, if the wall clock has been behind since it was noted."""
        passed_ms = (now_ns - noted.ns) / 1e6
        ahead_ms = noted.ms + passed_ms - wall_ms
        return noted.ms + passed_ms * (self.SPEED if ahead_ms <= self.NEAR_MS else self.FAR_SPEED)
