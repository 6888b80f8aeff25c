"""Memory that large documents took goes back to the system: the allocator keeps it otherwise, for ever."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

#: Outputs from this size on are worth it.
LARGE_BYTES = 1 << 20


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
