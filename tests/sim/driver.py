"""The database as one process reaches it, and the store over it.

A call is one step: it may come late, find the database busy or away, be applied without its reply arriving, or be the
moment at which its process is killed or frozen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, TypeVar

from perdure.core.model import Job
from perdure.errors import StoreBusy, StoreError, StoreUnavailable
from perdure.store.base import Steps
from perdure.store.dead import Key
from perdure.store.operations import Save, Settle
from perdure.store.sql_store import SqlStore
from perdure.store.sqlite import drive, mapped
from perdure.store.sqlite_dialect import SqliteDialect
from tests.sim.world import Faults, Process

if TYPE_CHECKING:
    from tests.sim.book import Book

T = TypeVar("T")
CALM = Faults()
LATE_S = 0.02  # after its process died a commit arrives


class SimDriver:
    """What a process may ask of the database."""

    lost: StoreError | None = None

    def __init__(self, process: Process, book: Book) -> None:
        self.process = process
        self.world = process.world
        self.book = book
        self.dialect = SqliteDialect()

    @property
    def faults(self) -> Faults:
        return CALM if self.process.immune else self.world.faults

    async def location(self) -> str:
        return "simulated"

    async def oldest_writer(self) -> None:
        return None

    def exposed(self) -> None:
        return None

    async def durability(self) -> dict[str, str]:
        return {}

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def script(self, text: str) -> None:
        raise AssertionError("the schema is there")

    # --- transactions ----------------------------------------------------------------------------

    async def write_aside(self, steps: Callable[[], Steps[T]]) -> T:
        return await self.write(steps)

    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        world, faults = self.world, self.faults
        if self._struck(faults.frozen):
            world.freeze(self.process, world.rng.choice((1.0, 9.0, 12.0, 20.0)))
        await self._travel()
        if self._struck(faults.killed_before):
            if world.network and world.rng.random() < 0.5:
                world.loop.call_later(LATE_S, self._arrive, steps, context=Context())
            await self._killed("killed before a commit")
        if self._struck(faults.busy):
            world.happened("busy", self.process.name)
            raise StoreBusy("simulated")
        self._reach()
        answer = self._transact(steps)
        if self._struck(faults.killed_after):
            await self._killed("killed after a commit")
        if self._struck(faults.reply_lost):
            world.happened("reply lost", self.process.name)
            raise StoreUnavailable("simulated: the reply was lost")
        await self._travel()
        return answer

    def _transact(self, steps: Callable[[], Steps[T]]) -> T:
        database = self.world.database
        self.book.begin()
        database.execute("BEGIN IMMEDIATE")
        try:
            with mapped():
                answer = drive(database, steps())
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")
        self.book.committed(self.process)
        return answer

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        await self._travel()
        self._reach()
        return drive(self.world.database, steps())

    async def snapshot(self, steps: Callable[[], Steps[T]]) -> T:
        return await self.read(steps)

    # --- what befalls a call ---------------------------------------------------------------------

    def _struck(self, chance: float) -> bool:
        return chance > 0 and self.world.rng.random() < chance

    def _reach(self) -> None:
        if self.process.immune:
            return
        if self.world.loop.now_s < self.world.away_until_s:
            raise StoreUnavailable("simulated: an outage")
        if self._struck(self.faults.away):
            self.world.happened("away", self.process.name)
            raise StoreUnavailable("simulated")

    async def _killed(self, how: str) -> None:
        self.world.kill(self.process, how)
        await self.world.forever()

    def _arrive(self, steps: Callable[[], Steps[T]]) -> None:
        """What a process had sent when it was killed reaches the server, unless that refuses it."""
        if not self.world.over and self.world.loop.now_s >= self.world.away_until_s:
            self.world.happened("commit of a dead process", self.process.name)
            with suppress(Exception):
                self._transact(steps)

    async def _travel(self) -> None:
        if self.world.over:
            raise asyncio.CancelledError
        rng, faults = self.world.rng, self.faults
        longest_s = 0.005
        if self._struck(faults.slow):
            self.world.happened("slow", self.process.name)
            longest_s = 2.0
        await asyncio.sleep(rng.random() * longest_s)

    # --- locks and wake-ups ----------------------------------------------------------------------

    async def lock(self, name: str, number: int) -> bool:
        self._reach()
        return self.world.locks.setdefault((name, number), self.process) is self.process

    async def unlock(self, name: str, number: int) -> None:
        self.process.lost_locks.discard((name, number))
        if self.world.locks.get((name, number)) is self.process:
            del self.world.locks[name, number]

    async def locked(self, name: str, numbers: Sequence[int]) -> set[int]:
        self._reach()
        return {number for number in numbers if (name, number) in self.world.locks}

    async def tend(self) -> None:
        self._reach()
        for lock in sorted(self.process.lost_locks):
            self.world.locks.setdefault(lock, self.process)
        self.process.lost_locks.clear()

    async def up_for_s(self) -> float:
        return self.world.loop.now_s - self.world.up_since_s if self.world.network else 1e9

    async def wake(self) -> None:
        for process, heard, context in self.world.listeners:
            if not process.alive:
                continue
            if self._struck(self.faults.wake_lost):
                self.world.happened("wake-up lost")
            else:
                self.world.loop.call_later(self.world.rng.random() * 0.005, heard, context=context)

    async def listen(self, heard: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        listener = (self.process, heard, copy_context())
        self.world.listeners.append(listener)

        async def stop() -> None:
            self.world.listeners.remove(listener)

        return stop


class SimStore(SqlStore):
    """The real store; what it answers is held against what is there."""

    def __init__(self, process: Process, book: Book) -> None:
        self.process = process
        self.book = book
        super().__init__(SimDriver(process, book), "sqlite")

    @property
    def needs_sign_of_life(self) -> bool:
        return self.process.world.network

    async def save(self, save: Save) -> bool:
        await self._strike()
        kept, j = await super().save(save), save.job
        self.book.count_fenced()
        for output in (save.output,) if kept and save.output else ():
            if (j.document_id, j.pipeline, output.stage, j.generation) not in self.book.saved:
                self._violated(j, f"{j.key}.{output.stage} was answered as saved but is not")
        for item in save.items if kept and j.id in self.book.jobs else ():
            if (j.document_id, j.pipeline, item.stage, j.generation, item.key) not in self.book.items:
                self._violated(j, f"item {item.key} of {j.key} was answered as saved but is not")
        return kept

    async def settle(self, settle: Settle) -> bool:
        await self._strike()
        kept, j = await super().settle(settle), settle.job
        self.book.count_fenced()
        if kept and (j.key, j.generation, j.claims) not in self.book.ended:
            self._violated(j, f"claim {j.claims} of {j.key} was answered as ended but is not")
        return kept

    async def down(self) -> frozenset[str]:
        if self.process.world.looks_late:
            await asyncio.sleep(1.0)
        return await super().down()

    async def purge(
        self, which: Sequence[Key], states: tuple[str, ...] = ("dead",), generations: Mapping[Key, int] | None = None,
        act: tuple[str, str] | None = None,
    ) -> dict[Key, str]:  # fmt: skip
        """Whoever deletes what it has looked at often stands still in between."""
        world = self.process.world
        if not self.process.immune and not world.mended_s and world.rng.random() < 0.3:
            world.freeze(self.process, 9.0)
            await asyncio.sleep(0.0)
        return await super().purge(which, states, generations, act)

    def _violated(self, job: Job, text: str) -> None:
        if job.document_id not in self.book.leaving.ever:
            self.process.world.violated("acknowledged", text)

    async def _strike(self) -> None:
        """Who writes is frozen more often, with its whole machine: late writes are what leases are about."""
        world = self.process.world
        if world.rng.random() < world.faults.frozen * 3:
            for process in {self.process.family: 0, self.process: 0}:
                world.freeze(process, 15.0)
            await asyncio.sleep(0.0)
