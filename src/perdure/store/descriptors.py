"""File descriptors that a forked process must not keep.

A lock (`flock`, or the session lock behind a socket) lives as long as any copy of its descriptor. Stage code forks
(multiprocessing, ProcessPoolExecutor), and a forked process may outlive us. Each fork therefore drops its copies of the
descriptors registered here. Programs started with exec never have them: they are close-on-exec.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from perdure.store.private import open_private


class Connected(Protocol):
    """Anything with a socket."""

    def fileno(self) -> int:
        """Return the descriptor; -1 when it is closed."""
        ...


_files: set[int] = set()
_connections: WeakSet[Connected] = WeakSet()
_changing = threading.RLock()  # a fork waits until a file that is being opened is registered


def open_unshared(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file that no fork shares, created with this mode; close it with `close_unshared`."""
    with _changing:
        fd = open_private(path, flags, mode)
        _files.add(fd)
    return fd


def close_unshared(fd: int) -> None:
    """Unlock, then close: the lock ends even if a fork made by foreign code has a copy."""
    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)
    with _changing:
        _files.discard(fd)
        os.close(fd)


def unshare(connection: Connected) -> None:
    """Register a connection: forks lose its socket."""
    _connections.add(connection)


def _drop() -> None:
    """In the forked process: put /dev/null in the place of each descriptor.

    Their owners still know the numbers; a number that was free could be given to another file, and closed by them.
    """
    global _changing  # noqa: PLW0603
    _changing = threading.RLock()
    numbers = [*_files, *(connection.fileno() for connection in list(_connections))]
    _files.clear()
    _connections.clear()
    if not numbers:
        return
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in numbers:
            if number >= 0:
                os.dup2(nothing, number, inheritable=False)
        os.close(nothing)


os.register_at_fork(
    before=lambda: _changing.acquire(),
    after_in_parent=lambda: _changing.release(),
    after_in_child=_drop,
)
