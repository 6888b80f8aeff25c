"""Run one call of user code in a process of its own ("cell") that can be limited and killed, and say how it ended.

    nursery = Nursery(["books"])                       # a warm process that imports `books` once, forks a cell per call
    await nursery.run("books:extract", payload, on_message, Limits(wall_s=600))

Every way to end has one answer: the bytes, the exception that was raised, CellCrashed (the call's own fault, with its
reason), CellOverdue, or NurseryLost (nobody's fault; the call may be repeated). Whatever the call started is killed
before the answer is given. Without /proc only the kernel's limits and process groups hold; memory is not watched.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from perdure.core.frozen import frozen
from perdure.engine.call import Accept, Call, OnMessage, OnStart
from perdure.engine.cell_env import environment, passes
from perdure.engine.crossing import DONE, RemoteError
from perdure.engine.gate import Gate
from perdure.engine.host import GRACE_S, KILL_S, Host, Kind
from perdure.engine.verdict import (
    CellCrashed,
    CellDoubtful,
    CellOverdue,
    Limits,
    NurseryLost,
    PreloadFailed,
    SandboxUnavailable,
)
from perdure.errors import PerdureError

__all__ = [
    "Box", "CellCrashed", "CellDoubtful", "CellOverdue", "Limits", "Nursery", "NurseryLost", "PreloadFailed",
    "RemoteError", "SandboxUnavailable",
]  # fmt: skip


@frozen
class Box:
    """A call that goes into a sandbox; `file` is all that it may read of the worker's files."""

    file: Path | None = None


class Nursery:
    """Runs calls in cells; starts a warm process at the first call and again whenever that process was lost. Calls that
    go into a sandbox have a warm process of their own, which has seen less."""

    def __init__(
        self, preload: Sequence[str] = (), boxed: Sequence[str] = (), sandbox: str = "auto", env: str = "",
        memory_bytes: float = math.inf,
    ) -> None:  # fmt: skip
        """`memory_bytes`: that cells may take together, by the limits of each; see `gate`."""
        self._preload, self._boxed = tuple(preload), tuple(boxed)
        self._sandbox = sandbox
        self.passes = passes(env)
        self.gate = Gate(memory_bytes)
        self._heavy: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.lone_suspect = asyncio.Lock()  # of suspects that no cell can run, one runs here at a time
        self._home = _directory()  # stage code may leave it before a nursery is started again
        self._hosts: dict[tuple[bool, bool], asyncio.Task[Host]] = {}
        self._closed = False

    @property
    def boxes(self) -> bool:
        """Whether calls go into a sandbox if they ask for it."""
        return self._sandbox != "off"

    def heavy(self, org: str) -> asyncio.Semaphore:
        """A place for a cell with a heavy document. Each organisation has half as many as there are processors: others
        neither share their processors with all its documents nor wait for one that hangs."""
        return self._heavy.setdefault(org, asyncio.Semaphore(max(1, cores() // 2)))

    async def warm(self, trusted: bool = False) -> None:
        """Have the modules imported; PreloadFailed names the one that cannot be."""
        await self._open(trusted=trusted)

    async def sandbox(self) -> list[str]:
        """What the sandbox consists of on this machine. Raises: SandboxUnavailable if it is required and not whole."""
        return (await self._open(boxed=True)).held if self.boxes else []

    async def run(
        self,
        target: str,
        payload: bytes,
        on_message: OnMessage,
        limits: Limits,
        started: OnStart | None = None,
        reuse: int = 1,
        whose: str = "",
        accept: Accept | None = None,
        box: Box | None = None,
        trusted: bool = False,
    ) -> Any:
        """Call `target` ("module:function") as `function(payload, ask)` in a cell and return its bytes, or what
        `accept` makes of them.

        `ask(message)` there awaits `on_message(message)` here; what that raises is raised there. Both may raise
        Malformed: then the cell is killed and the call has crashed. `started` is told the cell's pid before user code
        begins. If the cell dies while a message is being answered, the answer has a second to complete and is then
        cancelled. Cancelling the call kills the cell and returns when it is gone.

        A cell whose calls all answered serves up to `reuse` of them, all for the same `whose`. One that ends without an
        answer after it served others raises CellDoubtful: call again, with 1. The cells of `trusted` calls come from a
        warm process of their own, which has the environment of this one.
        """
        try:
            host = await self._open(box is not None, trusted)
            cell = host.rested(limits, reuse, whose) or await host.hatch(limits, whose)
        except OSError as error:  # no process or descriptor is to be had: that is not the call's fault
            raise NurseryLost(f"no process could be started: {error}") from error
        talk = asyncio.create_task(self._talk(cell, box, target, payload, on_message, started, accept))
        try:
            either: set[asyncio.Future[Any]] = {talk, cell.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if cell.ended.done():
                cell.hang_up()
                await asyncio.wait({talk}, timeout=GRACE_S)
            elif talk.result() is None:
                # its end is about to be reported, or else user code closed our socket
                await asyncio.wait({cell.ended}, timeout=0 if cell.cause is not None else GRACE_S)
                if cell.cause is None and host.gone():  # it took its cells along: the cause is on its way
                    await asyncio.wait({cell.ended}, timeout=KILL_S)
                cell.kill(CellCrashed("silenced", "the call closed its connection to the worker"))
        finally:
            if cell.served + 1 >= reuse or not _answered(talk) or not cell.rest(host.strays()):
                await _see_through(host.finish(cell, talk))
        return cell.judge(None if talk.cancelled() or not talk.done() else talk.result())

    async def _talk(
        self,
        cell: Call,
        box: Box | None,
        target: str,
        payload: bytes,
        on_message: OnMessage,
        started: OnStart | None,
        accept: Accept | None,
    ) -> tuple[int, bytes] | None:
        try:
            await cell.furnish(box.file if box is not None else None)
        except OSError as error:
            raise NurseryLost(f"the file could not be put where a sandbox reads it: {error}") from error
        return await cell.talk(target, payload, on_message, started, accept)

    async def close(self) -> None:
        """Kill every cell and the warm process; calls under way fail with NurseryLost."""
        self._closed = True
        for starting in self._hosts.values():
            with suppress(PerdureError):
                await (await asyncio.shield(starting)).lose("was closed")

    async def _open(self, boxed: bool = False, trusted: bool = False) -> Host:
        if self._closed:
            raise NurseryLost("the nursery is closed")
        task = self._hosts.get((boxed, trusted))
        if task is None or (
            task.done() and (task.cancelled() or task.exception() is not None or task.result().gone())
        ):
            path = [os.path.join(self._home, str(entry)) for entry in sys.path]
            variables = dict(os.environ) if trusted else environment(os.environ, boxed, self.passes)
            kind = Kind(self._boxed if boxed else self._preload, variables, boxed, behind=trusted)
            task = self._hosts[boxed, trusted] = asyncio.create_task(Host.start(kind, path))
        host = await asyncio.shield(task)
        if boxed and self._sandbox == "require" and not host.in_force:
            missing = f"it has {', '.join(host.held) or 'nothing'}"
            raise SandboxUnavailable(
                f"PERDURE_SANDBOX is require, but this machine cannot confine cells: needed are Landlock and seccomp, "
                f"{missing}; use Linux 5.13 or newer and allow both in the container, or set it to auto"
            )
        return host


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _directory() -> str:
    """Where this process is; empty when that directory was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _answered(talk: asyncio.Task[tuple[int, bytes] | None]) -> bool:
    """Whether the call came to its end well; after an error nobody knows in what state it left its process."""
    if not talk.done() or talk.cancelled() or talk.exception() is not None:
        return False
    last = talk.result()
    return last is not None and last[0] == DONE


async def _see_through(work: Coroutine[Any, Any, None]) -> None:
    # Whatever cancels the caller meanwhile, the work is done to its end; then the cancellation goes on.
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
