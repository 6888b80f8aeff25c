"""Limits of organisations and dependencies: alone, together and with a key of their own, whatever ends a claim."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from perdure.core.lane import uses_of
from perdure.core.model import Job
from perdure.core.outcome import Outcome
from perdure.store.operations import Cancel, NewJob, Promote, Raise, Requeue, Settle
from perdure.store.records import Claimed
from perdure.store.sql_store import SqlStore
from tests.store.making import DONE, ORG, QUEUE, World, dead, document, hold, later, output, retry, save

HOST = "example.com"
ACME = f"org:{ORG}"


async def running(world: World) -> Counter[str]:
    """What is used of each limit, as the jobs tell."""
    used: Counter[str] = Counter()
    rows = await world.query("SELECT org, coalesce(home, lane), limit_key FROM job WHERE state = 'running'")
    for org, lane, key in rows:
        used.update([f"org:{org}", *(f"dependency:{name}" for name in uses_of(lane))])
        used.update([key] if key else [])
    return used


async def waiting(world: World) -> dict[str, int]:
    sql = "SELECT limit_key, count(*) FROM job WHERE state = 'parked' GROUP BY limit_key"
    return dict(await world.query(sql))


async def test_an_organisation_runs_so_many_at_once_and_others_go_on(world: World) -> None:
    await world.store.limit(ACME, 2, None)
    await world.add(*(document(f"a{n}") for n in range(5)), *(document(f"b{n}", org="b") for n in range(3)))

    assert {c.document.name for c in await world.claim(9)} == {"a0", "a1", "b0", "b1", "b2"}
    assert await world.claim(9) == []
    assert await waiting(world) == {ACME: 3}
    assert await world.miscounted() == {}


async def test_room_that_a_job_leaves_is_used_by_the_claim_of_the_same_worker(world: World) -> None:
    await world.store.limit(ACME, 1, None)
    await world.add(*(document(f"a{n}") for n in range(6)))
    job = await world.take()
    endings: list[Outcome] = [DONE, dead(), retry(1_000), later(1_000), retry(0)]
    for ending, comes in zip(endings, ("a1", "a2", "a3", "a4", "a4"), strict=True):
        await world.settle(job, ending)
        (claimed,) = await world.claim(9)
        assert claimed.document.name == comes
        job = claimed.job
    await world.store.cancel(Cancel(ORG, job.document_id))
    assert [c.document.name for c in await world.claim(9)] == ["a5"]


async def test_queues_take_turns_under_limits_as_they_do_without(world: World) -> None:
    await world.store.declare(QUEUES, [""])
    await world.store.limit(ACME, 1, None)
    await world.add(*(document(f"a{n}", org="b") for n in range(9)))
    for _ in range(3):  # the turns of this queue go on, those of the other one do not
        for claimed in await world.claim(1):
            await world.settle(claimed.job, DONE)
    await world.add(*(document(f"f{n}", org="b", queue="films") for n in range(9)), document("late"))

    for _ in range(2):
        found = await world.claim(4, queues=QUEUES)
        assert Counter(c.job.queue for c in found) == {QUEUE: 2, "films": 2}
        assert sum(c.document.org == ORG for c in found) <= 1


async def test_a_dependency_lets_so_many_through_whatever_their_organisation(world: World) -> None:
    await world.store.declare([QUEUE], ["openai", "ocr+openai", "vision?"])
    await world.store.limit("dependency:openai", 2, None)
    await world.store.limit("dependency:vision", 1, None)
    for n, lane in enumerate(("openai", "ocr+openai", "openai", "", "vision?", "vision?")):
        await world.add(document(f"n{n}", org=f"o{n}", lane=lane))

    assert {c.document.name for c in await world.claim(9)} == {"n0", "n1", "n3", "n4"}
    assert await waiting(world) == {"dependency:openai": 1, "dependency:vision": 1}


async def test_a_save_that_leaves_the_dependency_makes_room(world: World) -> None:
    await world.store.declare([QUEUE], ["openai"])
    await world.store.limit("dependency:openai", 1, None)
    await world.add(*(document(f"n{n}", lane="openai") for n in range(2)))
    (first,) = await world.claim(9)

    assert await world.store.save(save(first.job, output=output("extract")))

    assert [c.document.name for c in await world.claim(9)] == ["n1"]


async def test_a_document_that_waits_for_its_organisation_takes_no_room_of_its_host(world: World) -> None:
    await world.store.limit(ACME, 1, None)
    await world.store.limit(HOST, 1, None)
    await world.add(document("elsewhere"))
    await world.take()
    await world.add(*(document(f"a{n}", limit_key=HOST) for n in range(40)))
    await world.add(document("b", org="b", limit_key=HOST))

    found: list[Claimed] = []
    for _ in range(10):
        found += await world.claim(9)
        await world.store.refill()
    assert [c.document.name for c in found] == ["b"]
    assert (await running(world))[HOST] == 1
    assert await world.miscounted() == {}


async def test_from_its_organisation_a_document_goes_on_to_the_limit_of_its_host(world: World) -> None:
    await world.store.limit(ACME, 1, None)
    await world.store.limit(HOST, 1, None)
    await world.add(document("elsewhere"))
    elsewhere = await world.take()
    await world.add(document("a", limit_key=HOST))
    await world.add(document("b", org="b", limit_key=HOST))
    assert await world.claim(9) == []  # the one of the host waits for its organisation, and lets the other in
    (b,) = await world.claim(9)

    await world.settle(elsewhere, DONE)
    assert await world.claim(9) == []
    assert await waiting(world) == {HOST: 1}
    await world.settle(b.job, DONE)

    assert [c.document.name for c in await world.claim(9)] == ["a"]
    assert await world.miscounted() == {}


async def test_a_rate_of_an_organisation_and_of_a_dependency_is_kept(world: World) -> None:
    await world.store.declare([QUEUE], ["openai"])
    await world.store.limit(ACME, None, 2.0)
    await world.store.limit("dependency:openai", None, 0.5)
    await world.add(*(document(f"a{n}") for n in range(9)))
    await world.add(*(document(f"b{n}", org="b", lane="openai") for n in range(9)))
    began = Counter[str]()
    for _ in range(8):
        for claimed in await world.claim(9):
            began[claimed.document.org] += 1
            await world.settle(claimed.job, DONE)
        world.clock.turn(500)
    # one at once, then those of 3.5 s
    assert (began[ORG], began["b"]) == (8, 2)


async def test_a_higher_limit_a_lower_one_and_none_take_effect_at_once(world: World) -> None:
    await world.add(*(document(f"a{n}") for n in range(9)))
    await world.claim(3)
    await world.store.limit(ACME, 2, None)  # three are at work
    assert await world.claim(9) == []
    await world.store.limit(ACME, 5, None)
    assert len(await world.claim(9)) == 2
    await world.store.limit(ACME, None, None)
    assert len(await world.claim(9)) == 4
    assert await waiting(world) == {}
    assert await world.miscounted() == {}


async def test_a_document_that_was_put_off_by_a_limit_has_its_turn_among_those_of_others(
    world: World,
) -> None:
    await world.store.limit(ACME, 1, None)
    await world.add(*(document(f"a{n}") for n in range(50)))
    held = await world.take()
    for n in range(40):  # time goes on without it
        world.clock.turn(1_000)
        await world.add(document(f"b{n}", org="b"))
        (claimed,) = await world.claim(1)
        await world.settle(claimed.job, DONE)
    await world.add(*(document(f"c{n}", org="c") for n in range(10)))
    await world.settle(held, DONE)
    await world.store.limit(ACME, None, None)

    names = await world.names_in_turn(20)
    # one of each in turn, and those of the first that nobody had parked yet
    assert sum(name.startswith("c") for name in names) >= 6


async def test_one_that_enters_a_limited_dependency_waits_in_turn_and_uncharged(world: World) -> None:
    await world.store.declare([QUEUE], ["openai"])
    await world.store.limit("dependency:openai", 1, None)
    await world.add(*(document(f"a{n}") for n in range(8)))
    jobs = [c.job for c in await world.claim(8)]
    for job in jobs:
        await world.settle(job, later(0, counted=False, bounded=False, in_turn=True), lane="openai")
    await world.add(document("b", org="b"))
    found = {c.document.name: c.job for c in await world.claim(9)}
    b, first = found.pop("b"), next(iter(found.values()))
    assert len(found) == 1
    await world.settle(b, later(0, counted=False, bounded=False, in_turn=True), lane="openai")

    await world.settle(first, DONE)
    names = []
    for _ in range(4):
        (claimed,) = await world.claim(9)
        assert claimed.job.attempts == 1
        names.append(claimed.document.name)
        await world.settle(claimed.job, DONE)
    assert "b" in names


async def test_a_lost_worker_and_a_suspect_keep_the_limit(world: World) -> None:
    await world.store.limit(ACME, 2, None)
    await world.add(*(document(f"a{n}") for n in range(4)))
    for claimed in await world.claim(9):
        await world.settle(claimed.job, later(suspect=True), expired_only=False, ours=False)

    found = await world.claim(9, 9)
    assert len(found) == 2
    assert (await running(world))[ACME] == 2
    assert await world.claim(9, 9) == []


async def test_a_raised_document_waits_under_the_limit_and_is_the_next(world: World) -> None:
    await world.store.limit(ACME, 1, None)
    ids = await world.add(*(document(f"a{n}") for n in range(5)))
    job = await world.take()
    assert await world.claim(9) == []
    assert await world.store.raise_(Raise(ORG, ids[4])) == "raised"
    assert await world.claim(9) == []
    await world.settle(job, DONE)
    assert [c.document.name for c in await world.claim(9)] == ["a4"]


async def test_cancelled_requeued_and_held_ones_leave_no_trace_at_the_gate(world: World) -> None:
    await world.store.declare([QUEUE], ["openai"])
    await world.store.limit(ACME, 1, None)
    await world.store.limit(HOST, 1, None)
    ids = await world.add(*(document(f"a{n}", lane="openai", limit_key=HOST) for n in range(3)))
    first = await world.take()
    await world.store.limit(HOST, None, None)
    assert await world.claim(9) == []
    assert await waiting(world) == {ACME: 2}
    await world.store.cancel(Cancel(ORG, ids[1]))
    new = NewJob("books", QUEUE, "extract", limit_key=HOST)
    assert await world.store.requeue(Requeue(ORG, ids[1], new)) == "requeued"
    await world.store.hold("openai", "away")
    await world.settle(first, DONE)
    # the other one is held
    assert [c.document.name for c in await world.claim(9)] == ["a1"]
    await world.store.release("openai")
    job = (
        await world.query("SELECT count(*) FROM job WHERE limit_own IS NOT NULL AND finished_ms IS NOT NULL")
    )[0]
    assert job == (0,)
    assert await world.miscounted() == {}


async def test_limits_show_what_runs_and_what_waits(world: World) -> None:
    await world.store.declare([QUEUE], ["openai"])
    await world.store.limit(ACME, 3, None)
    await world.store.limit("dependency:openai", 2, None)
    await world.add(*(document(f"a{n}", lane="openai") for n in range(9)))
    await world.claim(9)

    told = {one.key: (one.used, one.parked) for one in await world.store.limits()}
    assert told == {ACME: (2, 0), "dependency:openai": (2, 7)}


async def test_two_processes_keep_all_limits_and_forget_nobody(world: World) -> None:
    total, other = 40, await world.another()
    await world.store.declare([QUEUE], ["openai"])
    limits = {ACME: 4, "dependency:openai": 3, HOST: 2}
    for key, most in limits.items():
        await world.store.limit(key, most, None)
    done, peaks = 0, Counter[str]()

    async def drain(store: SqlStore) -> None:
        nonlocal done
        while done < total:
            found = await world.claim(3, store=store)
            for key, number in (await running(world)).items():
                peaks[key] = max(peaks[key], number)
            for claimed in found:
                await store.settle(Settle(claimed.job, DONE, "extract", claimed.job.lane))
                done += 1
            await store.refill()

    for n in range(total):
        org, lane, own = (ORG, "b")[n % 3 == 0], ("", "openai")[n % 2], HOST if n % 5 < 2 else None
        await world.add(document(f"n{n}", org=org, lane=lane, limit_key=own))
    async with asyncio.timeout(90):
        await asyncio.gather(*(drain(store) for store in (world.store, other) for _ in range(2)))
    assert {key: peaks[key] for key in limits if peaks[key] > limits[key]} == {}
    assert await waiting(world) == {}


SETS = [
    (ACME,), ("dependency:openai",), (HOST,), (HOST, ACME), (ACME, "dependency:openai"),
    (HOST, "dependency:openai"), (HOST, ACME, "dependency:openai"),
]  # fmt: skip
LANES = ("", "openai", "ocr+openai", "openai?")
QUEUES = (QUEUE, "films")


class Play:
    """Operators, workers and callers do what they like."""

    def __init__(self, world: World, keys: tuple[str, ...]) -> None:
        self.world, self.keys = world, keys
        self.chance = random.Random("+".join(keys))
        self.limits = dict.fromkeys(keys, 3)
        self.hand: list[Job] = []
        self.ended: list[tuple[str, str]] = []

    async def step(self) -> None:
        verbs = [self.add, self.add, self.claim, self.claim, self.settle, self.settle, self.hold, self.pause]
        await self.chance.choice([*verbs, self.cancel, self.limit, self.sweep, self.sweep])()

    async def add(self) -> None:
        lane, queue = self.chance.choice(LANES), self.chance.choice(QUEUES)
        org, key = self.chance.choice((ORG, "b")), self.chance.choice((None, HOST))
        await self.world.add(*(document(org=org, limit_key=key, lane=lane, queue=queue) for _ in range(3)))

    async def claim(self) -> None:
        self.hand += [c.job for c in await self.world.claim(5, 5, queues=QUEUES)]

    async def settle(self) -> None:
        if not self.hand:
            return
        job = self.hand.pop(self.chance.randrange(len(self.hand)))
        waits = later(0, counted=False, bounded=False, in_turn=True)
        endings: list[Outcome] = [DONE, dead(), later(), later(500, suspect=True), hold(), waits, retry(500)]
        ending = self.chance.choice(endings)
        await self.world.settle(job, ending, lane=self.chance.choice(LANES))
        if ending in (DONE, dead()):
            self.ended.append((job.org, job.document_id))

    async def hold(self) -> None:
        store, name = self.world.store, self.chance.choice(["ocr", "openai"])
        await (store.hold(name, "away") if self.chance.random() < 0.3 else store.release(name))

    async def pause(self) -> None:
        await self.world.store.pause(self.chance.choice(QUEUES), self.chance.random() < 0.3)

    async def cancel(self) -> None:
        if self.hand:
            job = self.hand.pop()
            await self.world.store.cancel(Cancel(job.org, job.document_id))

    async def limit(self) -> None:
        if key := self.chance.choice([key if key != HOST else "" for key in self.keys]):
            self.limits[key] = self.chance.choice((1, 2, 3, 5))
            await self.world.store.limit(key, self.limits[key], None)

    async def sweep(self) -> None:
        self.world.clock.turn(1_000)
        await self.world.store.promote(Promote())
        await self.world.store.refill()
        if self.ended:
            job = NewJob("books", QUEUE, "extract", limit_key=HOST)
            await self.world.store.requeue(Requeue(*self.ended.pop(), job))

    async def end(self) -> None:
        """Nothing is in the way any more."""
        for name in ("ocr", "openai"):
            await self.world.store.release(name)
        for queue in QUEUES:
            await self.world.store.pause(queue, False)
        for _ in range(200):
            for job in self.hand:
                await self.world.settle(job, DONE)
            self.world.clock.turn(60_000)
            await self.world.store.promote(Promote())
            await self.world.store.refill()
            self.hand = [c.job for c in await self.world.claim(9, 9, queues=QUEUES)]


@pytest.mark.parametrize("keys", SETS, ids="+".join)
async def test_whatever_happens_no_limit_is_exceeded_and_all_ends(
    world: World, keys: tuple[str, ...]
) -> None:
    await world.store.declare(QUEUES, LANES)
    for key in keys:
        await world.store.limit(key, 3, None)
    play = Play(world, keys)
    before: Counter[str] = Counter()
    full: set[str] = set()
    for _ in range(150):
        await play.step()
        now = await running(world)
        for key in keys:  # where a limit was lowered, nothing is added
            assert now[key] <= max(play.limits[key], before[key]), key
            if now[key] == play.limits[key]:
                full.add(key)
        before = now
    assert full == set(keys)  # each of them was in the way
    assert await world.miscounted() == {}

    await play.end()

    assert await world.query("SELECT count(*) FROM job WHERE finished_ms IS NULL") == [(0,)]
    assert await world.miscounted() == {}
