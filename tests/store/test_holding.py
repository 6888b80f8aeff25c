"""Dependencies that the breaker holds: single documents are lent to probe them, more and more once they are back."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from typing import Any

from perdure.store import holding
from perdure.store.base import BREAKER
from perdure.store.operations import Cancel, NewJob, Promote, Report, Requeue, Settle
from perdure.store.sql_store import SqlStore
from tests.store.locks import locked
from tests.store.making import (
    DONE,
    ORG,
    QUEUE,
    START_MS,
    World,
    dead,
    document,
    hold,
    later,
    retry,
    save,
)

SECOND = 1_000


async def away(world: World, name: str = "ocr", lanes: tuple[str, ...] = ("ocr",)) -> None:
    """The breaker takes the dependency down."""
    await world.store.declare([QUEUE], lanes)
    await world.store.hold(name, "503 for a minute", BREAKER)


async def ramping(world: World, nominal_per_s: float | None = None, name: str = "ocr") -> None:
    """The dependency is down, and a probe went well just now."""
    await away(world)
    if nominal_per_s is not None:
        await world.execute("UPDATE dependency SET nominal_per_s = $1", nominal_per_s)
    await world.store.probed(name, True)


async def dependency(world: World, name: str = "ocr") -> dict[str, Any]:
    return (await world.table("dependency", f"WHERE name = '{name}'"))[0]


async def passes(world: World, ms: int) -> int:
    """Time passes, and the leader sweeps."""
    world.clock.turn(ms)
    return await world.store.lend()


async def claimed(world: World, count: int = 99) -> list[str]:
    """The names of the documents that can be claimed."""
    return [c.document.name for c in await world.claim(count)]


# --- probes ----------------------------------------------------------------------------------


async def test_after_four_seconds_exactly_one_document_is_lent_the_first_in_turn(world: World) -> None:
    await away(world)
    await world.add(*(document(name, lane="ocr") for name in "abc"))

    assert await passes(world, 3_999) == 0
    assert await passes(world, 1) == 1
    assert await world.store.lend() == 0
    assert await claimed(world) == ["a"]
    assert await claimed(world) == []
    assert (await world.store.tally()).queues[QUEUE] == {"held": 2, "running": 1}


async def test_probes_become_rarer_while_the_dependency_stays_away(world: World) -> None:
    await away(world)
    await world.add(document("a", lane="ocr"))
    at_s = []
    for second in range(3_600):
        if await passes(world, SECOND):
            at_s.append(second + 1)
            job = await world.take()
            assert (job.probe, job.lane) == ("ocr", "ocr")
            await world.store.probed("ocr", False)
            await world.settle(job, hold())
    assert at_s[:6] == [4, 9, 15, 22, 31, 41]
    assert len(at_s) == 70
    (status,) = await world.store.documents()
    assert (status.state, status.attempts_made, status.claims) == ("held", 0, 70)


async def test_without_a_document_nothing_is_probed_until_one_comes(world: World) -> None:
    await away(world)
    assert await passes(world, 600_000) == 0
    row = await dependency(world)
    assert (row["probes"], row["probe_at_ms"]) == (0, None)
    assert await world.store.neglected_ms() == 0
    await world.add(document("a", lane="ocr"))
    assert await world.store.lend() == 1


async def test_a_probe_or_a_ramp_that_no_leader_sees_to_is_neglected(world: World) -> None:
    await away(world)
    await world.add(*(document(lane="ocr") for _ in range(9)))
    world.clock.turn(4_000)
    assert await world.store.neglected_ms() == 0
    world.clock.turn(4_000)
    assert await world.store.neglected_ms() == 4_000
    await world.store.probed("ocr", True)
    assert await world.store.neglected_ms() == 0
    world.clock.turn(4_000)
    assert await world.store.neglected_ms() == 4_000
    await world.store.lend()
    assert await world.store.neglected_ms() < 1_000


async def test_an_operators_hold_is_never_probed(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    await world.store.hold("ocr", "maintenance", "ann")
    await world.add(document("a", lane="ocr"))
    assert await passes(world, 3_600_000) == 0
    await world.store.probed("ocr", True)
    assert await passes(world, 3_600_000) == 0
    assert await claimed(world) == []


async def test_a_sweep_that_saw_the_breakers_hold_lends_nothing_once_an_operator_holds(world: World) -> None:
    """The operator came between its look and its loan."""
    await away(world)
    await world.add(document("a", lane="ocr"))
    world.clock.turn(3_600_000)
    await world.store.hold("ocr", "maintenance", "ann")

    loan = partial(holding.lend, world.store.sql, world.clock.now_ms(), name="ocr")

    assert await world.store._count(loan) == (0, False)
    assert await claimed(world) == []


async def test_whatever_ends_the_claim_brings_the_document_back_to_its_lane(world: World) -> None:
    await away(world)
    (id_,) = await world.add(document("a", lane="ocr"))
    for ending in (hold(), later(), later(1_000), retry(), retry(1_000)):
        assert await passes(world, 60_000) == 1
        await world.settle(await world.take(), ending)
        world.clock.turn(1_000)
        await world.promoted(ending in (later(1_000), retry(1_000)))
        job = await world.job(id_)
        assert (job["lane"], job["probe"], job["home"]) == ("ocr", None, None)
        assert (await world.status(id_)).state == "held"


async def test_a_stage_that_is_saved_ends_the_leave(world: World) -> None:
    await away(world, lanes=("ocr", "openai"))
    (id_,) = await world.add(document("a", lane="ocr"))
    await passes(world, 5_000)
    job = await world.take()
    assert await world.store.save(save(job, "chunk", "openai"))
    row = await world.job(id_)
    assert (row["lane"], row["probe"], row["home"]) == ("openai", None, None)
    assert await world.settle(job, DONE)
    row = await world.job(id_)
    assert (row["state"], row["probe"], row["home"]) == ("done", None, None)


async def test_a_lent_document_whose_worker_died_comes_back_to_its_lane(world: World) -> None:
    await away(world)
    (id_,) = await world.add(document("a", lane="ocr"))
    await passes(world, 5_000)
    await world.take()
    world.clock.turn(60_000)
    (job,) = await world.store.expired(9)
    assert await world.store.settle(Settle(job, later(), job.stage, job.lane, expired_only=True, ours=False))
    assert (await world.status(id_)).state == "held"


async def test_a_lent_document_may_be_cancelled_and_requeued(world: World) -> None:
    await away(world)
    lent, running = await world.add(document("a", lane="ocr"), document("b", lane="ocr"))
    await passes(world, 5_000)
    assert await world.store.cancel(Cancel(ORG, lent)) == "cancelled"
    assert await passes(world, 60_000) == 1
    job = await world.take()
    assert await world.store.cancel(Cancel(ORG, running)) == "cancelled"
    assert not await world.settle(job, DONE)
    for id_ in (lent, running):
        assert (await world.job(id_))["probe"] is None
        again = NewJob("books", QUEUE, "extract", "ocr")
        assert await world.store.requeue(Requeue(ORG, id_, again)) == "requeued"
        assert (await world.status(id_)).state == "held"


async def test_a_probe_that_nobody_claims_is_recalled_and_not_doubled(world: World) -> None:
    await away(world)
    await world.add(*(document(name, lane="ocr") for name in "abc"))
    for _ in range(20):
        await passes(world, 60_000)
    assert await claimed(world) == ["a"]


async def test_a_queue_without_workers_or_paused_keeps_nobody_waiting(world: World) -> None:
    await away(world)
    await world.add(document("a", lane="ocr", queue="films"), document("b", lane="ocr"))
    await world.store.declare(["films"], [])
    await passes(world, 5_000)
    assert await claimed(world) == ["b"]
    await world.store.pause(QUEUE, True)
    await world.add(document("c", lane="ocr"))
    assert await passes(world, 60_000) == 0


async def test_two_sweepers_lend_one_document(world: World) -> None:
    await away(world)
    await world.add(*(document(lane="ocr") for _ in range(5)))
    other = await world.another()
    world.clock.turn(5_000)
    lent = await asyncio.gather(*(store.lend() for store in (world.store, other) * 3))
    assert sum(lent) == 1
    assert len(await claimed(world)) == 1


async def test_suspects_are_lent_after_all_others(world: World) -> None:
    await away(world)
    first, _ = await world.add(document("a", lane="ocr"), document("b", lane="ocr"))
    await world.execute("UPDATE job SET suspect = $1 WHERE document_id = $2", True, first)
    await passes(world, 5_000)
    assert await claimed(world) == ["b"]
    assert await passes(world, 10_000) == 1
    assert (await world.take(suspects=1)).probe == "ocr"


# --- two dependencies ------------------------------------------------------------------------


async def test_a_document_that_needs_two_is_lent_when_the_other_is_up(world: World) -> None:
    lanes = ("ocr", "openai", "ocr+openai")
    await away(world, "ocr", lanes)
    await world.store.hold("openai", "maintenance", "ann")
    await world.add(document("both", lane="ocr+openai"))
    assert await passes(world, 60_000) == 0  # an operator holds the other
    await world.store.release("openai", "ann")
    assert await world.store.lend() == 1


async def test_two_dependencies_that_are_needed_only_together_both_come_back(world: World) -> None:
    await away(world, "ocr", ("ocr+openai",))
    await world.store.hold("openai", "away too", BREAKER)
    await world.add(*(document(lane="ocr+openai") for _ in range(4)))
    assert await passes(world, 5_000) == 2
    assert {(await world.take()).probe, (await world.take()).probe} == {"ocr", "openai"}
    await world.store.probed("ocr", True)  # nobody waits for it alone: it is up
    await passes(world, SECOND)
    assert (await dependency(world))["down_ms"] is None
    assert await passes(world, 60_000) == 1
    await world.store.probed("openai", True)
    while await passes(world, SECOND):
        await world.claim(9)
    assert (await dependency(world, "openai"))["down_ms"] is None
    assert (await world.store.lanes())[1].down_since_ms is None


# --- ramps -----------------------------------------------------------------------------------


async def test_a_ramp_follows_its_rate_and_ends_when_nobody_waits(world: World) -> None:
    await ramping(world, nominal_per_s=20.0)
    await world.add(*(document(lane="ocr") for _ in range(100)))
    gone = []
    while (await dependency(world))["down_ms"] is not None:
        await passes(world, SECOND)
        gone.append(len(await claimed(world)))
    assert gone[:5] == [3, 4, 7, 12, 16]
    assert max(gone) <= 25
    assert sum(gone) == 100
    assert (await dependency(world))["ramp_per_s"] is None
    assert [(act.who, act.verb, act.org) for act in await world.store.acts()] == [
        (BREAKER, "release", None), (BREAKER, "hold", None),
    ]  # fmt: skip


async def test_a_ramp_goes_on_while_those_that_wait_are_locked(postgres_world: World) -> None:
    world = postgres_world
    await ramping(world, nominal_per_s=20.0)
    await world.add(*(document(lane="ocr") for _ in range(100)))

    async with locked(world, "SELECT 1 FROM job WHERE id > (SELECT min(id) + 1 FROM job)"):
        assert await passes(world, SECOND) == 2, "those that are not locked"
    assert (await dependency(world))["down_ms"] is not None
    assert len(await claimed(world)) == 2

    await passes(world, SECOND)
    assert 0 < len(await claimed(world)) < 25
    assert (await dependency(world))["down_ms"] is not None


async def test_what_nobody_claims_does_not_pile_up(world: World) -> None:
    await ramping(world, nominal_per_s=10.0)
    await world.add(*(document(lane="ocr") for _ in range(300)))
    for _ in range(60):
        await passes(world, SECOND)
    assert len(await claimed(world)) == 13


async def test_new_documents_wait_for_their_turn_behind_the_others(world: World) -> None:
    await ramping(world, nominal_per_s=1.0)
    await world.add(*(document(f"old{n}", lane="ocr") for n in range(4)))
    gone = []
    for n in range(4):
        await passes(world, SECOND)
        gone += await claimed(world)
        await world.add(document(f"new{n}", lane="ocr"))
    assert gone == ["old0", "old1", "old2", "old3"]


async def test_a_ramp_in_which_nothing_is_answered_ends(world: World) -> None:
    await away(world)
    await world.add(*(document(lane="ocr") for _ in range(50)))
    await passes(world, 5_000)
    await world.take()
    await world.store.probed("ocr", True)
    assert await passes(world, SECOND) > 0
    for _ in range(3):
        await world.store.probed("ocr", False)
    assert await passes(world, SECOND) == 0
    row = await dependency(world)
    assert (row["ramp_ms"], row["probes"]) == (None, 2)
    assert row["probe_at_ms"] == world.clock.ms + 5_760
    assert await claimed(world) == []  # what was lent and not claimed is held again
    assert await passes(world, 5_759) == 0
    assert await passes(world, 1) == 1


async def test_a_ramp_goes_on_while_some_are_answered_but_more_slowly(world: World) -> None:
    await ramping(world, nominal_per_s=20.0)
    await world.add(*(document(lane="ocr") for _ in range(100)))
    for _ in range(4):
        await passes(world, SECOND)
    before = (await dependency(world))["ramp_per_s"]
    for ok in (True, False, False, False):
        await world.store.probed("ocr", ok)
    await passes(world, SECOND)
    row = await dependency(world)
    assert row["ramp_ms"] is not None
    assert row["ramp_per_s"] < 0.6 * before
    await passes(world, SECOND)
    assert (await dependency(world))["ramp_per_s"] > row["ramp_per_s"]


async def test_a_ramp_keeps_up_with_what_comes_in(world: World) -> None:
    await ramping(world, nominal_per_s=2.0)
    await world.add(*(document(lane="ocr") for _ in range(30)))
    gone = 0
    for _ in range(20):
        await world.add(*(document(lane="ocr") for _ in range(5)))
        for _ in range(gone):
            await world.store.probed("ocr", True)
        await passes(world, SECOND)
        gone = len(await claimed(world))
    assert gone >= 5


async def test_a_ramp_does_not_outrun_a_service_that_does_no_more(world: World) -> None:
    await ramping(world, nominal_per_s=2.0)
    await world.add(*(document(lane="ocr") for _ in range(600)))
    rates = []
    for second in range(90):
        for _ in range(min(4, second)):  # however many go
            await world.store.probed("ocr", True)
        await passes(world, SECOND)
        rates.append((await dependency(world))["ramp_per_s"])
    assert max(rates) < 6  # little more than ends, for a moment
    assert 3.5 < sum(rates[30:]) / 60 < 4.5


async def test_a_ramp_that_knows_nothing_doubles(world: World) -> None:
    await ramping(world)
    await world.add(*(document(lane="ocr") for _ in range(100)))
    gone = []
    for _ in range(5):
        await passes(world, SECOND)
        gone.append(len(await claimed(world)))
    assert gone == [2, 4, 8, 16, 32]


async def test_a_leader_that_slept_lends_no_more_than_a_seconds_worth(world: World) -> None:
    await ramping(world, nominal_per_s=10.0)
    await world.add(*(document(lane="ocr") for _ in range(100)))
    await passes(world, 60_000)
    assert len(await claimed(world)) <= 13


# --- operators -------------------------------------------------------------------------------


async def test_a_hold_of_the_breaker_leaves_what_is_there(world: World) -> None:
    await away(world)
    await world.add(document("a", lane="ocr"))
    await passes(world, 5_000)
    before = await dependency(world)
    await world.store.hold("ocr", "another reason", BREAKER)
    assert await dependency(world) == before
    await world.store.hold("mail", "maintenance", "ann")
    await world.store.hold("mail", "its breaker", BREAKER)
    row = await dependency(world, "mail")
    assert (row["held_by"], row["reason"]) == ("ann", "maintenance")
    assert [act.who for act in await world.store.acts()] == ["ann", BREAKER]


async def test_an_operator_takes_a_hold_over_and_lent_documents_are_held_again(world: World) -> None:
    await ramping(world)
    await world.add(*(document(lane="ocr") for _ in range(9)))
    assert await passes(world, SECOND) > 0
    await world.store.hold("ocr", "leave it alone", "ann")
    assert await claimed(world) == []
    row = await dependency(world)
    assert (row["held_by"], row["reason"], row["down_ms"]) == ("ann", "leave it alone", START_MS)
    assert (row["ramp_ms"], row["probe_at_ms"]) == (None, None)
    assert await passes(world, 60_000) == 0


async def test_an_operators_release_lets_everything_go_at_once(world: World) -> None:
    await ramping(world)
    await world.add(*(document(lane="ocr") for _ in range(9)))
    await passes(world, SECOND)
    await world.store.release("ocr", "ann")
    found = await world.claim(99)
    assert len(found) == 9
    assert {c.job.probe for c in found} == {None}
    await world.store.probed("ocr", False)  # a call from before: what is up stays up
    assert (await dependency(world))["down_ms"] is None


async def test_nothing_is_lost_or_doubled_when_all_are_at_it_at_once(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr", "ocr+openai"])
    lanes = ("ocr", "ocr+openai", "", "ocr")
    limits = (None, None, None, "host")
    await world.store.limit("host", 3, None)
    ids = await world.add(*(document(lane=lanes[n % 4], limit_key=limits[n % 4]) for n in range(200)))
    stores = [world.store, await world.another(), await world.another()]
    settled: list[int] = []
    over = asyncio.Event()

    async def work(store: SqlStore) -> None:
        while not over.is_set():
            found = await world.claim(5, store=store)
            for one in found:
                again = random.random() < 0.3
                ending = hold() if again else DONE
                assert await store.settle(Settle(one.job, ending, one.job.stage, one.job.lane))
                settled.extend([] if again else [one.job.id])
            await store.promote(Promote())
            await store.refill()

    async def stir(store: SqlStore) -> None:
        for _ in range(150):
            world.clock.turn(random.choice((100, 1_000, 5_000)))
            match random.randrange(6):
                case 0:
                    await store.hold("ocr", "away", random.choice((BREAKER, BREAKER, "ann")))
                case 1:
                    await store.hold("openai", "away", BREAKER)
                case 2:
                    await store.probed(random.choice(("ocr", "openai")), random.random() < 0.7)
                case 3 if random.random() < 0.3:
                    await store.release("ocr", "ann")
                case _:
                    await store.lend()

    working = [asyncio.create_task(work(store)) for store in stores]
    await asyncio.gather(*(stir(store) for store in stores))
    for name in ("ocr", "openai"):
        await world.store.release(name, "ann")
    while len(settled) < len(ids) and not any(task.done() for task in working):
        world.clock.turn(1_000)
        await asyncio.sleep(0.01)
    over.set()
    await asyncio.gather(*working)
    assert len(settled) == len(set(settled)) == 200
    assert {row["probe"] for row in await world.table("job")} == {None}


# --- limits ----------------------------------------------------------------------------------


async def test_what_is_under_a_limit_is_lent_only_as_there_is_room(world: World) -> None:
    await world.store.limit("host", 2, None)
    await world.store.declare([QUEUE], ["ocr"])
    await world.add(*(document(lane="ocr", limit_key="host") for _ in range(9)))  # two are let in
    await away(world)
    await world.store.probed("ocr", True)
    ran = 0
    for _ in range(30):
        await passes(world, SECOND)
        await world.store.refill()
        found = await world.claim(99)
        assert len(found) <= 2
        for one in found:
            ran += 1
            await world.settle(one.job, dead())
    assert ran == 9
    assert (await dependency(world))["down_ms"] is None


async def test_a_parked_document_can_be_the_probe(world: World) -> None:
    await away(world)
    await world.store.limit("host", 1, None)
    await world.add(document("a", lane="ocr", limit_key="host"), document("b", lane="ocr", limit_key="host"))
    assert await passes(world, 5_000) == 1
    assert await claimed(world) == ["a"]
    await world.store.refill()
    assert await claimed(world) == []


async def test_a_probe_does_not_come_before_the_service_wants_to_be_asked(world: World) -> None:
    said = Report(world.worker, 3, 0, 0, 3, 0.0, 0.0, 3.0, runs=1, row=0, pause_ms=20_000)
    await world.store.exchange("ocr", said)
    await away(world)
    await world.store.exchange("ocr", replace(said, pause_ms=0))  # a hold does not make it forget
    await world.add(document("a", lane="ocr"))

    assert await passes(world, 4_000) == 0
    assert await passes(world, 15_999) == 0
    assert await passes(world, 1) == 1
