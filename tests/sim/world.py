"""The simulated machine room: one database with the real SQL, processes with the real engine, and what befalls them.

A store call is one step: it may come late, find the database busy or away, be applied without its reply arriving, or be
the moment at which its process is killed or frozen. A killed process never runs again; its locks are free at once.
"""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import apsw

from perdure.core.events import Events
from perdure.core.lane import lane_of
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.isolate import CellCrashed, Limits
from perdure.engine.keeper import Keeper
from perdure.engine.pipeline import find_target
from perdure.engine.runner import Runner
from perdure.engine.slate import Slate
from perdure.engine.stage_cell import Assignment, LocalFile, conclude, load
from perdure.engine.sweeper import Retention, Sweeper
from perdure.engine.worker import Worker
from perdure.errors import StoreBusy, StoreUnavailable
from perdure.store.base import Steps
from perdure.store.migrate import known
from perdure.store.operations import EmittedRow
from perdure.store.sql_store import SqlStore
from perdure.store.sqlite import drive, mapped
from perdure.store.sqlite_dialect import SqliteDialect
from tests.sim.documents import after, books, in_cell, process_now
from tests.sim.ledger import Ledger
from tests.sim.loop import running

T = TypeVar("T")
OnMessage = Callable[[bytes], Awaitable[bytes]]
QUEUES = ("documents",)
EFFECTS = "CREATE TABLE effect (document_id text, stage text, generation int)"


@dataclass
class Faults:
    """How likely each misfortune is at a store call; a seed draws its own mix."""

    busy: float = 0.0
    away: float = 0.0
    reply_lost: float = 0.0
    killed_before: float = 0.0
    killed_after: float = 0.0
    frozen: float = 0.0
    slow: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Faults:
        return cls(**{name: rng.choice((0.0, 0.0, 0.01, 0.03, 0.08)) for name in cls.__dataclass_fields__})


@dataclass
class World:
    """One seed's world."""

    seed: int
    rng: random.Random
    loop: Any
    ledger: Ledger = field(default_factory=Ledger)
    faults: Faults = field(default_factory=Faults)
    over: bool = False
    skew_ms: int = 0
    dependency_down: bool = False
    locks: dict[tuple[str, int], Process] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    graveyard: list[asyncio.Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = apsw.Connection(":memory:")
        self.database.execute("PRAGMA foreign_keys = ON")
        self.database.create_scalar_function("perdure_now", lambda *_: self.now_ms(), 0)
        self.database.execute("CREATE TABLE migration (name text, needs int, applied_ms bigint)")
        for migration in known("sqlite"):
            self.database.execute(migration.text)
            self.database.execute("INSERT INTO migration VALUES (?, ?, 0)", (migration.name, migration.needs))
        self.database.execute(EFFECTS)

    def now_ms(self) -> int:
        """The database's time; it may be set forward or back while faults last."""
        return int(self.loop.now_s * 1000) + self.skew_ms

    async def forever(self) -> None:
        """Where the code of a killed process stays; it is kept, so that not even its `finally` runs."""
        self.graveyard.append(self.loop.create_future())
        await self.graveyard[-1]

    def kill(self, process: Process) -> None:
        process.alive = False
        self.locks = {lock: holder for lock, holder in self.locks.items() if holder is not process}


class Process:
    """A process that may be killed or frozen at every store call and pause."""

    def __init__(self, world: World, name: str, immune: bool = False) -> None:
        self.world = world
        self.name = name
        self.immune = immune  # the hand that sets up and mends must not be struck itself
        self.alive = True
        self.frozen_until_s = 0.0
        self.tasks: list[asyncio.Task[Any]] = []
        world.processes.append(self)

    def start(self, main: Callable[[], Awaitable[None]]) -> None:
        async def live() -> None:
            process_now.set(self)
            running.set(self)
            try:
                await main()
            except (StoreBusy, StoreUnavailable):  # it gave up and exited; somebody starts another
                self.world.kill(self)

        self.tasks.append(self.world.loop.create_task(live()))

    async def pause(self, seconds: float) -> None:
        """Sleep as this process: not at all while frozen, never again when dead."""
        await asyncio.sleep(seconds)
        await self.present()

    async def present(self) -> None:
        if self.world.over:
            raise asyncio.CancelledError
        while self.alive and self.world.loop.now_s < self.frozen_until_s:
            await asyncio.sleep(self.frozen_until_s - self.world.loop.now_s)
        if not self.alive:
            await self.world.forever()

    async def crash(self, document_id: str) -> None:
        """A document takes down what it runs in: its cell, or the whole worker."""
        self.world.ledger.crashed(document_id, alone=in_cell.get())
        if in_cell.get():
            raise CellCrashed("SIGKILL")
        self.world.kill(self)
        await self.world.forever()


class SimDriver:
    """The database as one process reaches it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.dialect = SqliteDialect()
        self._calm = Faults()

    @property
    def faults(self) -> Faults:
        return self._calm if self.process.immune else self.world.faults

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def script(self, text: str) -> None:
        raise AssertionError("the schema is there")

    async def tend(self) -> None:
        await self.process.present()

    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        world, faults, rng = self.world, self.faults, self.world.rng
        await self._travel()
        if rng.random() < faults.killed_before:
            world.kill(self.process)
            await world.forever()
        if rng.random() < faults.busy:
            raise StoreBusy("simulated")
        if rng.random() < faults.away:
            raise StoreUnavailable("simulated")
        answer = self._transact(steps)
        if rng.random() < faults.killed_after:
            world.kill(self.process)
            await world.forever()
        if rng.random() < faults.reply_lost:
            raise StoreUnavailable("simulated: the reply was lost")
        await self._travel()
        return answer

    def _transact(self, steps: Callable[[], Steps[T]]) -> T:
        database = self.world.database
        before = self.world.ledger.snapshot(database)
        database.execute("BEGIN IMMEDIATE")
        try:
            with mapped():
                answer = drive(database, steps())
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")
        self.world.ledger.check_step(database, before, self.world.now_ms())
        return answer

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        await self._travel()
        if self.world.rng.random() < self.faults.away:
            raise StoreUnavailable("simulated")
        return drive(self.world.database, steps())

    async def _travel(self) -> None:
        rng, faults = self.world.rng, self.faults
        if rng.random() < faults.frozen:
            self.process.frozen_until_s = self.world.loop.now_s + rng.choice((1.0, 5.0, 9.0, 20.0))
        await asyncio.sleep(rng.random() * (2.0 if rng.random() < faults.slow else 0.005))
        await self.process.present()

    async def lock(self, name: str, number: int) -> bool:
        await self.process.present()
        holder = self.world.locks.setdefault((name, number), self.process)
        return holder is self.process

    async def unlock(self, name: str, number: int) -> None:
        if self.world.locks.get((name, number)) is self.process:
            del self.world.locks[name, number]

    async def locked(self, name: str, numbers: Sequence[int]) -> set[int]:
        await self.process.present()
        return {number for number in numbers if (name, number) in self.world.locks}

    async def up_for_s(self) -> float:
        return 1e9

    async def wake(self) -> None: ...

    async def listen(self, heard: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        async def stop() -> None: ...

        return stop


class SimNursery:
    """Cells without processes: the stage runs here, told that it is alone."""

    async def warm(self) -> None: ...
    async def close(self) -> None: ...

    async def run(
        self, target: str, payload: bytes, on_message: OnMessage, limits: Limits, started: Any = None
    ) -> bytes:
        work: Assignment = pickle.loads(payload)
        stage = find_target(work.target)
        document = Document.from_payload(work.document, LocalFile(None))
        context = Context(
            _CellPort(on_message, work.items), document, stage.name, version=stage.version, attempt=work.attempt,
            generation=work.generation, input_hash=work.input_hash, is_async=True,
        )  # fmt: skip
        values = load(stage, work.raws)
        token = in_cell.set(True)
        try:
            returned = await stage.fn(**stage.arguments(document, context, values, work.input))
        finally:
            in_cell.reset(token)
        produced, rows, _ = conclude(stage, document, context, values, returned)
        return pickle.dumps((produced, rows))


class _CellPort:
    revoked = False

    def __init__(self, on_message: OnMessage, items: dict[str, bytes]) -> None:
        self._on_message, self._items = on_message, items

    def saved_items(self) -> dict[str, bytes]:
        return self._items

    def save_item_sync(self, key: str, value: bytes, rows: list[EmittedRow]) -> None:
        raise AssertionError("stages here are async")

    async def save_item(self, key: str, value: bytes, rows: list[EmittedRow]) -> None:
        await self._on_message(pickle.dumps(("item", key, value, rows)))

    def progress(self, done: float, total: float | None) -> None: ...


def new_store(process: Process) -> SqlStore:
    return SqlStore(SimDriver(process), "sqlite")


def start_worker(world: World, name: str, concurrency: int) -> Process:
    """A worker process: keeper and worker with a connection each, as `app.run()` has them."""
    process = Process(world, name)

    async def main() -> None:
        events, slate = Events(), Slate.private()
        keeping, working = new_store(process), new_store(process)
        await keeping.open()
        await working.open()
        worker_id = await keeping.register("worker", name, QUEUES)
        world.ledger.worker_is(worker_id, process)
        keeper = Keeper(keeping, events, worker_id, slate, Sweeper(keeping, events, Retention(every_s=1e9)))
        nursery: Any = SimNursery()
        blobs: Any = None
        runner = Runner(working, blobs, {"books": books, "after": after}, events, nursery, slate)
        worker = Worker(working, runner, slate, worker_id, QUEUES, concurrency, poll_s=0.5)
        await asyncio.gather(keeper.run(asyncio.Event()), worker.run())

    process.start(main)
    return process


LANES = ("", lane_of(["dep"]))
