"""Directories for temporary files, each locked by the process that made it: what a killed one left, others clear out.

A lock goes with its process, and is seen by whoever shares the directory, in another container too.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
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
    with suppress(OSError):
        _delete(room)
    if (lock := _locks.pop(room, None)) is not None:
        close_unshared(lock)


async def remove_soon(room: Path) -> None:
    """The same for an event loop: a room with something in it, which may be very much, is removed in a thread."""
    with suppress(OSError):
        room.rmdir()
    if room.exists():
        await asyncio.to_thread(remove, room)
    else:
        remove(room)


def empty(room: Path) -> None:
    """Remove all that is in it, however deep; links are not followed. Raises: OSError."""
    top = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        names = os.listdir(top)
        moved = map(".{}".format, count())
        while (
            names
        ):  # a directory moves up before it is looked into: depth costs neither stack nor descriptors
            name = names.pop()
            if _is_directory(name, top):
                names += _emptied(name, top, moved)
                os.rmdir(name, dir_fd=top)
            else:
                os.unlink(name, dir_fd=top)
    finally:
        os.close(top)


def _emptied(name: str, top: int, moved: Iterator[str]) -> list[str]:
    """Remove the files of a directory, and move its directories to the top; their new names."""
    inner = _opened(name, top)
    found = []
    try:
        for each in os.listdir(inner):
            if not _is_directory(each, inner):
                os.unlink(each, dir_fd=inner)
                continue
            while True:
                fresh = next(moved)
                with suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                    os.mkdir(fresh, dir_fd=top)  # a name that is free; a rename replaces an empty directory
                    os.rename(each, fresh, src_dir_fd=inner, dst_dir_fd=top)
                    break
            found.append(fresh)
    finally:
        os.close(inner)
    return found


def _opened(name: str, within: int) -> int:
    """A descriptor of a directory, of any mode if it is ours. Whoever put it there may replace it by a link meanwhile,
    which is not followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=within)
    except PermissionError:
        place = os.open(name, flags | getattr(os, "O_PATH", 0), dir_fd=within)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)
        return os.open(".", flags, dir_fd=place)
    finally:
        os.close(place)


def _is_directory(name: str, within: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode)


def _delete(room: Path) -> None:
    empty(room)
    room.rmdir()


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
        _delete(room)
    except OSError:
        return False  # somebody is in it, or was quicker
    finally:
        close_unshared(lock)
    return True
