"""Directories for temporary files, each locked by the process that made it: what a killed one left, others clear out.

A lock goes with its process, and is seen by whoever shares the directory, in another container too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perdure.store.descriptors import close_unshared, open_unshared
from perdure.store.lock_holder import lock_within
from perdure.store.private import file_mode, make_directory

PREFIX = "perdure-room-"

_locks: dict[Path, int] = {}  # descriptors that hold the locks of our rooms


def new_room(within: Path | None = None) -> Path:
    """A directory of our own, by default among the system's temporary ones; whoever asked for it removes it."""
    if within is not None:
        make_directory(within, file_mode())
    while True:
        room = Path(tempfile.mkdtemp(prefix=PREFIX, dir=within))
        try:
            lock = open_unshared(room, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # before it was locked somebody took it for left behind
        with suppress(OSError):  # where nothing can be locked, nothing is cleared out either
            lock_within(lock, fcntl.LOCK_EX, room)
        if room.exists():
            _locks[room] = lock
            return room
        close_unshared(lock)


def remove(room: Path) -> None:
    """The room and all that is in it."""
    shutil.rmtree(room, ignore_errors=True)
    if (lock := _locks.pop(room, None)) is not None:
        close_unshared(lock)


@contextmanager
def open_room() -> Iterator[Path]:
    """A room that is removed at the end."""
    room = new_room()
    try:
        yield room
    finally:
        remove(room)


def clear_out(within: Path | None = None) -> int:
    """Remove the rooms of processes that are gone; how many there were."""
    return sum(map(_cleared, (within or Path(tempfile.gettempdir())).glob(f"{PREFIX}*")))


def _cleared(room: Path) -> bool:
    try:
        lock = open_unshared(room, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False  # no room, or somebody else's
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(room)
    except OSError:
        return False  # somebody is in it, or was quicker
    finally:
        close_unshared(lock)
    return True
