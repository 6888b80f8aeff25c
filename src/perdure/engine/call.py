"""A cell, seen from the worker: the conversation of a call in it, its clocks, its killing and the verdict."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure.engine import rooms, verdict
from perdure.engine.behind import stand_behind
from perdure.engine.cell import DOCUMENT, TEMPORARY
from perdure.engine.crossing import (
    ANSWER,
    ASK,
    BODY_MAX,
    CALL,
    CHUNK,
    DONE,
    HEAD,
    OUT_OF_MEMORY,
    RAISED,
    READY,
    RemoteError,
    decode_error,
    encode_error,
)
from perdure.engine.nursery import birth, memory, threads, tree, unshared_memory
from perdure.engine.oom import OomKills
from perdure.engine.verdict import CellCrashed, CellDoubtful, End, Limits, NurseryLost
from perdure.engine.wire import Malformed, TooLarge
from perdure.errors import LeaseLost, PerdureError, Permanent

SMALL = 16_384  # most messages
COPIED_HERE = 1 << 20  # bytes of a file; a larger one is copied in a thread
REST_SHARE = 4  # a cell that holds more than this part of its memory is not used again
LONG_S = 1.0  # after which a cell stands behind others

TOO_LARGE = (
    "the stage gave more than can leave a process of its own; save it in parts with ctx.items, spawn children, or run "
    "the stage with isolate=False"
)

#: What a cell asks goes here, and what it answers there. Raises: Malformed, which ends the cell as a crash does.
OnMessage = Callable[[bytes], Awaitable[bytes]]
Accept = Callable[[bytes], Awaitable[Any]]
OnStart = Callable[[int], None]


async def send(sock: socket.socket, kind: int, body: bytes = b"") -> None:
    """Send one whole message."""
    loop, head = asyncio.get_running_loop(), HEAD.pack(kind, len(body))
    if len(body) < CHUNK:
        head, body = head + body, b""
    await loop.sock_sendall(sock, head)
    if body:
        await loop.sock_sendall(sock, body)


oom_kills = OomKills()


class Inbox:
    """Whole messages from a socket, each of `most` bytes at most; a small one with a single read."""

    def __init__(self, sock: socket.socket, most: int = BODY_MAX) -> None:
        self._sock = sock
        self._most = most
        self._read = b""

    async def receive(self) -> tuple[int, bytes]:
        """The next one. Raises: EOFError when the other side is gone, Malformed when it talks nonsense."""
        while len(self._read) < HEAD.size:
            self._read += await self._more(SMALL)
        kind, size = HEAD.unpack_from(self._read)
        if kind > OUT_OF_MEMORY:
            raise Malformed(f"a message of kind {kind}")
        if size > self._most:
            raise TooLarge(f"a message of {size:,} bytes, at most {self._most:,} are read")
        end = HEAD.size + size
        body, self._read = self._read[HEAD.size : end], self._read[end:]
        if len(body) == size:
            return kind, body
        parts, missing = [body], size - len(body)
        while missing:
            parts.append(await self._more(min(missing, CHUNK)))
            missing -= len(parts[-1])
        return kind, b"".join(parts)

    async def _more(self, size: int) -> bytes:
        part = await asyncio.get_running_loop().sock_recv(self._sock, size)
        if not part:
            raise EOFError("the other side is gone")
        return part


class Call:
    """A call under way. `ended` is set when its cell is reaped, to None when that can no longer be known.

    A cell that answered well may serve another call: `rest` it, and call `talk` again.
    """

    def __init__(self, limits: Limits, sock: socket.socket, whose: str = "", den: Path | None = None) -> None:
        self.limits, self.sock, self.whose = limits, sock, whose
        self.den = den  # the only directory that a cell in a sandbox has for itself
        # it cannot have made a message of more than its memory
        self.inbox = Inbox(sock, min(BODY_MAX, max(limits.memory_bytes or BODY_MAX, CHUNK)))
        self.pid = 0
        self.ended: asyncio.Future[End | None] = asyncio.get_running_loop().create_future()
        self.asked = self.heard = time.monotonic()
        self.began: float | None = None
        self.answering = self.doomed = False
        self.cause: PerdureError | None = None
        self.seen: dict[int, str] = {}
        self.weighing: asyncio.Task[None] | None = None
        self.furnished = False  # all that it needs is there: it has to be ready soon
        self.behind = limits.behind  # it lets others go first
        self.served = 0  # calls before this one
        self.rested: float | None = None  # since when it waits for another
        self.accepted: Any = None  # what its answer was accepted as
        self.raised: Exception | None = None  # by us, to what it asked
        self.error: PerdureError | None = None  # that the call raised

    def rest(self, strays: Collection[int]) -> bool:
        """Whether the cell is as it was before its call, so that it can serve another one; `strays` may be its."""
        clean = not strays and tree(self.pid) == [self.pid] and threads(self.pid) == 1
        small = (
            self.limits.memory_bytes is None or memory([self.pid]) < self.limits.memory_bytes // REST_SHARE
        )
        if self.doomed or self.ended.done() or self.limits.cpu_s is not None or not (clean and small):
            return False
        if self.behind and not self.limits.behind:  # no process can take its niceness back
            return False
        self._weigh_no_more()
        self.served += 1
        self.rested = time.monotonic()
        self.began, self.cause, self.seen, self.furnished = None, None, {}, False
        self.raised = self.error = None
        return True

    async def furnish(self, file: Path | None) -> None:
        """Make the den of a cell in a sandbox ready for a call: empty but for a copy of its file. Raises: OSError."""
        if self.den is not None:
            large = file is not None and file.stat().st_size > COPIED_HERE
            if large or self.served:
                await asyncio.to_thread(_furnish, self.den, file)
            else:
                _furnish(self.den, file)

    async def leave(self) -> None:
        """Remove its den, once."""
        den, self.den = self.den, None
        if den is not None:
            await rooms.remove_soon(den)

    async def talk(
        self,
        target: str,
        payload: bytes,
        on_message: OnMessage,
        started: OnStart | None,
        accept: Accept | None = None,
    ) -> tuple[int, bytes] | None:
        """Hand over the call and answer its messages; its last one, or None when it fell silent for good or said what
        no cell can say, which ends it."""
        self.furnished, self.asked = True, time.monotonic()
        try:
            if not self.served:
                await self._greet()
                if self.behind:
                    stand_behind(self.pid)
            if started is not None:
                started(self.pid)
            self.began = self.heard = time.monotonic()
            await send(self.sock, CALL, target.encode())
            await send(self.sock, CALL, payload)
            while True:
                kind, body = await self.inbox.receive()
                if kind != ASK:
                    await self._last(kind, body, accept)
                    return kind, body
                self.answering = True
                kind, body = await self._answer(on_message, body)
                self.answering, self.heard = False, time.monotonic()
                await send(self.sock, kind, body)
                await asyncio.sleep(0)  # one that asks without end must not keep the loop from others
        except TooLarge as error:
            self.kill(Permanent("result_too_large", f"{TOO_LARGE} ({error})"))
            return None
        except Malformed as error:
            self.kill(CellCrashed("malformed", f"the process of this call sent a forged message: {error}"))
            return None
        except (EOFError, ConnectionError):
            return None

    async def _greet(self) -> None:
        """Before it has seen any user data: its pid, and where it may put files."""
        kind, body = await self.inbox.receive()
        if kind != READY or not body.isdigit() or len(body) > 10:
            raise Malformed("it did not begin with its pid")
        self.pid = int(body)
        await send(self.sock, CALL, os.fsencode(self.den or ""))

    async def _answer(self, on_message: OnMessage, body: bytes) -> tuple[int, bytes]:
        try:
            return ANSWER, await on_message(body)
        except Malformed:
            raise
        except Exception as error:
            self.raised = error
            return RAISED, encode_error(error)

    async def _last(self, kind: int, body: bytes, accept: Accept | None) -> None:
        """Look at what the call ended with before anything else is done with it. Raises: Malformed."""
        if kind == DONE:
            self.accepted = body if accept is None else await accept(body)
        elif kind == RAISED:
            error = decode_error(body)
            if isinstance(error, LeaseLost):  # which only we can know
                own = self.raised
                error = own if isinstance(own, LeaseLost) else RemoteError("LeaseLost", str(error))
            self.error = error
        elif kind != OUT_OF_MEMORY:
            raise Malformed(f"a message of kind {kind}")

    def check(self, now: float, strays: Collection[int]) -> None:
        """Kill the cell if it is over a limit; `strays` are processes of it that lost their parent."""
        if self.began is None or self.doomed:
            return
        silent_s = 0.0 if self.answering else now - self.heard
        cause: PerdureError | None = verdict.overdue(self.limits, now - self.began, silent_s)
        if cause is None:
            pids = [pid for root in (self.pid, *strays) for pid in tree(root)]
            self.seen = {pid: self.seen.get(pid) or birth(pid) for pid in pids}
            held = [memory([pid]) for pid in pids]
            cause = verdict.oversized(self.limits, max(held), len(pids))
            if cause is None and verdict.oversized(self.limits, sum(held), 0) is not None:
                self._weigh_soon(pids)
        if cause is not None:
            self.kill(cause)
        elif now - self.began > LONG_S and not self.behind:
            self.behind = True
            for pid in self.seen:  # all that it started: cells of others are to have the processor first
                stand_behind(pid)

    def _weigh_soon(self, pids: Collection[int]) -> None:
        """Forked processes share memory with their parent, which was counted for each: look closely, in a thread."""
        if self.weighing is None or self.weighing.done():
            self.weighing = asyncio.create_task(self._weigh(pids))

    async def _weigh(self, pids: Collection[int]) -> None:
        cause = verdict.oversized(self.limits, await asyncio.to_thread(unshared_memory, pids), 0)
        if cause is not None:
            self.kill(cause)

    def _weigh_no_more(self) -> None:
        if self.weighing is not None:
            self.weighing.cancel()

    def kill(self, cause: PerdureError | None = None) -> None:
        """Kill the cell and everything below it, at the latest when its pid is known. The first cause stands."""
        if self.ended.done():
            return
        self.doomed = True
        self.cause = self.cause or cause
        if self.pid:
            # Looked up before: a dead cell has no children. Remembered, for a cell that died before us.
            left = [pid for pid, began in self.seen.items() if began and birth(pid) == began]
            for pid in {*tree(self.pid), *left, -self.pid}:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def born(self, pid: int) -> None:
        """The cell has this pid."""
        self.pid = pid
        if self.doomed:
            self.kill()

    def end(self, end: End | None, cause: PerdureError | None = None) -> None:
        """The cell is gone."""
        self._weigh_no_more()
        if not self.ended.done():
            self.cause = self.cause or cause
            self.ended.set_result(end)

    def hang_up(self) -> None:
        """Nothing more is sent or awaited; what had arrived is still received."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def judge(self, last: tuple[int, bytes] | None) -> Any:
        """What the call returned, or raise why it did not. An answer that came whole counts, whatever came after."""
        match last:
            case (kind, _) if kind == DONE:
                accepted, self.accepted = self.accepted, None
                return accepted
            case (kind, _) if kind == RAISED and self.error is not None:
                raise self.error
            case (kind, _) if kind == OUT_OF_MEMORY:
                message = "MemoryError: the call ran into the limit of its address space"
                raise self._doubted(verdict.memory_exceeded(message))
        if self.cause is not None:
            raise self._doubted(self.cause)
        end = self.ended.result()
        if end is None or self.began is None:
            raise NurseryLost(f"the cell was gone before the call began ({end})")
        raise self._doubted(verdict.crash(self.limits, end, oom_kills.rose))

    def _doubted(self, cause: PerdureError) -> PerdureError:
        """The cause, or that it may be another call's."""
        if self.served and isinstance(cause, CellCrashed):
            return CellDoubtful(f"{cause}; its process had served {self.served} others before")
        return cause


def _furnish(den: Path, file: Path | None) -> None:
    rooms.empty(den)
    (den / TEMPORARY).mkdir(0o700)
    if file is not None:
        with file.open("rb") as source, (den / DOCUMENT).open("xb") as copy:  # x: never through a link
            shutil.copyfileobj(source, copy, CHUNK)
