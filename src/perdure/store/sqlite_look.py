"""A SQLite store that this user can read and not write: it can be looked at, and every write is refused by name.

SQLite itself reads a database in WAL mode only where it may write beside it, or where the index of the log is there
already. A database whose log is empty is read as a file that nobody changes.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import apsw

from perdure.errors import StoreReadOnly, StoreUnavailable
from perdure.store.sqlite_files import log_of

BESIDE = ("", "locks", "wake", "turn", "clock")  # in the directory beside the database


def only_readable(path: Path) -> bool:
    """Whether the database is there and this user can read it, but cannot write all of the store's files."""
    return path.is_file() and os.access(path, os.R_OK) and _unwritable(path) is not None


def read_only(path: Path) -> StoreReadOnly:
    """The error of a write."""
    place = _unwritable(path)
    why = "" if place in (None, path) else f" ({place} is not writable)"
    return StoreReadOnly(
        f"this user can read {path} and not change it{why}; run the command as the owner of the files, or let this "
        "user write them and their directory"
    )


def _unwritable(path: Path) -> Path | None:
    """The first of the store's files and directories that this user cannot write."""
    directory = path.with_name(path.name + ".d")
    beside = [place for name in BESIDE if os.path.lexists(place := directory / name)]
    return next((place for place in (path, path.parent, *beside) if not os.access(place, os.W_OK)), None)


def look(path: Path) -> apsw.Connection:
    """A connection that only reads. Raises: StoreUnavailable if the log cannot be read."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    address = f"file:{quote(str(path))}?mode=ro"
    try:
        return _checked(apsw.Connection(address, flags=flags))
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        log = log_of(path)
        if log.exists() and log.stat().st_size:
            raise StoreUnavailable(
                f"{path} has changes in its log that this user cannot read; run the command as the owner of the files"
            ) from None
    return _checked(apsw.Connection(f"{address}&immutable=1", flags=flags))


def _checked(connection: apsw.Connection) -> apsw.Connection:
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA schema_version").fetchall()  # opens the log
    return connection
