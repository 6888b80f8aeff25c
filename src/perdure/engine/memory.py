"""Memory that large documents took goes back to the system: the allocator keeps it otherwise, for ever.

Where there is no glibc or no /proc nothing of this happens, and nothing else changes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import Any

#: Outputs from this size on are worth it.
LARGE_BYTES = 1 << 20


#: What a process may grow by before it is looked at what can be given back.
GROWN_BYTES = 32 << 20
#: glibc gives each thread an arena of its own otherwise, and each keeps what it ever had.
ARENAS = 2
_M_ARENA_MAX = -8
#: How often at most: to collect and to trim hold up everything else in the process, the larger it is the longer.
EVERY_S = 5.0
_kept, _after_s = 0, 0.0


def few_arenas() -> None:
    """Threads share their memory. For processes that we start, before they have threads."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


def give_back_if_grown() -> None:
    """Give back what jobs left, where that is worth it and was not done just now; a look takes microseconds."""
    global _kept, _after_s  # noqa: PLW0603
    now = _resident()
    if now > _kept + GROWN_BYTES:
        if monotonic() < _after_s:
            return
        gc.collect()
        give_back()
        now, _after_s = _resident(), monotonic() + EVERY_S
    _kept = now


def _resident() -> int:
    """What this process has of memory; 0 where nobody tells."""
    try:
        return int(os.pread(_statm(os.getpid()), 100, 0).split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


@cache
def _statm(_pid: int) -> int:
    """Opened once a process: that takes longer than to read it, and a fork would read its parent's."""
    return os.open("/proc/self/statm", os.O_RDONLY)


@cache
def _trim() -> Any:
    """glibc's way to do it; nothing elsewhere."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


def give_back() -> None:
    """Takes some milliseconds."""
    if (trim := _trim()) is not None:
        trim(0)
