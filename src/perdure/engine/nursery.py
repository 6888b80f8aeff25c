"""The warm process that forks cells: it has imported the user's modules once and holds no lock, thread or connection.

Started by `isolate.Nursery` as `python -m perdure.engine.nursery FD`. For each request, which brings one end of a
socket pair, it forks a cell and reports its pid; when the cell ends, however it ends, it kills what the cell left
behind and reports how it ended. It goes, with every cell, when its parent goes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Container, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from perdure.engine import cell, crossing, sandbox
from perdure.engine.cell import PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl
from perdure.engine.collector import calm_collector
from perdure.engine.title import set_title

#: A request: cell number, memory, CPU seconds, file size (-1 = no limit). A descriptor rides along.
REQUEST = struct.Struct("!Qqqq")
#: A report: kind, cell number, pid, wait status or errno, peak memory in bytes, CPU seconds.
REPORT = struct.Struct("!BQqqqd")
STARTED, ENDED, FAILED = range(3)

PR_SET_CHILD_SUBREAPER = 36


# --- looking at processes --------------------------------------------------------------------


def children(pid: int) -> list[int]:
    """The direct children of a process, dead ones included until they are reaped; none where /proc cannot say."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            # a thread may end meanwhile; its children are another's from then on
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                found += map(int, listing.read().split())
    return found


def tree(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for each in found:  # grows while it is walked
        found += children(each)
    return found


def birth(pid: int) -> str:
    """When the process began, in the kernel's count; with its pid this tells it from every other. "" if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def memory(pids: Iterable[int]) -> int:
    """Bytes that these processes hold themselves, swapped ones included; pages of mapped files do not count."""
    total = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/status", "rb") as status:
            for line in status:
                if line.startswith((b"RssAnon:", b"RssShmem:", b"VmSwap:")):
                    total += int(line.split()[1]) * 1024
    return total


def unshared_memory(pids: Iterable[int]) -> int:
    """The same with each page that several processes share counted once; takes milliseconds per process."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:
                parts = [
                    line for line in rollup if line.startswith((b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:"))
                ]
        except ProcessLookupError:
            continue
        except OSError:
            parts = []
        total += sum(int(line.split()[1]) * 1024 for line in parts) if parts else memory([pid])
    return total


# --- the nursery -----------------------------------------------------------------------------


class Brood:
    """The cells of one nursery, by pid, and the processes they left behind."""

    def __init__(self, control: socket.socket, hello: dict[str, Any]) -> None:
        self.control, self.hello = control, hello
        self.cells: dict[int, int] = {}
        self.strays: dict[int, set[int]] = {}
        self.own = set(children(os.getpid()))
        self.orphaned = False
        self.woken, self.wake = os.pipe()

    def serve(self) -> None:
        """Fork and bury until the parent is gone."""
        os.set_blocking(self.woken, False)
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGUSR2, self._orphan)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        # Not SIGKILL: the groups of the cells are killed first, which takes the processes they started along.
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR2)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        while not self.orphaned and os.getppid() == self.hello["parent"]:
            for fd, _ in poll.poll():
                if fd == self.woken:
                    os.read(fd, 4096)
                elif not self.take():
                    return
            self.bury()

    def _orphan(self, _number: int, _frame: FrameType | None) -> None:
        self.orphaned = True

    def take(self) -> bool:
        """Fork the cell that the next request asks for; False at the end of the requests."""
        request, fds, _, _ = socket.recv_fds(self.control, REQUEST.size, 1)
        if not request:
            return False
        number, *limits = REQUEST.unpack(request)
        try:
            pid = self.fork(fds[0], limits)
        except OSError as error:
            self.report(FAILED, number, 0, error.errno or 0)
        else:
            self.cells[pid] = number
            self.report(STARTED, number, pid, 0)
        finally:
            os.close(fds[0])
        return True

    def fork(self, fd: int, limits: list[int]) -> int:
        if threads() > 1:
            return self._spawn(fd, limits)
        nursery = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                cell.settle(nursery)
                self.control.close()
                os.close(self.woken)
                os.close(self.wake)
                cell.confine(*limits)
                cell.live(fd)
            finally:
                os._exit(1)
        return pid

    def _spawn(self, fd: int, limits: list[int]) -> int:
        import subprocess  # only now: most nurseries never need it

        call = json.dumps({**self.hello, "parent": os.getpid(), "limits": limits})
        command = [sys.executable, "-m", "perdure.engine.nursery", "--cell", str(fd), call]
        process = subprocess.Popen(command, pass_fds=[fd])
        process.returncode = 0  # or a later Popen would reap it before us
        return process.pid

    def bury(self) -> None:
        """Report the cells that ended; first, while their pid cannot be taken by another, kill their groups."""
        ended: dict[int, tuple[int, int, int, float]] = {}
        for pid, number in list(self.cells.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            del self.cells[pid]
            peak = usage.ru_maxrss * (1024 if sys.platform.startswith("linux") else 1)
            ended[pid] = (number, status, peak, usage.ru_utime + usage.ru_stime)
        self.sweep(ended)
        for pid, (number, status, peak, cpu_s) in ended.items():
            self.report(ENDED, number, pid, status, peak, cpu_s)

    def sweep(self, ended: Container[int]) -> None:
        """Kill processes that left their cell's group, as soon as every cell they may belong to has ended."""
        for pid in set(children(os.getpid())) - self.own - set(self.cells):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.strays.pop(pid, None)
                continue
            homes = self.strays.setdefault(pid, set(self.cells))
            homes &= set(self.cells)
            if not homes or os.getsid(pid) in ended:
                os.kill(pid, signal.SIGKILL)

    def report(self, kind: int, number: int, pid: int, status: int, peak: int = 0, cpu_s: float = 0) -> None:
        self.control.sendall(REPORT.pack(kind, number, pid, status, peak, cpu_s))

    def end(self) -> None:
        """Kill every cell with its group and everything else below this process."""
        for pid in [*tree(os.getpid())[1:], *(-group for group in self.cells)]:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def threads(pid: int | str = "self") -> int:
    """How many threads a process has; 2 where nobody can say, because only with one is it safe to go on."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 2


def main(arguments: list[str]) -> NoReturn:
    """Be a nursery on an inherited control socket, or, with --cell, a cell of a nursery that must not fork."""
    if arguments[0] == "--cell":
        fd, hello = int(arguments[1]), json.loads(arguments[2])
        os.set_inheritable(fd, False)
        cell.settle(hello["parent"])
        _load(hello)
        cell.confine(*hello["limits"])
        cell.live(fd)
    set_title("perdure worker: cells")
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # while modules are imported there are no cells to care for
    prctl(PR_SET_DUMPABLE, 0)  # no cell may look into the process that forks the others
    _stand_firm()
    hello = json.loads(crossing.receive(control.fileno())[1])
    if os.getppid() != hello["parent"]:  # it died before the kernel knew that we want to be told
        os._exit(0)
    try:
        _load(hello)
    except ImportError as error:
        crossing.send(control.fileno(), crossing.RAISED, crossing.encode_error(error))
        os._exit(1)
    control.settimeout(None)
    _stand_firm()
    calm_collector()  # cells share these pages as long as no collection touches them
    sandbox.modules = hello["preload"]
    held = _try_sandbox() if hello["boxed"] else []
    brood = Brood(control, hello)
    try:
        crossing.send(control.fileno(), crossing.READY, ", ".join(held).encode())
        brood.serve()
    except ConnectionError:
        pass  # the parent is gone
    finally:
        brood.end()
    os._exit(0)


def _load(hello: dict[str, Any]) -> None:
    del sys.argv[1:]
    sys.path[:] = hello["path"]
    cell.preload(hello["preload"])


def _try_sandbox() -> list[str]:
    """What a sandbox of a cell holds here: found out by a process that enters one and ends."""
    if threads() > 1:
        return []  # a cell is started, not forked, and its modules have threads that no sandbox reaches
    sandbox.prepare()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, "\n".join(sandbox.tried("/nonexistent")).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        held = answer.read().decode().splitlines()
    os.waitpid(pid, 0)
    sandbox.proven = sandbox.names(held)
    return held


def _stand_firm() -> None:
    # What stops a service or is typed at a terminal is for the worker; the nursery goes when the worker goes.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main(sys.argv[1:])
