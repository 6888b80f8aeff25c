"""The worker's side of one nursery process: starts it, has cells forked, watches them, and notices its end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any

from perdure.core.frozen import frozen
from perdure.engine import call, crossing, rooms
from perdure.engine.behind import stand_behind
from perdure.engine.call import Call
from perdure.engine.nursery import ENDED, REPORT, REQUEST, STARTED, children
from perdure.engine.sandbox import in_force
from perdure.engine.verdict import End, Limits, NurseryLost, PreloadFailed, signal_name
from perdure.engine.wire import Malformed

WATCH_S = 0.1  # between two looks at the cells
REST_S = 5.0  # that a cell waits for another call
LATE_S = 0.5  # a look this late says that our own loop stood still, not that the cells did
WARM_S = 120.0  # for imports
READY_S = 30.0  # for a forked cell to say that it is there
GRACE_S = 1.0  # for what is under way when a process dies
KILL_S = 10.0  # for a killed cell to be gone
#: One thread per process for linear algebra: cells are many, and a process with threads cannot be forked.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@frozen
class Kind:
    """A kind of warm process: what it imports, its environment, and whether its cells go into a sandbox."""

    preload: tuple[str, ...]
    environment: dict[str, str]
    boxed: bool = False
    behind: bool = False  # its cells are for heavy documents; its imports alone would keep others waiting


class Host:
    """One warm process and the calls in its cells."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, boxed: bool) -> None:
        self.process, self.control, self.boxed = process, control, boxed
        self.held: list[str] = []  # what the sandbox of its cells consists of
        self.calls: dict[int, Call] = {}
        self.numbers = itertools.count(1)
        self.ready_s = READY_S
        self.why = ""
        self.reader: asyncio.Task[None] | None = None
        self.watcher: asyncio.Task[None] | None = None
        self.leaving: set[asyncio.Task[None]] = set()
        self.own: set[int] = set()  # processes that the imported modules started

    @classmethod
    async def start(cls, kind_: Kind, path: list[str]) -> Host:
        """A process that has imported its modules; PreloadFailed if it cannot."""
        preload, began = list(kind_.preload), time.monotonic()
        control, theirs = socket.socketpair()
        control.setblocking(False)
        with theirs:
            host = cls(_spawn(theirs, kind_.environment), control, kind_.boxed)
        if kind_.behind:
            stand_behind(host.process.pid)
        hello = {"parent": os.getpid(), "path": path, "preload": preload, "boxed": kind_.boxed}
        try:
            async with asyncio.timeout(WARM_S):
                await call.send(control, crossing.CALL, json.dumps(hello).encode())
                kind, body = await call.Inbox(control).receive()
            if kind == crossing.RAISED:
                raise PreloadFailed(str(error := crossing.decode_error(body))) from error
            host.held = body.decode().split(", ") if body else []
        except BaseException as error:
            control.close()
            how = await host.bury(GRACE_S if isinstance(error, EOFError) else 0)
            if isinstance(error, TimeoutError):
                raise PreloadFailed(f"importing {preload} took longer than {WARM_S:g} s") from error
            if isinstance(error, OSError | EOFError | Malformed):
                lost = NurseryLost if host.process.returncode == -signal.SIGKILL else PreloadFailed
                raise lost(f"the process that imports {preload} {how}") from error
            raise
        # a cell that cannot be forked imports as we did, with others at it
        host.ready_s = min(WARM_S, max(READY_S, 4 * (time.monotonic() - began)))
        host.own = set(children(host.process.pid))
        host.reader = asyncio.create_task(host.read())
        return host

    @property
    def in_force(self) -> bool:
        """Whether its cells are in a sandbox when they read a file."""
        return in_force(self.held)

    def gone(self) -> bool:
        """Whether no cell can come from here any more."""
        return bool(self.why) or self.reader is None or self.reader.done() or self.process.poll() is not None

    def rested(self, limits: Limits, reuse: int, whose: str) -> Call | None:
        """A cell that waits for another call, if there is one that may serve it."""
        for cell in self.calls.values():
            if (
                cell.rested is not None
                and (cell.limits, cell.whose) == (limits, whose)
                and cell.served < reuse
                and not cell.ended.done()
            ):
                cell.rested, cell.asked = None, time.monotonic()
                return cell
        return None

    def strays(self) -> set[int]:
        """Processes below the warm one that are none of its cells: a call left them behind."""
        return set(children(self.process.pid)) - self.own - {cell.pid for cell in self.calls.values()}

    async def hatch(self, limits: Limits, whose: str = "") -> Call:
        """Have a cell forked; it waits for its call."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        den = rooms.new_room() if self.boxed else None
        number, cell = next(self.numbers), Call(limits, ours, whose, den)
        kernel = (limits.memory_bytes, limits.cpu_s, limits.file_bytes)
        request = REQUEST.pack(number, *(-1 if each is None else each for each in kernel))
        self.calls[number] = cell
        try:
            with theirs:
                await self._ask(request, theirs.fileno())
        except BaseException as error:
            del self.calls[number]
            ours.close()
            if den is not None:
                rooms.remove(den)
            if isinstance(error, OSError):
                raise NurseryLost("the process that forks cells is gone") from error
            raise
        if self.watcher is None or self.watcher.done():
            self.watcher = asyncio.create_task(self.watch())
        return cell

    async def _ask(self, request: bytes, fd: int) -> None:
        while True:
            try:
                socket.send_fds(self.control, [request], [fd])
                return
            except BlockingIOError:
                await asyncio.sleep(0.01)

    async def finish(self, cell: Call, talk: asyncio.Task[Any] | None = None) -> None:
        """Kill the cell with everything below it, wait until it is gone, and let go of it."""
        both: set[asyncio.Future[Any]] = {cell.ended} if talk is None else {talk, cell.ended}
        if talk is not None:
            talk.cancel()
        cell.kill()
        await asyncio.wait(both, timeout=KILL_S)
        if not cell.ended.done():
            await self.lose("did not report the end of a killed cell")
        if talk is not None and talk.done() and not talk.cancelled():
            talk.exception()  # seen; whoever was not cancelled raises it
        cell.sock.close()
        self.calls = {number: each for number, each in self.calls.items() if each is not cell}
        await cell.leave()

    async def read(self) -> None:
        """Take reports until the process is gone; then every call is lost."""
        try:
            with suppress(OSError, ValueError, OverflowError):
                await self._reports()
        finally:
            self.control.close()  # the process, if it still lives, kills its cells and goes
            for cell in self.calls.values():
                cell.kill()
        how = self.why or await self.bury(GRACE_S)
        for cell in self.calls.values():
            cell.end(None, NurseryLost(f"the process that forks cells {how}"))
            if cell.rested is not None:
                cell.sock.close()
                await cell.leave()
        if self.watcher is not None:
            self.watcher.cancel()
        await self.bury(GRACE_S)

    async def _reports(self) -> None:
        loop, rest = asyncio.get_running_loop(), b""
        while data := await loop.sock_recv(self.control, 1 << 16):
            rest += data
            whole = len(rest) // REPORT.size * REPORT.size
            for report in REPORT.iter_unpack(rest[:whole]):
                self.heed(*report)
            rest = rest[whole:]

    def heed(self, kind: int, number: int, pid: int, status: int, peak_bytes: int, cpu_s: float) -> None:
        cell = self.calls.get(number)
        if cell is None:
            return
        if kind == STARTED:
            cell.born(pid)
        elif kind == ENDED:
            cell.end(End(status, peak_bytes, cpu_s))
        else:
            cell.end(None, NurseryLost(f"no process could be started: {os.strerror(status)}"))

    async def watch(self) -> None:
        """Look at every cell while there are any."""
        last, late = time.monotonic(), False
        while self.calls:
            await asyncio.sleep(WATCH_S)
            now = time.monotonic()
            gap, last = now - last, now
            late = gap > LATE_S and not late
            strays: dict[int, list[int]] = defaultdict(list)
            for pid in self.strays():
                with suppress(OSError):
                    strays[os.getsid(pid)].append(pid)
            for cell in list(self.calls.values()):
                if cell.rested is not None:
                    if now - cell.rested > REST_S or cell.ended.done():
                        cell.rested = None
                        self.leaving.add(leaving := asyncio.create_task(self.finish(cell)))
                        leaving.add_done_callback(self.leaving.discard)
                elif late:  # first let what the cells sent meanwhile be read
                    cell.heard += gap
                    cell.asked += gap
                elif cell.began is None and now - cell.asked > (self.ready_s if cell.furnished else WARM_S):
                    await self._late(cell)
                else:
                    cell.check(now, strays[cell.pid])

    async def _late(self, cell: Call) -> None:
        """Give up a cell that did not begin: it stands still itself, or the process that was to fork it does."""
        if cell.pid:
            cell.kill(NurseryLost(f"the process of this call was not ready within {self.ready_s:.0f} s"))
        else:
            await self.lose("started no cell in time")

    async def lose(self, why: str) -> None:
        """Give the process up: its cells are killed and their calls fail with NurseryLost."""
        self.why = self.why or why
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        if self.reader is not None:
            await asyncio.shield(self.reader)

    async def bury(self, patience_s: float) -> str:
        """How the process ended; it is killed if it has not within `patience_s`."""
        until = time.monotonic() + patience_s
        while self.process.poll() is None:
            if time.monotonic() >= until:
                self.process.kill()
            await asyncio.sleep(0.005)
        code = self.process.returncode
        return f"was killed by {signal_name(-code)}" if code < 0 else f"exited with status {code}"


def _spawn(control: socket.socket, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    fd = control.fileno()
    return subprocess.Popen(
        [sys.executable, "-m", "perdure.engine.nursery", str(fd)],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        env={**environment, **ENVIRONMENT},
        start_new_session=True,  # so that who kills the worker's group leaves it the moment to kill its cells
    )
