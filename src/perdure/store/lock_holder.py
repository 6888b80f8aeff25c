"""Which process keeps a file locked (`flock`), by the kernel's word.

`/proc/locks` names the process that took the lock. That process may be dead while a fork of it keeps the lock, and the
file is named by an inode, which files of other file systems share. The open descriptors of a process decide.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_TAKEN = re.compile(r"(?<!\d)\d+: FLOCK +ADVISORY +WRITE (\d+) [0-9a-f]+:[0-9a-f]+:(\d+) ")
_LOCK = re.compile(rb"^lock:.* FLOCK +ADVISORY +WRITE ", re.MULTILINE)


def lock_holder(path: Path) -> int | None:
    """Return a process that has the exclusive lock; None if there is none or the kernel cannot be asked."""
    try:
        file = path.stat()
        locks = Path("/proc/locks").read_text()
        everybody = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    takers = [int(pid) for pid, inode in _TAKEN.findall(locks) if int(inode) == file.st_ino]
    return next((pid for pid in (*takers, *everybody) if _has_lock(pid, path.name, file)), None)


def _has_lock(pid: int, name: str, file: os.stat_result) -> bool:
    """Whether one of its descriptors is this file with an exclusive lock."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if name in os.readlink(link := f"/proc/{pid}/fd/{number}") and os.path.samestat(
                    os.stat(link), file
                ):
                    said = Path(f"/proc/{pid}/fdinfo/{number}").read_bytes()
                    if _LOCK.search(said):
                        return True
    return False
