"""Limits: never more at work under a key than allowed; room is filled one for one; what cannot run takes no room."""

from __future__ import annotations

import asyncio
import random

import asyncpg
import pytest

from perdure.core.model import Job
from perdure.core.outcome import Outcome
from perdure.store.operations import Beat, Cancel, NewJob, Promote, Requeue, Settle
from perdure.store.sql_store import SqlStore
from tests.store.making import DONE, ORG, QUEUE, World, dead, document, hold, later, output, retry, save

KEY = "tenant-7"
LANES = ("", "ocr", "ocr+openai")


async def states(world: World, key: str = KEY) -> dict[str, int]:
    """How many unfinished jobs of the key are in which state."""
    sql = "SELECT state, count(*) FROM job WHERE limit_key = $1 AND finished_ms IS NULL GROUP BY state"
    return dict(await world.query(sql, key))


async def test_a_limit_lets_in_so_many_and_parks_the_rest(world: World) -> None:
    await world.store.limit(KEY, 2, None)
    ids = await world.add(*(document(f"n{n}", limit_key=KEY) for n in range(5)), document("free"))

    assert await states(world) == {"queued": 2, "parked": 3}
    assert {(await world.status(i)).state for i in ids} == {"queued"}  # parked is shown as queued
    assert {c.document.name for c in await world.claim(10)} == {"n0", "n1", "free"}
    assert await world.claim(10) == []


async def test_each_that_leaves_lets_one_in_within_the_same_commit(world: World) -> None:
    await world.store.limit(KEY, 2, None)
    await world.add(*(document(f"n{n}", limit_key=KEY) for n in range(7)))
    first, second = (c.job for c in await world.claim(9))

    for leaves, comes in ((DONE, "n2"), (dead(), "n3"), (retry(1_000), "n4"), (later(1_000), "n5")):
        await world.settle(first, leaves)
        assert (await states(world))["queued"] == 1
        (claimed,) = await world.claim(9)
        assert claimed.document.name == comes
        first = claimed.job
    await world.store.cancel(Cancel(ORG, second.document_id))
    assert [c.document.name for c in await world.claim(9)] == ["n6"]
    assert (await states(world))["running"] == 2


async def test_one_that_is_past_its_limit_makes_room_and_is_not_parked_again(world: World) -> None:
    await world.store.limit(KEY, 1, None)
    await world.add(*(document(f"n{n}", limit_key=KEY) for n in range(2)))
    first = await world.take()

    assert await world.store.save(save(first, stage="extract", output=output("fetch"), frees=True))

    second = await world.take()
    assert await states(world) == {"running": 1}
    # whoever gives it back may have read it before that
    assert await world.settle(first, later(0))
    assert (await world.take()).document_id == first.document_id
    assert await world.settle(second, later(0))
    assert await states(world) == {"queued": 1}


async def test_a_settle_whose_save_leaves_the_limit_is_queued_and_counted_as_queued(world: World) -> None:
    await world.store.limit(KEY, 1, None)
    first_id, _ = await world.add(*(document(f"n{n}", limit_key=KEY) for n in range(2)))
    first = await world.take()

    answered = save(first, stage="extract", output=output("fetch"), frees=True)
    assert await world.settle(first, later(0), save=answered)

    assert await world.miscounted() == {}
    assert (await world.job(first_id))["state"] == "queued"
    assert await states(world) == {"queued": 1}
    assert {c.document.name for c in await world.claim(9)} == {"n0", "n1"}


async def test_many_that_leave_at_once_let_in_as_many(world: World) -> None:
    await world.store.limit(KEY, 10, None)
    await world.add(*(document(limit_key=KEY) for _ in range(30)))

    await asyncio.gather(*(world.settle(c.job, DONE) for c in await world.claim(50)))

    assert await states(world) == {"queued": 10, "parked": 10}


async def test_a_retry_enters_under_the_limit_again(world: World) -> None:
    await world.store.limit(KEY, 1, None)
    await world.add(document("a", limit_key=KEY), document("b", limit_key=KEY))
    await world.settle(await world.take(), retry(1_000))
    world.clock.turn(1_000)
    await world.promoted(1)

    assert await states(world) == {"queued": 1, "parked": 1}
    assert await world.names_in_turn(2) == ["b"]


async def test_a_retry_at_once_keeps_its_place(world: World) -> None:
    await world.store.limit(KEY, 1, None)
    await world.add(document("a", limit_key=KEY), document("b", limit_key=KEY))
    await world.settle(await world.take(), retry(0))

    assert await world.names_in_turn(2) == ["a"]


async def test_a_requeued_document_enters_under_the_limit(world: World) -> None:
    await world.store.limit(KEY, 1, None)
    (id_,) = await world.add(document("a", limit_key=KEY))
    await world.settle(await world.take(), dead())
    await world.add(document("b", limit_key=KEY))

    await world.store.requeue(Requeue(ORG, id_, NewJob("books", QUEUE, "extract", limit_key=KEY)))

    assert await world.names_in_turn(2) == ["b"]


async def test_a_higher_limit_and_none_at_all_let_in_at_once(world: World) -> None:
    await world.store.limit(KEY, 1, None)
    await world.add(*(document(limit_key=KEY) for _ in range(6)))

    await world.store.limit(KEY, 3, None)
    assert await states(world) == {"queued": 3, "parked": 3}
    await world.store.limit(KEY, None, None)
    assert await states(world) == {"queued": 6}


async def test_a_key_without_a_limit_holds_nobody_back(world: World) -> None:
    await world.add(*(document(limit_key="nobody-limits-this") for _ in range(5)))

    assert len(await world.claim(9)) == 5


async def test_a_limit_set_while_more_are_at_work_waits_for_them_to_end(world: World) -> None:
    await world.add(*(document(limit_key=KEY) for _ in range(3)))
    jobs = [c.job for c in await world.claim(9)]
    await world.store.limit(KEY, 1, None)
    await world.add(document(limit_key=KEY))

    for job in jobs[:2]:
        await world.settle(job, DONE)
        assert await states(world) == {"running": await running(world), "parked": 1}
    await world.settle(jobs[2], DONE)
    assert await states(world) == {"queued": 1}


@pytest.mark.parametrize(
    ("bounds", "begin"), [((2, None), 2), ((None, 2.0), 1 + 2)], ids=["concurrency", "rate"]
)
async def test_a_limit_holds_for_those_that_were_ready_before_it(
    world: World, bounds: tuple[int | None, float | None], begin: int
) -> None:
    await world.add(*(document(f"n{n}", limit_key=KEY) for n in range(6)), document("other"))
    await world.store.limit(KEY, *bounds)
    world.clock.turn(1_000)
    for _ in range(2):
        await world.store.limit(KEY, *bounds)  # the same again changes nothing
        await world.store.refill()

    names = {c.document.name for c in await world.claim(9)}
    assert "other" in names
    assert len(names) == 1 + begin
    assert await world.claim(9) == []
    assert await world.miscounted() == {}


async def running(world: World, key: str = KEY) -> int:
    return (await states(world, key)).get("running", 0)


async def test_a_rate_lets_in_so_many_a_second(world: World) -> None:
    await world.store.limit(KEY, None, 2.0)
    await world.add(*(document(limit_key=KEY) for _ in range(9)))
    started = [len(await world.claim(9))]
    for _ in range(4):
        world.clock.turn(1_000)
        await world.store.refill()
        started.append(len(await world.claim(9)))

    assert started[0] <= 2
    assert started[1:] == [2, 2, 2, 2]
    world.clock.turn(3_600_000)  # quiet time is not saved up
    await world.add(*(document(limit_key=KEY) for _ in range(9)))
    assert len(await world.claim(9)) <= 2


async def test_a_rate_below_one_a_second_is_kept(world: World) -> None:
    await world.store.limit(KEY, None, 0.1)
    await world.add(*(document(limit_key=KEY) for _ in range(5)))
    started = 0
    for _ in range(31):
        started += len(await world.claim(9))
        world.clock.turn(1_000)
        await world.store.refill()

    assert 3 <= started <= 4


async def test_what_is_held_or_paused_takes_no_room(world: World) -> None:
    await world.store.declare([QUEUE, "films"], ["ocr"])
    await world.store.limit(KEY, 2, None)
    await world.add(*(document(f"held{n}", limit_key=KEY, lane="ocr") for n in range(2)))
    await world.add(*(document(f"film{n}", limit_key=KEY, queue="films") for n in range(2)))
    await world.store.hold("ocr", "away")
    await world.store.pause("films", True)
    await world.add(*(document(f"free{n}", limit_key=KEY) for n in range(2)))
    for _ in range(3):
        await world.store.refill()

    assert {c.document.name for c in await world.claim(9, queues=[QUEUE, "films"])} == {"free0", "free1"}

    await world.store.release("ocr")
    await world.store.pause("films", False)
    assert await world.claim(9, queues=[QUEUE, "films"]) == []  # back under the limit, not above it


async def test_what_was_let_in_before_its_queue_was_paused_takes_no_room(world: World) -> None:
    await world.store.declare([QUEUE, "films"], [])
    await world.store.limit(KEY, 2, None)
    await world.add(*(document(f"film{n}", limit_key=KEY, queue="films") for n in range(2)))
    await world.store.pause("films", True)
    await world.add(document("free", limit_key=KEY))
    await world.store.refill()

    assert [c.document.name for c in await world.claim(9, queues=[QUEUE, "films"])] == ["free"]


async def test_a_crowd_that_is_held_does_not_keep_the_others_of_its_key_out(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    await world.store.limit(KEY, 2, None)
    await world.store.hold("ocr", "away")
    await world.add(
        *(document(limit_key=KEY, lane="ocr") for _ in range(50)), document("free", limit_key=KEY)
    )

    await world.store.refill()

    assert await world.names_in_turn(1) == ["free"]
    assert (await world.store.tally()).queues[QUEUE].get("held") == 50


async def test_two_processes_together_keep_the_limit_and_forget_nobody(world: World) -> None:
    limit, total, other = 3, 40, await world.another()
    await world.store.limit(KEY, limit, None)
    at_work, peak, done = 0, 0, 0

    async def drain(store: SqlStore) -> None:
        nonlocal at_work, peak, done
        while done < total:
            found = await world.claim(2, store=store)
            at_work += len(found)
            peak = max(peak, at_work)
            for claimed in found:
                await asyncio.sleep(0)
                at_work -= 1  # from here on its end may already make room for another
                await store.settle(Settle(claimed.job, DONE, "extract", ""))
                done += 1

    adding = [
        store.add([document(limit_key=KEY)]) for store in (world.store, other) for _ in range(total // 2)
    ]
    async with asyncio.timeout(90):  # nobody refills: whoever leaves must let the next one in
        await asyncio.gather(*adding, *(drain(store) for store in (world.store, other) for _ in range(3)))

    assert 1 < peak <= limit
    assert await states(world) == {}


async def test_a_release_in_the_middle_of_a_hold_does_not_break_the_limit(postgres_world: World) -> None:
    world, other = postgres_world, await postgres_world.another()
    await world.store.declare([QUEUE], ["ocr"])
    await world.store.limit(KEY, 1, None)
    await world.add(document("a", limit_key=KEY, lane="ocr"), document("b", limit_key=KEY))
    job = await world.take()
    await world.store.hold("ocr", "away")
    blocking = await asyncpg.connect(world.url)
    async with blocking.transaction():
        # the flush has let "b" in, because "a" is held, and waits for this row before it can commit
        await blocking.execute("SELECT 1 FROM worker WHERE id = $1 FOR UPDATE", world.worker)
        holding = asyncio.gather(world.settle(job, hold()), world.store.beat(Beat(world.worker, ())))
        await asyncio.sleep(0.1)
        assert not holding.done()
        releasing = asyncio.create_task(other.release("ocr"))
        await asyncio.sleep(0.1)
    await blocking.close()
    await asyncio.gather(holding, releasing)

    assert len(await world.claim(9)) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_the_limit_is_never_exceeded(world: World, seed: int) -> None:
    chance, limit = random.Random(seed), 3
    await world.store.declare([QUEUE, "films"], LANES)
    await world.store.limit(KEY, limit, None)
    hand: list[Job] = []
    ended: list[str] = []

    async def settle() -> None:
        job = hand.pop(chance.randrange(len(hand)))
        endings: list[Outcome] = [DONE, dead(), later(), later(500, suspect=True), hold(), hold()]
        ending = chance.choice(endings)
        await world.settle(job, ending, lane=chance.choice(LANES))
        if ending in (DONE, dead()):
            ended.append(job.document_id)

    async def step() -> None:
        match chance.randrange(10):
            case 0 | 1:
                lane, queue = chance.choice(LANES), chance.choice([QUEUE, "films"])
                await world.add(*(document(limit_key=KEY, lane=lane, queue=queue) for _ in range(3)))
            case 2 | 3:
                hand.extend(c.job for c in await world.claim(5, 5, queues=[QUEUE, "films"]))
            case 4 | 5 if hand:
                await settle()
            case 6:
                name = chance.choice(["ocr", "openai"])
                await (world.store.hold(name, "away") if chance.random() < 0.4 else world.store.release(name))
            case 7:
                await world.store.pause(chance.choice([QUEUE, "films"]), chance.random() < 0.3)
            case 8 if hand:
                await world.store.cancel(Cancel(ORG, hand.pop().document_id))
            case _:
                world.clock.turn(1_000)
                await world.store.promote(Promote())
                await world.store.refill()
                if ended:
                    job = NewJob("books", QUEUE, "extract", limit_key=KEY)
                    await world.store.requeue(Requeue(ORG, ended.pop(), job))

    peaks = set()
    for _ in range(120):
        await step()
        peaks.add(await running(world))
    assert max(peaks) == limit
