"""The title of a process, as `ps` and `top` show it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

#: Places of `arg_start` and `arg_end` behind the name of the process in `/proc/self/stat`, see proc(5).
ARG_START, ARG_END = 45, 46


def set_title(title: str) -> None:
    """Show `title` instead of the command line; nothing happens where the kernel does not say where that is."""
    with suppress(OSError, IndexError, ValueError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[ARG_START]), int(fields[ARG_END])
        if 0 < start < end:
            room = end - start
            ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
