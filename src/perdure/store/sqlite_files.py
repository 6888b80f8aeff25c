"""The database file and its write-ahead log (`-wal`): noticed when they are deleted or replaced while they are open.

SQLite goes on with the open files. Whatever it commits from then on is in files without a name, and is lost when the
last process that has them open ends.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import apsw

from perdure.errors import StoreError

AGAIN = "stop every process that uses this store, then start them again"
_WRITING = re.compile(r"(?<!\d)\d+: POSIX +ADVISORY +WRITE (\d+) [0-9a-f]+:[0-9a-f]+:(\d+) ")
_LOCKED = re.compile(r"POSIX +ADVISORY +\w+ \d+ [0-9a-f]+:[0-9a-f]+:(\d+) ")


class OpenFiles:
    """The files of a database as they were when this was made, which must be after they were opened."""

    def __init__(self, path: Path) -> None:
        self.path, self.wal = path, log_of(path)
        self._names = (str(path), str(self.wal))  # a path object would double the time of a check
        self._opened = tuple(map(_identity, self._names))
        self.lost: StoreError | None = None

    def check(self) -> None:
        """Raise StoreError (`database_replaced`, `wal_deleted`) if a file is not the one that is open, from then on."""
        if self.lost is None:
            database, log = self._names
            found = (_identity(database), _identity(log))
            if found == self._opened:
                return
            self.lost = self._error(log if found[0] == self._opened[0] else database)
        raise self.lost

    def rescue(self, connection: apsw.Connection) -> None:
        """Copy what the deleted log has into the database file, unless others may have begun another log."""
        if self.lost is not None and self.lost.code == "wal_deleted" and not self.wal.exists():
            connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def _error(self, changed: str) -> StoreError:
        if changed == self._names[0]:
            return StoreError(
                f"the database file {self.path} was deleted or replaced while it was open; {AGAIN}",
                code="database_replaced",
            )
        return StoreError(
            f"the write-ahead log {self.wal} was deleted while it was open; {AGAIN}", code="wal_deleted"
        )


def refuse_half_deleted(path: Path) -> None:
    """StoreError if other processes have this database open and its log was deleted: a new log would destroy it."""
    index = path.with_name(path.name + "-shm")
    if log_of(path).exists():
        return
    try:
        inode, locks = index.stat().st_ino, Path("/proc/locks").read_text()
    except OSError:
        return  # the first to open it, or the kernel cannot be asked
    if any(int(found) == inode for found in _LOCKED.findall(locks)):
        raise StoreError(
            f"the write-ahead log {log_of(path)} was deleted while other processes have the database open; {AGAIN}",
            code="wal_deleted",
        )


def writer_of(path: Path) -> str:
    """Name another process that has SQLite's own lock for writing; empty when unknown."""
    files = [path, path.with_name(path.name + "-shm")]
    try:
        inodes, locks = {file.stat().st_ino for file in files}, Path("/proc/locks").read_text()
    except OSError:
        return ""
    found = (int(pid) for pid, inode in _WRITING.findall(locks) if int(inode) in inodes)
    return next((f"process {pid}" for pid in found if pid not in (0, os.getpid())), "")


def log_of(path: Path) -> Path:
    """Return the name of the write-ahead log of a database."""
    return path.with_name(path.name + "-wal")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
