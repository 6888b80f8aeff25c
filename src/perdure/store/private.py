"""Files and directories that only their owner can use, or with `PERDURE_FILE_MODE=0660` also the group.

Another user who may open a lock file, if only to read it, can lock it and stop every write. The umask plays no part:
it could neither give the group its rights nor be trusted to take those of others.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path


def file_mode() -> int:
    """Return the mode of new files, as set."""
    from perdure.settings import current  # heavy, and a pipeline alone does not need it

    return int(current().file_mode, 8)


def directory_mode(mode: int) -> int:
    """Return the mode of directories of such files: those who may read may enter."""
    return mode | (mode & 0o444) >> 2


def open_private(path: str | Path, flags: int, mode: int) -> int:
    """Open a file; if it is created (O_CREAT), exactly this mode."""
    while flags & os.O_CREAT:
        try:
            fd = os.open(path, flags | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        else:
            os.fchmod(fd, mode)
            return fd
        with suppress(FileNotFoundError):  # deleted a moment ago, or a link to a file that is to be created
            return os.open(path, flags & ~os.O_CREAT | os.O_CLOEXEC)
        path = os.path.realpath(path)
    return os.open(path, flags | os.O_CLOEXEC)


def make_file(path: Path, mode: int) -> None:
    """Create an empty file unless there is one."""
    with suppress(FileExistsError):
        os.close(open_private(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode))


def make_directory(path: Path, mode: int) -> None:
    """Create a directory for files of this mode, and those above it; directories that exist keep their modes."""
    above = takewhile(lambda directory: not directory.exists(), path.parents)
    for directory in (*reversed(list(above)), path):
        _make_one_directory(directory, directory_mode(mode))


def _make_one_directory(path: Path, mode: int) -> None:
    try:
        path.mkdir(mode)
    except FileExistsError:  # another process was faster, and gives it its mode
        if not path.is_dir():
            raise
    else:
        path.chmod(path.stat().st_mode & stat.S_ISGID | mode)  # a group that is passed on stays so


def exposed(paths: Sequence[Path], mode: int) -> str | None:
    """Return the command that takes rights away which the setting does not give; None if there are none."""
    wide = [
        str(path) for path in paths if path.exists() and path.stat().st_mode & 0o777 & ~directory_mode(mode)
    ]
    who = "go" if mode == 0o600 else "o"
    return f"chmod -R {who}-rwx {shlex.join(wide)}" if wide else None
