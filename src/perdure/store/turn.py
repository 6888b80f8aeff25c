"""Whose turn it is to write: one process at a time, more or less in the order they asked, through a `flock` on a file.

SQLite's own busy handler starves writers. The holder writes down who it is and, again and again, that it makes
progress, so that no process waits without end for one that was frozen in the middle of a transaction: a *worker* that
keeps its turn without progress for too long is ended, its documents are taken up by others. Any other process is only
named in the error.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from perdure.errors import StoreBusy
from perdure.store.descriptors import close_unshared, open_unshared
from perdure.store.lock_holder import NOBODY, PATIENCE_S, SAY_S, holder_told, lock_holder, say_locked

FROZEN_S = 3.0  # after which a stopped worker is ended
STUCK_S = 10.0  # after which one that runs without progress is
LOOK_S = 0.25
NOTE_S = 1.0  # between two notes of progress
SOON_S = (0.000_2, 0.000_4, 0.000_8, 0)
LATE_S = 1.0  # a look this late says that we were paused ourselves
NAME = "perdure-worker"  # at most 15 characters

_NOBODY = b" " * 60


class Turn:
    """The turn at `path`; used by one thread."""

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self.path = path
        self._fd = open_unshared(path, os.O_RDWR | os.O_CREAT, mode)
        self._held: int | None = None  # the locked descriptor
        self._noted_s = 0.0

    def close(self) -> None:
        close_unshared(self._fd)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Ours while the body runs; StoreBusy names who keeps us waiting."""
        fd = self._fd if self._soon() else await_turn(self.path)
        try:
            self._held = fd
            self._note(time.monotonic())
            yield
        finally:
            self._held = None
            with suppress(OSError):  # whatever the disk says, others must have their turn
                os.pwrite(fd, _NOBODY, 0)
            fcntl.flock(fd, fcntl.LOCK_UN)
            if fd != self._fd:
                close_unshared(fd)

    def advance(self) -> None:
        """Tell those who wait that our transaction makes progress; cheap, so that it can be called often."""
        if self._held is not None and (now_s := time.monotonic()) - self._noted_s >= NOTE_S:
            self._note(now_s)

    def _note(self, now_s: float) -> None:
        assert self._held is not None
        self._noted_s = now_s
        said = f"{os.getpid()} {threading.get_native_id()} {time.monotonic_ns()}"
        os.pwrite(self._held, said.encode().ljust(len(_NOBODY)), 0)

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
        fd = open_unshared(path, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with deciding:
            if given_up.is_set():
                close_unshared(fd)
            else:
                answer.put(fd)

    threading.Thread(target=wait, name="perdure-turn", daemon=True).start()
    give_up_s = time.monotonic() + patience_s
    watch, said = Watch(path), False
    while (left_s := give_up_s - time.monotonic()) > 0:
        with suppress(Empty):
            return answer.get(timeout=min(LOOK_S, left_s))
        watch.look()
        if not said and patience_s - left_s >= SAY_S:
            said = True
            say_locked(_told(path))
    with deciding:
        given_up.set()
    if not answer.empty():
        return answer.get()
    what = "it writes a lot, try again" if watch.moved else "is it frozen?"
    raise StoreBusy(f"{_told(path)} has held the database for {patience_s:g} s; {what}")


class Watch:
    """Watches the process that has the turn while we wait, and ends a worker that makes no progress for too long.

    Progress is a note of the holder, or input and output of the thread that has the turn (a long commit cannot note
    anything). Only what was seen counts: a process that was paused together with us gets all its time again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, bytes, bytes] | None = None
        self._since_s = self._looked_s = 0.0
        self.moved = False  # whether it made progress at the last looks

    def look(self) -> None:
        pid, now_s = lock_holder(self.path), time.monotonic()
        seen = None
        if pid is not None:
            said = self.path.read_bytes()
            seen = (pid, said, _transferred(pid, said))
        if seen != self._seen or now_s - self._looked_s > LATE_S:
            self._seen, self._since_s = seen, now_s
        self._looked_s = now_s
        self.moved = seen is not None and now_s - self._since_s < FROZEN_S
        if pid is not None and pid != os.getpid() and _name(pid) == NAME:
            self._end_if_stuck(pid, now_s - self._since_s)

    def _end_if_stuck(self, pid: int, held_s: float) -> None:
        states = _states(pid)
        # one that waits for the disk cannot be ended, and may go on
        if (held_s > FROZEN_S and states & {"T", "t"}) or (held_s > STUCK_S and states and "D" not in states):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _told(path: Path) -> str:
    """Name the process that has the turn, for people; if the kernel cannot be asked, the one that wrote itself down."""
    told, said = holder_told(path), path.read_text().split()
    return f"process {said[0]}" if said and told == NOBODY else told


def _transferred(pid: int, said: bytes) -> bytes:
    """The kernel's account of what the thread that has the turn has read and written; empty when unknown."""
    try:
        return Path(f"/proc/{pid}/task/{int(said.split()[1])}/io").read_bytes()
    except (OSError, IndexError, ValueError):
        return b""


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
