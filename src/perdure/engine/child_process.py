"""The process that runs stages, seen from its supervisor: started, watched, and ended with everything that it started.

Stage code forks and starts programs. They are in the child's process group, or, if they left it, they become children
of the supervisor when their parent ends (`adopt_orphans`). When the child has ended, both kinds are killed.

Processes of others become children of the supervisor, too: jobs of a container's entrypoint, or all processes of a
container that lose their parent. They lack the mark that the child's environment has: the supervisor only reaps them.

When the supervisor is killed, the kernel kills the child's group: the child asks for that with a pipe that only the
supervisor can write to (`end_with`).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from perdure.engine.cell import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl
from perdure.engine.nursery import PR_SET_CHILD_SUBREAPER, children
from perdure.engine.slate import Slate
from perdure.engine.tuning import compute_in_one_thread

LOOK_S = 0.02  # no event reports a child that another may reap
WAIT_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # between two tries to open a store that is not available
MARK = "PERDURE_CHILD"  # the variable by which everything that a child started is known
ENV_END = 48  # the field of /proc/PID/stat, counted after the name, with the end of the environment
KILL_S = 5.0  # for killed processes to end; one that waits for the disk may take longer


@dataclass(slots=True)
class Child:
    """The process, the slate it writes on, and our ends of its connections."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    slate: Slate
    lifeline: int  # the kernel kills the child's group when it is closed
    mark: str  # in the environment of the child and of everything that it started
    started_s: float

    @classmethod
    def spawn(cls, target: str, options: dict[str, Any], inherited: Sequence[int]) -> Child:
        """Start it for the app `target`; `inherited` are descriptors that it gets, too."""
        mark = secrets.token_hex(16)
        slate = Slate.shared()
        ours, theirs = socket.socketpair()
        watched, lifeline = os.pipe()
        fds = (theirs.fileno(), slate.fd, watched)
        try:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "perdure.cli.child", target, *map(str, fds), json.dumps(options),
                ],
                pass_fds=(*fds, *inherited),
                env=compute_in_one_thread({**os.environ, MARK: mark}),
                start_new_session=True,  # a Ctrl-C is for the supervisor, which tells the child
            )  # fmt: skip
        finally:
            theirs.close()
            os.close(watched)
        ours.setblocking(False)
        return cls(process, ours, slate, lifeline, mark, asyncio.get_running_loop().time())

    @property
    def lives(self) -> bool:
        """Whether it has not ended; it is not reaped here, so that its pid stays its own."""
        if self.process.returncode is not None:
            return False
        try:
            ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return ended is None

    async def exited(self) -> int:
        """Wait for its end, then kill what it left behind; its status, negative for a signal."""
        while self.lives:
            self._reap()
            await asyncio.sleep(LOOK_S)
        if self.process.returncode is None:  # before it is reaped its group cannot be another's
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        await self._end_orphans()
        return status

    def send_signal(self, number: int) -> None:
        if self.lives:
            os.kill(self.process.pid, number)

    def close(self) -> None:
        self.control.close()
        os.close(self.slate.fd)
        os.close(self.lifeline)

    def _reap(self) -> None:
        """Reap every child of ours that ended, foreign ones too; this one only after its group was killed."""
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid == self.process.pid and self.process.returncode is None:
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    async def _end_orphans(self) -> None:
        """Kill the child's processes that became ours when it ended, and those that become ours through that."""
        until_s = time.monotonic() + KILL_S
        while time.monotonic() < until_s:
            self._reap()
            marked = {pid: marked_with(self.mark, pid) for pid in children(os.getpid())}
            if all(found is False for found in marked.values()):
                return
            for pid in (pid for pid, found in marked.items() if found):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(LOOK_S)


def marked_with(mark: str, pid: int) -> bool | None:
    """Whether the process began with this mark; None for a moment, while it executes a program or ends."""
    try:
        found = _read(pid, "environ")
        if not found:
            if _read(pid, "stat").rpartition(b")")[2].split()[ENV_END] == b"0":
                return None
            found = _read(pid, "environ")  # it may have got its environment between the two looks
        return f"{MARK}={mark}".encode() in found.split(b"\0")
    except ProcessLookupError:
        return None  # the kernel's word for one that ends
    except PermissionError:  # so does one that has ended, to all but root
        return None if _has_ended(pid) else False
    except OSError:
        return False


def _has_ended(pid: int) -> bool:
    with suppress(OSError):
        return _read(pid, "stat").rpartition(b")")[2].split()[0] in (b"Z", b"X")
    return False


def _read(pid: int, what: str) -> bytes:
    with open(f"/proc/{pid}/{what}", "rb") as file:
        return file.read()


def hide_memory(store: str) -> None:
    """Let no process of the same user, such as a cell, read memory and environment of this one: the address of a
    server with its password is there.

    Workers on one SQLite file look at each other to end one that froze with the lock; nothing is hidden there.
    Processes that stage code forks are seen again, so that the supervisor finds those that were left behind.
    """
    if not store.startswith("sqlite"):
        prctl(PR_SET_DUMPABLE, 0)
        os.register_at_fork(after_in_child=lambda: prctl(PR_SET_DUMPABLE, 1))


def adopt_orphans() -> None:
    """Processes that lose their parent become children of this one, if they are below it."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with(watched: int) -> None:
    """In the child: die when the supervisor ends, however it ends, with every process of our group.

    The kernel signals the group of a pipe's owner when the other end is closed; nothing is ever written to it. Where it
    cannot, it is asked to kill at least this process.
    """
    try:
        fcntl.fcntl(watched, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(watched, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(watched, fcntl.F_SETFL, fcntl.fcntl(watched, fcntl.F_GETFL) | os.O_ASYNC)
    except (OSError, AttributeError):
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_inheritable(watched, False)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    if poll.poll(0):  # it ended before the kernel knew that we want to be told
        os._exit(1)
