"""Which process keeps a file locked (`flock`), by the kernel's word.

`/proc/locks` names the process that took the lock. That process may be dead while a fork of it keeps the lock, and the
file is named by an inode, which files of other file systems share. The open descriptors of a process decide.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from perdure.errors import StoreBusy

PATIENCE_S = 15.0
SAY_S = 2.0  # of waiting, after which people are told for whom
PAUSE_S = (0.000_5, 0.05)  # between two looks at a lock that is taken: the first, and the longest
WRITE, ANY = ("WRITE",), ("WRITE", "READ")
NOBODY = "another process"  # where the kernel names none

_TAKEN = re.compile(r"(?<!\d)\d+: FLOCK +ADVISORY +(READ|WRITE) +(\d+) [0-9a-f]+:[0-9a-f]+:(\d+) ")
_LOCK = re.compile(r"^lock:.* FLOCK +ADVISORY +(READ|WRITE) ", re.MULTILINE)


def lock_holder(path: Path, kinds: tuple[str, ...] = WRITE) -> int | None:
    """Return a process that certainly has the lock; None if there is none or the kernel cannot be asked."""
    try:
        file = path.stat()
        everybody = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        takers = _takers(file, kinds)
    except OSError:
        return None
    return next((pid for pid in (*takers, *everybody) if _has_lock(pid, path.name, file, kinds)), None)


def holder_told(path: Path) -> str:
    """Name a process that keeps the file locked, for people; another user's by the word of the kernel's list alone."""
    pid = lock_holder(path, ANY)
    if pid is None:
        with suppress(OSError):
            pid = next((found for found in _takers(path.stat(), ANY) if found > 0), None)
    return NOBODY if pid is None else f"process {pid}"


def is_taken(path: Path) -> bool:
    """Whether a process has the file locked, by the kernel's list alone: for a file that this user cannot open."""
    with suppress(OSError):
        return bool(_takers(path.stat(), ANY))
    return False


def say_locked(who: str) -> None:
    """Tell people why nothing happens."""
    logging.getLogger("perdure.store").warning("the store is locked by %s; waiting for it", who)


def lock_within(fd: int, kind: int, path: Path, patience_s: float = PATIENCE_S) -> None:
    """Lock the open file; StoreBusy names the process that keeps it for longer."""
    give_up_s, pause_s = time.monotonic() + patience_s, PAUSE_S[0]
    while True:
        try:
            return fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up_s:
                said = f"{holder_told(path)} has kept {path} locked for {patience_s:g} s; end it or try again"
                raise StoreBusy(said, code="lock_timeout") from None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S[1])


def _takers(file: os.stat_result, kinds: tuple[str, ...]) -> list[int]:
    """Processes that took a lock of a file with this inode; 0 for one of another container."""
    found = _TAKEN.findall(Path("/proc/locks").read_text())
    return [int(pid) for kind, pid, inode in found if kind in kinds and int(inode) == file.st_ino]


def _has_lock(pid: int, name: str, file: os.stat_result, kinds: tuple[str, ...]) -> bool:
    """Whether one of its descriptors is this file with such a lock."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if name in os.readlink(link := f"/proc/{pid}/fd/{number}") and os.path.samestat(
                    os.stat(link), file
                ):
                    said = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
                    if any(kind in kinds for kind in _LOCK.findall(said)):
                        return True
    return False
