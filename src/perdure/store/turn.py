"""Whose turn it is to write: one process at a time, in the order they asked, through a `flock` on a file.

SQLite's own busy handler starves writers. The holder writes down who it is and since when, so that nobody waits for
ever for a process that was frozen in the middle of a transaction: a *worker* that keeps its turn for too long is ended,
its documents are taken up by others. Any other process is only named in the error.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import ClassVar

from perdure.errors import StoreBusy

PATIENCE_S = 15.0
FROZEN_S = 3.0  # after which a stopped worker is ended
STUCK_S = 10.0  # after which one that runs, but does not get on, is
LOOK_S = 0.25
NAME = "perdure-worker"  # at most 15 characters

_NOTE = re.compile(rb"(\d+) (\d+) (\w+)")
_LOCK = re.compile(r"\d+: FLOCK +ADVISORY +WRITE (\d+) [0-9a-f]+:[0-9a-f]+:(\d+) ")
_NOBODY = b" " * 40


class Turn:
    """The turn at `path`; used by one thread."""

    role: ClassVar[str] = "client"  # of this process

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def close(self) -> None:
        os.close(self._fd)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Ours while the body runs; StoreBusy names who keeps us waiting."""
        fd = self._fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fd = await_turn(self.path)
        try:
            os.pwrite(fd, f"{os.getpid()} {time.monotonic_ns()} {self.role}".encode().ljust(len(_NOBODY)), 0)
            yield
        finally:
            os.pwrite(fd, _NOBODY, 0)
            fcntl.flock(fd, fcntl.LOCK_UN)
            if fd != self._fd:
                os.close(fd)


def may_be_ended() -> None:
    """This process is a worker: should it keep its turn for too long, whoever waits may end it."""
    Turn.role = "worker"
    # so that it is known for a worker even if it is frozen before it could write that down
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)


def await_turn(path: Path, patience_s: float = PATIENCE_S) -> int:
    """A locked descriptor of the turn's file, queued for in a thread because a blocking lock knows no time limit."""
    answer: SimpleQueue[int] = SimpleQueue()
    deciding, given_up = threading.Lock(), threading.Event()

    def wait() -> None:
        fd = os.open(path, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with deciding:
            if given_up.is_set():
                os.close(fd)
            else:
                answer.put(fd)

    threading.Thread(target=wait, name="perdure-turn", daemon=True).start()
    give_up_s = time.monotonic() + patience_s
    stopped: dict[int, float] = {}
    while (left_s := give_up_s - time.monotonic()) > 0:
        with suppress(Empty):
            return answer.get(timeout=min(LOOK_S, left_s))
        end_if_stuck(path)
        end_if_frozen(path, stopped)
    with deciding:
        given_up.set()
    if not answer.empty():
        return answer.get()
    raise StoreBusy(
        f"process {holder(path) or 'unknown'} has held the database for {patience_s:g} s; is it frozen?"
    )


def end_if_stuck(path: Path) -> None:
    """End the worker that keeps its turn for too long, if that is what the turn's file and the kernel both say."""
    note = _NOTE.match(path.read_bytes())
    if note is None or note[3] != b"worker":
        return
    pid, held_s = int(note[1]), (time.monotonic_ns() - int(note[2])) / 1e9
    if held_s > FROZEN_S and holder(path) == pid and pid != os.getpid():
        state = _state(pid)
        # one that waits for the disk cannot be ended, and may get on
        if state in ("T", "t") or (held_s > STUCK_S and state not in ("D", "")):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def end_if_frozen(path: Path, stopped: dict[int, float]) -> None:
    """End the worker that has the turn by the kernel's word and was found stopped for too long, whatever it wrote down.

    `stopped` is since when a holder was found stopped at every look.
    """
    pid, now_s = holder(path), time.monotonic()
    if pid is None or pid == os.getpid() or _state(pid) not in ("T", "t") or _name(pid) != NAME:
        stopped.clear()
    elif now_s - stopped.setdefault(pid, now_s) > FROZEN_S:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def holder(path: Path) -> int | None:
    """The process that has the turn, by the kernel's word where it can be asked, otherwise by the file's."""
    try:
        inode, locks = path.stat().st_ino, Path("/proc/locks").read_text()
    except OSError:
        note = _NOTE.match(path.read_bytes())
        return int(note[1]) if note else None
    return next((int(pid) for pid, of in _LOCK.findall(locks) if int(of) == inode), None)


def _name(pid: int) -> str:
    """What the process calls itself; empty when unknown."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _state(pid: int) -> str:
    """One letter of the kernel's: R running, S sleeping, D waiting for the disk, T stopped; empty when unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
