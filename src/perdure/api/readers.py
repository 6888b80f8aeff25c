"""Processes that read heavy JSON, so that the server goes on answering others meanwhile.

A parser holds the interpreter until it is through, in a thread too, and several threads share one interpreter: half a
million values took the server from everybody else for seconds. A process of its own has its own interpreter, stands
behind the server (`nice`), and gives its memory back. It is started for the first heavy body and ended when there has
been none for a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from perdure.api import answers
from perdure.api.answers import BYTES_MAX
from perdure.api.reader import HEAD_BYTES
from perdure.api.refused import Refused
from perdure.engine.wire import Malformed

PLACES, PLACES_OF_ONE = 2, 1
IDLE_S = 60.0
READ_S = 120.0  # that a body may take, which takes seconds on a machine that does nothing else
BUFFER_BYTES = 1 << 20
#: It needs to find Python and us, and no secret.
ENVIRONMENT = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "TMPDIR",
    "VIRTUAL_ENV",
)
log = logging.getLogger("perdure.api")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Reader:
    """One process, idle or at work."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.timer: asyncio.TimerHandle | None = None  # that ends it when it stays idle

    @classmethod
    async def start(cls) -> Reader:
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "perdure.api.reader", stdin=PIPE, stdout=PIPE, limit=BUFFER_BYTES, env=environment,
            start_new_session=True,
        )  # fmt: skip
        return cls(process)

    async def run(self, piece: bytes) -> bytes:
        """What came of it. Raises: OSError, EOFError if the process has ended; Malformed."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        to.write(len(piece).to_bytes(HEAD_BYTES) + piece)
        await to.drain()
        size = int.from_bytes(await back.readexactly(HEAD_BYTES))
        if size > BYTES_MAX:
            raise Malformed("an answer of a process that reads JSON is too long")
        return await back.readexactly(size)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.kill()
        await self._process.wait()


class Readers:
    """All of them. At most `most` work at a time, `most_of_one` for one organisation; others wait for their turn."""

    def __init__(self, most: int = PLACES, most_of_one: int = PLACES_OF_ONE) -> None:
        self._places = Places(most, most_of_one)
        self._idle: list[Reader] = []
        self._ending: set[asyncio.Task[None]] = set()

    async def run(
        self,
        org: str,
        work: Callable[[*Ts], T],
        *args: *Ts,
        room: Path | None = None,
        took: Callable[[float], None] = lambda _: None,
    ) -> T:
        """Do the work, a function of a module, in one of the processes; files that come of it are in the room. `took`
        gets the seconds that the process worked. Raises: the errors of the work; Refused."""
        piece = pickle.dumps((work, args), pickle.HIGHEST_PROTOCOL)
        try:
            async with self._places.place(org):
                began_s = time.monotonic()
                try:
                    answer = await self._answer(piece)
                finally:
                    took(time.monotonic() - began_s)
            result: T = await asyncio.to_thread(answers.decode, answer, room)
        except Malformed as error:
            log.error("%s", error)
            for reader in tuple(self._idle):  # one of them gave it
                self._end(reader)
            raise _ended() from None
        return result

    async def _answer(self, piece: bytes) -> bytes:
        while self._idle:
            with suppress(OSError, EOFError):  # it was killed meanwhile
                return await self._run(self._idle.pop(), piece)
        try:
            return await self._run(await Reader.start(), piece)
        except (OSError, EOFError):
            raise _ended() from None

    async def _run(self, reader: Reader, piece: bytes) -> bytes:
        if reader.timer is not None:
            reader.timer.cancel()
        try:
            async with asyncio.timeout(READ_S):
                answer = await reader.run(piece)
        except BaseException as error:  # it may be anywhere in its work
            self._end(reader)
            if isinstance(error, TimeoutError):
                raise EOFError from error
            raise
        self._idle.append(reader)
        reader.timer = asyncio.get_running_loop().call_later(IDLE_S, self._end, reader)
        return answer

    def _end(self, reader: Reader) -> None:
        if reader in self._idle:
            self._idle.remove(reader)
        reader.kill()  # at once: the directory that it writes to is about to be removed
        task = asyncio.create_task(reader.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all of them."""
        for reader in tuple(self._idle):
            self._end(reader)
        await asyncio.gather(*self._ending)


def _ended() -> Refused:
    said = "the body could not be read: the process that read it was killed; try again later"
    return Refused(503, "reader_ended", said, retry_after_s=5)


class Places:
    """Places at work: at most so many, and fewer of one organisation; who waits longest is next."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most_of_one = most_of_one
        self._all = asyncio.Semaphore(most)
        self._of: dict[str, asyncio.Semaphore] = {}
        self._wanting: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, org: str) -> AsyncIterator[None]:
        """Wait for a place; one organisation cannot have all of them."""
        own = self._of.setdefault(org, asyncio.Semaphore(self._most_of_one))
        self._wanting[org] += 1
        try:
            async with own, self._all:
                yield
        finally:
            self._wanting[org] -= 1
            if not self._wanting[org]:
                del self._wanting[org], self._of[org]
