"""Temporary files and directories of stages, under names that tell whose they are: what a killed process left is found
by the next one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_OURS = re.compile(r"perdure-(\d+)-.+")


def prefix() -> str:
    """What the names of our temporary files begin with."""
    return f"perdure-{os.getpid()}-"


def new_room() -> Path:
    """A directory for one run of a stage; whoever asked for it removes it."""
    return Path(tempfile.mkdtemp(prefix=prefix()))


def remove(room: Path) -> None:
    """The room and all that is in it."""
    shutil.rmtree(room, ignore_errors=True)


def clear_out() -> int:
    """Remove what processes left that are gone; how much that was."""
    removed = 0
    for path in Path(tempfile.gettempdir()).glob("perdure-*"):
        found = _OURS.fullmatch(path.name)
        if found is None or _lives(int(found[1])):
            continue
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            removed += 1
        except OSError:
            continue  # somebody else's, or somebody was quicker
    return removed


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
