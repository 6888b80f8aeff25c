"""Whose turn it is to write: one process at a time, more or less in the order they asked, through a `flock` on a file.

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

from perdure.errors import StoreBusy

PATIENCE_S = 15.0
FROZEN_S = 3.0  # after which a stopped worker is ended
STUCK_S = 10.0  # after which one that runs, but does not get on, is
LOOK_S = 0.25
SOON_S = (0.000_2, 0.000_4, 0.000_8, 0)
LATE_S = 1.0  # a look this late says that we were paused ourselves
NAME = "perdure-worker"  # at most 15 characters

_LOCK = re.compile(r"\d+: FLOCK +ADVISORY +WRITE (\d+) [0-9a-f]+:[0-9a-f]+:(\d+) ")
_NOBODY = b" " * 40


class Turn:
    """The turn at `path`; used by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def close(self) -> None:
        os.close(self._fd)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Ours while the body runs; StoreBusy names who keeps us waiting."""
        fd = self._fd if self._soon() else await_turn(self.path)
        try:
            os.pwrite(fd, f"{os.getpid()} {time.monotonic_ns()}".encode().ljust(len(_NOBODY)), 0)
            yield
        finally:
            os.pwrite(fd, _NOBODY, 0)
            fcntl.flock(fd, fcntl.LOCK_UN)
            if fd != self._fd:
                os.close(fd)

    def _soon(self) -> bool:
        """Whether it is ours within about the time that a commit takes: to wait in a thread costs twice the CPU."""
        for pause_s in SOON_S:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(pause_s)
        return False


def may_be_ended() -> None:
    """This process is a worker: should it keep its turn for too long, whoever waits may end it."""
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
    watch = Watch(path)
    while (left_s := give_up_s - time.monotonic()) > 0:
        with suppress(Empty):
            return answer.get(timeout=min(LOOK_S, left_s))
        watch.look()
    with deciding:
        given_up.set()
    if not answer.empty():
        return answer.get()
    raise StoreBusy(f"process {_told(path)} has held the database for {patience_s:g} s; is it frozen?")


class Watch:
    """Watches whoever has the turn while we wait, and ends a worker that is found in the same turn for too long.

    Only what was seen counts: somebody who was paused together with us gets all his time again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn: tuple[int, bytes] | None = None
        self._since_s = self._looked_s = 0.0

    def look(self) -> None:
        pid, now_s = holder(self.path), time.monotonic()
        turn = None if pid is None else (pid, self.path.read_bytes())
        if turn != self._turn or now_s - self._looked_s > LATE_S:
            self._turn, self._since_s = turn, now_s
        self._looked_s = now_s
        if pid is not None and pid != os.getpid() and _name(pid) == NAME:
            self._end_if_stuck(pid, now_s - self._since_s)

    def _end_if_stuck(self, pid: int, held_s: float) -> None:
        states = _states(pid)
        # one that waits for the disk cannot be ended, and may get on
        if (held_s > FROZEN_S and states & {"T", "t"}) or (held_s > STUCK_S and states and "D" not in states):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def holder(path: Path) -> int | None:
    """The process that has the turn, by the kernel's word; None when nobody has it or the kernel cannot be asked."""
    try:
        inode, locks = path.stat().st_ino, Path("/proc/locks").read_text()
    except OSError:
        return None
    return next((int(pid) for pid, of in _LOCK.findall(locks) if int(of) == inode), None)


def _told(path: Path) -> str:
    """Who has the turn, for people: where the kernel cannot be asked, by what the holder wrote down."""
    return str(holder(path) or path.read_text().partition(" ")[0] or "unknown")


def _name(pid: int) -> str:
    """What the process calls itself; empty when unknown."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _states(pid: int) -> set[str]:
    """Of its threads, one letter of the kernel's each: R running, S sleeping, D waiting for the disk, T stopped."""
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError, IndexError):
            found.add(stat.read_text().rpartition(")")[2].split()[0])
    return found
