"""Both stores answer alike: one random life, lived on SQLite and on PostgreSQL, leaves the same answers and rows."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from perdure.core.model import Job, Policy
from perdure.core.outcome import Orphaned, Outcome, outcome
from perdure.store.operations import (
    Beat,
    Cancel,
    EmittedRow,
    ItemOutput,
    NewDocument,
    NewJob,
    Promote,
    Raise,
    Requeue,
    Save,
    Settle,
)
from tests.store.making import DONE, LEASE_MS, QUEUE, World, dead, document, hold, later, output, retry

QUEUES, LANES, ORGS = (QUEUE, "films"), ("", "ocr", "ocr+openai"), ("acme", "zeta")
TABLES = (
    "document",
    "job",
    "attempt",
    "dead",
    "saved",
    "item",
    "emitted",
    "turn",
    "slot",
    "lane",
    "queue",
    "dependency",
    "act",
    "org",
)
#: made by chance or by the database: equal in meaning, not in value
UNLIKE = {"id", "token", "worker", "error_meta", "flush"}  # a flush is named after its worker


@dataclass
class Life:
    """One of the two, with the jobs it has in hand."""

    world: World
    hand: dict[str, Job] = field(default_factory=dict)
    stale: dict[str, Job] = field(default_factory=dict)

    def drop(self, key: str) -> Job:
        self.stale[key] = self.hand.pop(key)
        return self.stale[key]

    async def rows(self, table: str) -> list[tuple[Any, ...]]:
        """The table's rows in an order of their own, booleans as numbers."""
        unlike = UNLIKE - ({"id"} if table == "document" else set())
        found = await self.world.table(table)
        plain = [
            {k: int(v) if isinstance(v, bool) else v for k, v in row.items() if k not in unlike}
            for row in found
        ]
        return sorted((tuple(row.items()) for row in plain), key=repr)


Step = Callable[[Life], Awaitable[Any]]


class Fate:
    """Chooses what happens next; both lives are dealt the same."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.documents: list[NewDocument] = []

    def next(self, keys: list[str], stale: list[str]) -> Step:
        deals = [self.add, self.add, self.claim, self.claim, self.turn, self.operate, self.steer, self.sweep]
        if keys:
            deals += [lambda: self.settle(keys)] * 3 + [lambda: self.save(keys)] * 2
        if stale:
            deals.append(lambda: self.late(stale))
        return self.chance.choice(deals)()

    def add(self) -> Step:
        new = [self._document() for _ in range(self.chance.randint(1, 4))]
        self.documents += new
        return lambda life: life.world.store.add(new)

    def _document(self) -> NewDocument:
        chance = self.chance
        made = document(
            org=chance.choice(ORGS), dedupe=chance.choice([None, None, f"k{chance.randrange(9)}"]),
            queue=chance.choice(QUEUES), lane=chance.choice(LANES), priority=chance.choice([0, 0, 5, -3]),
            delay_ms=chance.choice([0, 0, 2_000]), limit_key=chance.choice([None, None, "k1", "k2"]),
            policy=Policy(attempts=3, hooks=chance.choice([(), ("done", "dead")])),
        )  # fmt: skip
        return replace(made, id=f"r{len(self.documents):03}-{chance.randrange(10**6)}")

    def claim(self) -> Step:
        limit, suspects = self.chance.randint(0, 4), self.chance.randint(0, 2)

        async def step(life: Life) -> list[Any]:
            found = await life.world.claim(limit, suspects, queues=QUEUES)
            life.hand |= {c.job.key: c.job for c in found}
            return [(replace(c.job, id=0, token=0, worker=0), c.document) for c in found]

        return step

    def turn(self) -> Step:
        ms = self.chance.choice([100, 1_000, 3_000, LEASE_MS + 1])

        async def step(life: Life) -> None:
            life.world.clock.turn(ms)

        return step

    def settle(self, keys: list[str]) -> Step:
        key, lane = self.chance.choice(keys), self.chance.choice(LANES)
        endings: list[Outcome] = [
            DONE, DONE, dead("bad"), dead(charged=False), later(), later(1_500, released=True), hold(),
            later(0, suspect=True, counted=False), retry(1_000, crashes=1, suspect=True), retry(),
        ]  # fmt: skip
        ending = self.chance.choice(endings)

        async def step(life: Life) -> bool:
            job = life.drop(key)
            fair = (
                ending if job.attempts < job.attempts_max or not isinstance(ending, type(retry())) else DONE
            )
            return await life.world.store.settle(Settle(job, fair, job.stage, lane))

        return step

    def save(self, keys: list[str]) -> Step:
        key, number = self.chance.choice(keys), self.chance.randrange(3)
        child = replace(document("child"), id=f"c{self.chance.randrange(10**6)}", org=ORGS[0])

        async def step(life: Life) -> bool:
            return await life.world.store.save(self._save(life.hand[key], number, child))

        return step

    def _save(self, job: Job, number: int, child: NewDocument) -> Save:
        return Save(
            job, f"s{number}", LANES[number], LEASE_MS, suspect=number == 0,
            output=output(f"s{number}", str(number).encode()),
            items=tuple(ItemOutput("s", str(n), "f", 1, b"x") for n in range(number)),
            rows=tuple(EmittedRow("v", str(n), str(number).encode()) for n in range(number)),
            documents=(replace(child, org=job.org),) if number == 1 else (),
            jobs=(NewJob("connect", "films", "connect", name="connect"),) if number == 2 else (),
        )  # fmt: skip

    def late(self, stale: list[str]) -> Step:
        key = self.chance.choice(stale)

        async def step(life: Life) -> tuple[bool, bool]:
            job, store = life.stale[key], life.world.store
            return await store.save(self._save(job, 0, document())), await life.world.settle(job, DONE)

        return step

    def operate(self) -> Step:
        chosen, verb = self.chance.choice(self.documents or [document()]), self.chance.randrange(3)
        again = NewJob("books", QUEUE, "extract", limit_key="k1")
        org = chosen.org if self.chance.random() < 0.9 else "stranger"

        async def step(life: Life) -> str:
            store = life.world.store
            if verb == 0:
                return await store.requeue(Requeue(org, chosen.id, again, fresh_from="s1", by="ann"))
            if verb == 1:
                return await store.raise_(Raise(org, chosen.id, by="ann"))
            return await store.cancel(Cancel(org, chosen.id, by="ann"))

        return step

    def steer(self) -> Step:
        verb, name, number = (
            self.chance.randrange(5),
            self.chance.choice(["ocr", "openai"]),
            self.chance.randint(1, 4),
        )

        async def step(life: Life) -> None:
            store = life.world.store
            match verb:
                case 0:
                    await store.hold(name, "away", by="ann")
                case 1:
                    await store.release(name, by="ann")
                case 2:
                    await store.pause(QUEUES[number % 2], number == 4)
                case 3:
                    await store.limit(f"k{1 + number % 2}", number, None)
                case 4:
                    await store.weigh(ORGS[number % 2], float(number))

        return step

    def sweep(self) -> Step:
        async def step(life: Life) -> list[Any]:
            store, answers = life.world.store, []
            for job in await store.expired(100):
                ending = outcome(job, Orphaned(job.stage, "lease expired"))
                answers.append(
                    (job.key, await store.settle(Settle(job, ending, job.stage, job.lane, expired_only=True)))
                )
            beat = Beat(life.world.worker, tuple((j.id, j.token) for j in life.hand.values()))
            lost = await store.beat(beat)
            gone = sorted(key for key, j in life.hand.items() if (j.id, j.token) in lost)
            for key in gone:
                life.drop(key)
            await store.refill()
            return [*answers, gone, await store.promote(Promote()), await store.prune(60_000, 20)]

        return step


@pytest.mark.parametrize("seed", range(3))
async def test_a_random_life_is_the_same_on_both(tmp_path: Path, postgres_url: str, seed: int) -> None:
    fate = Fate(seed)
    async with World(f"sqlite:///{tmp_path}/perdure.db") as sqlite, World(postgres_url) as postgres:
        one, other = Life(sqlite), Life(postgres)
        told: list[Any] = []
        for _ in range(150):
            step = fate.next(sorted(one.hand), sorted(one.stale))
            told.append((await step(one), await step(other)))
            assert told[-1][0] == told[-1][1]
        for table in TABLES:
            assert await one.rows(table) == await other.rows(table), table
        assert await sqlite.store.tally() == await postgres.store.tally()
        for d in fate.documents:
            assert await sqlite.store.status(d.org, d.id) == await postgres.store.status(d.org, d.id)
        assert await sqlite.store.documents(limit=500) == await postgres.store.documents(limit=500)
        lived = {row["outcome"] for row in await sqlite.table("attempt")}
    assert lived - {"cancelled"} == {"done", "dead", "retry", "later", "hold"}  # it was a full life
