"""The simulated machine room: one database with the real SQL, processes, time, and what befalls them.

A process may be killed or frozen at any moment. A killed one never runs again, and its locks are free at once.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import apsw

from perdure.errors import SchemaNewer, StoreBusy, StoreUnavailable
from perdure.store.migrate import known
from tests.sim.loop import BEGINS_S, VirtualLoop, running
from tests.sim.pairs import Touched
from tests.sim.promises import Violation

LEASE_S = 6.0
LARGE_BYTES = 100
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
    wake_lost: float = 0.0
    nursery_lost: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Faults:
        often = {"wake_lost": (0.0, 0.3, 1.0), "nursery_lost": (0.0, 0.1, 0.3), "frozen": (0.0, 0.01, 0.03)}
        usual = (0.0, 0.0, 0.01, 0.03, 0.08)
        return cls(**{each.name: rng.choice(often.get(each.name, usual)) for each in fields(cls)})


@dataclass
class World:
    """One seed's world."""

    seed: int
    rng: random.Random
    loop: VirtualLoop
    log: list[str] | None = None
    faults: Faults = field(default_factory=Faults)
    network: bool = False  # the store's connections can be lost, and their locks with them
    skew_ms: int = 0
    away_until_s: float = 0.0
    up_since_s: float = -1e9
    mended_s: float = 0.0
    migrated_s: float | None = None  # when the store began to need a newer release
    dependency_down: bool = False
    looks_late: bool = False  # who asks what is down waits for the answer
    over: bool = False
    violation: Violation | None = None  # the first one; the engine may swallow what is raised inside it
    seen: Counter[str] = field(default_factory=Counter)
    touched: Touched = field(default_factory=Touched)
    locks: dict[tuple[str, int], Process] = field(default_factory=dict)
    listeners: list[tuple[Process, Callable[[], None], Context]] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    graveyard: list[asyncio.Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = apsw.Connection(":memory:", statementcachesize=500)
        self.database.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self.database.deserialize("main", _empty_store())
        self.database.execute("PRAGMA foreign_keys = ON")
        self.database.create_scalar_function("perdure_now", lambda *_: self.now_ms(), 0)

    @cached_property
    def room(self) -> Path:
        """Where files of this world are, until its end."""
        memory = Path("/dev/shm")
        return Path(tempfile.mkdtemp(prefix="perdure-sim-", dir=memory if memory.is_dir() else None))

    def clear_out(self) -> None:
        """Leave no files behind."""
        if "room" in vars(self):
            shutil.rmtree(self.room)

    def now_ms(self) -> int:
        """The database's time; it may be set forward or back while faults last."""
        return int(self.loop.now_s * 1000) + self.skew_ms

    def happened(self, what: str, detail: object = "") -> None:
        """Count it, and tell it where somebody listens."""
        self.seen[what] += 1
        if self.log is not None:
            self.tell(f"{what}: {detail}")

    def tell(self, line: str) -> None:
        if self.log is not None and not self.over:
            self.log.append(f"{self.loop.now_s - BEGINS_S:9.3f} {line}")

    def violated(self, promise: str, text: str) -> None:
        """Note that a promise was broken; the world ends soon."""
        if self.violation is None:
            self.violation = Violation(promise, text)
            self.tell(f"VIOLATION {self.violation}")

    async def forever(self) -> None:
        """Where the code of a killed process stays; it is kept, so that not even its `finally` runs."""
        self.graveyard.append(self.loop.create_future())
        await self.graveyard[-1]

    def kill(self, process: Process, how: str, status: int = -9) -> None:
        """End the process, and with it those that it started."""
        for each in (process, *process.children):
            if each.alive and not self.over:
                each.alive, each.died_s, each.status = False, self.loop.now_s, status
                each.ended.set()
                self.happened(how, each.name)
        self.locks = {lock: holder for lock, holder in self.locks.items() if holder.alive}

    def freeze(self, process: Process, seconds: float) -> None:
        """Let the process stand still."""
        if self.over:
            return
        process.frozen_until_s = max(process.frozen_until_s, self.loop.now_s + seconds)
        self.happened(
            "frozen" if seconds < LEASE_S else "frozen beyond the lease", f"{process.name} {seconds:g} s"
        )

    def cut(self, process: Process) -> None:
        """Drop the process's connection: its locks are free although it lives, until it tends to them."""
        held = {lock for lock, holder in self.locks.items() if holder is process}
        process.lost_locks |= held
        process.was_cut = process.was_cut or bool(held)
        self.locks = {lock: holder for lock, holder in self.locks.items() if lock not in held}
        self.happened("connection cut", process.name)

    def outage(self, seconds: float) -> None:
        """The store is away for everybody; a server that restarts has lost every connection."""
        self.away_until_s = self.up_since_s = self.loop.now_s + seconds
        self.happened("outage", f"{seconds:g} s")
        if self.network:
            for process in filter(lambda each: each.alive, self.processes):
                self.cut(process)


class Process:
    """A process that may be killed or frozen; those of a family work under one registration."""

    def __init__(
        self, world: World, name: str, *, immune: bool = False, parent: Process | None = None
    ) -> None:
        self.world = world
        self.name = name
        self.immune = immune  # the hand that sets up and mends must not be struck itself
        self.alive = True
        self.died_s = 0.0
        self.status = 0
        self.ended = asyncio.Event()
        self.frozen_until_s = 0.0
        self.was_cut = False
        self.lost_locks: set[tuple[str, int]] = set()
        self.children: list[Process] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.family: Process = parent.family if parent is not None else self
        self.stop: Callable[[], object] = lambda: None  # asks it to end in good order
        self.serves: frozenset[str] = frozenset()  # the pipelines that it has
        self.release = 0  # of these pipelines
        self.began_s = world.loop.now_s
        if parent is not None:
            parent.children.append(self)
        world.processes.append(self)

    def start(self, main: Callable[[], Awaitable[None]]) -> None:
        async def live() -> None:
            running.set(self)
            try:
                await main()
                self.world.kill(self, "exited", 0)
            except (StoreBusy, StoreUnavailable):
                self.world.kill(self, "gave up", 1)  # somebody starts another
            except SchemaNewer:
                self.world.kill(self, "outdated", 1)

        self.tasks.append(self.world.loop.create_task(live(), name=self.name))

    def poll(self) -> int | None:
        """Its exit status, None while it lives."""
        return None if self.alive else self.status

    @property
    def outdated(self) -> bool:
        """Whether the store needs a newer release than its own, which it has had since it began."""
        migrated_s = self.world.migrated_s
        return migrated_s is not None and not self.immune and self.family.began_s < migrated_s

    @property
    def idle(self) -> bool:
        """Whether it has ended."""
        return not self.alive or all(task.done() for task in self.tasks)


def here() -> Process:
    """The process that runs this code."""
    process = running.get()
    assert isinstance(process, Process)
    return process


@cache
def _empty_store() -> bytes:
    """A database that has been set up, as bytes."""
    database = apsw.Connection(":memory:")
    database.create_scalar_function("perdure_now", lambda *_: 0, 0)
    database.execute("CREATE TABLE migration (name text, needs int, applied_ms bigint)")
    for migration in known("sqlite"):
        database.execute(migration.text)
        database.execute("INSERT INTO migration VALUES (?, ?, 0)", (migration.name, migration.needs))
    database.execute(EFFECTS)
    return database.serialize("main")
