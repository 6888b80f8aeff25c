"""Jobs that do not get on: which ones are found, what is done about each, and what is counted with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from perdure.core.model import Policy
from perdure.core.outcome import Dead, Failure, Hold
from perdure.core.token import new_token
from perdure.store.operations import Requeue, Settle
from perdure.store.stuck import COLLECTIONS, Page, Run, StuckJob
from tests.store.making import DONE, ORG, QUEUE, START_MS, World, dead, document, retry

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ASIDE = Hold("no worker knows this pipeline", aside=True)


async def pass_by(world: World, ms: int, served: bool = True) -> None:
    """Time in which a worker lives and the sweeper looks; `served=False`: nobody does."""
    if served:
        for _ in range(ms // 100_000 + 1):
            world.clock.turn(100_000)
            await world.execute("UPDATE worker SET beat_ms = $1", world.clock.now_ms())
            await world.store.attend()
    else:
        world.clock.turn(ms)


async def look(world: World, size: int = 100, threshold_ms: int = HOUR_MS) -> Page:
    now_ms, _ = await world.store.attend()
    return await world.store.stuck(("", 0), size, now_ms - threshold_ms, now_ms)


async def exhausted(world: World, count: int = 1) -> list[str]:
    """Documents that died of their last attempt."""
    ids = await world.add(*(document(policy=Policy(attempts=1)) for _ in range(count)))
    for claimed in await world.claim(count):
        await world.settle(claimed.job, replace(dead(), exhausted=True))
    return ids


# --- counts ----------------------------------------------------------------------------------------


async def test_every_label_starts_at_zero(world: World) -> None:
    told = await world.store.retry_job()
    zeros = dict.fromkeys(COLLECTIONS, 0)
    assert told.requeued == told.skipped_backoff == told.max_retries_exceeded == zeros
    assert told.stuck == told.starved == told.failed == told.exhausted == zeros
    assert told.runs == {"success": 0, "partial": 0, "failure": 0}
    assert (told.errors, told.ran_ms, told.duration_ms, told.stuck_since_ms) == ({}, None, None, None)


async def test_a_run_is_counted_and_what_it_found_takes_the_place_of_what_was_found_before(
    world: World,
) -> None:
    await world.store.record_run(
        Run("partial", 12, {"ValueError": 2}, {"archives": 3}, {"threads": 1}, START_MS)
    )
    await world.store.record_run(
        Run("partial", 15, {"ValueError": 1, "KeyError": 1}, {"threads": 1}, {}, None)
    )
    told = await world.store.retry_job()
    assert told.runs == {"success": 0, "partial": 2, "failure": 0}
    assert told.errors == {"ValueError": 3, "KeyError": 1}
    assert (told.stuck["archives"], told.stuck["threads"], told.starved["threads"]) == (0, 1, 0)
    assert (told.stuck_since_ms, told.ran_ms, told.duration_ms) == (None, START_MS, 15)


async def test_a_run_that_ended_early_leaves_what_was_found_before(world: World) -> None:
    await world.store.record_run(Run("success", 12, {}, {"archives": 60}, {"threads": 1}, START_MS - DAY_MS))
    await world.store.record_run(Run("failure", 5, {"StoreBusy": 1}, {"archives": 2}, {}, START_MS))
    told = await world.store.retry_job()
    assert (told.stuck["archives"], told.starved["threads"]) == (60, 1)
    assert (told.stuck_since_ms, told.duration_ms) == (START_MS - DAY_MS, 5)
    assert told.runs == {"success": 1, "partial": 0, "failure": 1}


async def test_a_clock_that_was_ahead_and_is_put_right_hides_nobody(world: World) -> None:
    await world.add(document(pipeline="unknown"))
    await world.settle(await world.take(), ASIDE)
    await world.execute("UPDATE queue SET served_ms = $1, seen_ms = $1", START_MS + 400 * DAY_MS)
    await world.execute("UPDATE lane SET open_ms = $1", START_MS + 400 * DAY_MS)
    await pass_by(world, 2 * HOUR_MS)
    assert len((await look(world)).stuck) == 1


async def test_who_dies_of_used_up_attempts_is_counted_with_his_death_and_dead_until_requeued(
    world: World,
) -> None:
    await exhausted(world, 3)
    (bad,) = await world.add(document(policy=Policy(attempts=1)))
    await world.settle(await world.take(), dead("bad_file"))
    told = await world.store.retry_job()
    assert told.max_retries_exceeded["documents"] == 3
    assert (told.failed["documents"], told.exhausted["documents"]) == (4, 3)
    assert (await world.status(bad)).state == "dead"


async def test_a_refused_death_is_not_counted(world: World) -> None:
    await world.add(document())
    job = await world.take()
    ending = replace(dead(), exhausted=True)
    assert not await world.settle(replace(job, token=job.token + 1), ending)
    assert (await world.store.retry_job()).max_retries_exceeded["documents"] == 0


# --- who is stuck ----------------------------------------------------------------------------------


async def test_nobody_is_stuck_who_is_new_running_held_paused_scheduled_or_only_waits_for_a_worker(
    world: World,
) -> None:
    await world.store.declare([QUEUE, "other"], ["ocr"])
    running, starved, *_ = await world.add(
        document(), document(), document(lane="ocr"), document(delay_ms=10 * HOUR_MS), document(queue="other")
    )
    await world.store.hold("ocr", "away")
    await world.store.pause("other", True)
    job = await world.take()
    await pass_by(world, 2 * HOUR_MS)
    await world.add(document())
    await world.execute("UPDATE job SET lease_until_ms = $1 WHERE id = $2", world.clock.now_ms() + 1, job.id)

    found = await look(world)

    assert (found.stuck, found.starved, found.bad) == ([], {"documents": 1}, [])
    assert job.document_id in (running, starved)


async def put_aside(world: World) -> str:
    """A document that a worker does not know and puts back."""
    (id_,) = await world.add(document())
    assert await world.settle(await world.take(), ASIDE)
    return id_


async def test_one_that_is_put_aside_again_and_again_is_stuck_since_it_was_due_first(world: World) -> None:
    id_ = await put_aside(world)
    await pass_by(world, HOUR_MS // 2)
    await world.promoted(1)
    await world.settle(await world.take(), ASIDE)
    assert (await look(world)).stuck == []

    await pass_by(world, HOUR_MS // 2 + 120_000)

    (stuck,) = (await look(world)).stuck
    assert (stuck.job.document_id, stuck.state, stuck.since_ms) == (id_, "waiting", START_MS)
    await world.promoted(1)
    assert [one.state for one in (await look(world)).stuck] == ["queued"]
    await world.settle(await world.take(), retry(1_000))
    assert (await look(world)).stuck == [], "an attempt that was made is progress"


async def test_time_without_workers_or_with_the_lane_down_does_not_count(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    await world.store.attend()
    await put_aside(world)
    await pass_by(world, 2 * HOUR_MS, served=False)
    await pass_by(world, HOUR_MS // 2)
    assert (await look(world)).stuck == [], "nobody served it for long enough"
    await pass_by(world, HOUR_MS)
    assert len((await look(world)).stuck) == 1
    await world.store.pause(QUEUE, True)
    await pass_by(world, 60_000)
    await world.store.pause(QUEUE, False)
    await pass_by(world, 60_000)
    assert (await look(world)).stuck == [], "it was paused"

    await world.execute("UPDATE job SET lane = 'ocr'")
    await world.store.hold("ocr", "away")
    await pass_by(world, 3 * HOUR_MS)
    await world.store.release("ocr")
    assert (await look(world)).stuck == [], "its dependency is only just back"
    await pass_by(world, HOUR_MS + 120_000)
    assert len((await look(world)).stuck) == 1


async def test_a_job_that_no_claim_can_see_is_found_and_can_be_claimed_again(world: World) -> None:
    (id_,) = await world.add(document(lane=""))
    await world.execute("UPDATE job SET lane = 'vanished'")
    await pass_by(world, 2 * HOUR_MS)
    assert await world.claim() == []

    (stuck,) = (await look(world)).stuck
    assert (stuck.job.document_id, stuck.state) == (id_, "lost")
    assert await world.store.requeue_stuck([stuck], Counter({"threads": 2})) == [stuck]

    await world.promoted(1)
    assert (await world.take()).document_id == id_
    told = await world.store.retry_job()
    assert (told.requeued["documents"], told.skipped_backoff["threads"]) == (1, 2)


async def test_a_job_that_moved_on_since_it_was_found_keeps_its_place(world: World) -> None:
    await world.add(document())
    await world.settle(await world.take(), retry(1_000))
    await pass_by(world, 2 * HOUR_MS)
    (stuck,) = (await look(world)).stuck
    assert stuck.state == "waiting"

    await world.promoted(1)
    assert await world.store.requeue_stuck([stuck], Counter()) == []
    assert len(await world.claim()) == 1, "it is still in its queue"


async def test_a_job_that_ran_again_since_it_was_found_keeps_its_new_wait(world: World) -> None:
    await world.add(document())
    await world.settle(await world.take(), retry(1_000))
    await pass_by(world, 2 * HOUR_MS)
    (stuck,) = (await look(world)).stuck

    await world.promoted(1)
    await world.settle(await world.take(), retry(HOUR_MS))
    assert await world.store.requeue_stuck([stuck], Counter()) == []
    await world.promoted(0)


async def test_a_document_that_began_again_since_it_was_found_keeps_its_wait(world: World) -> None:
    (id_,) = await world.add(document(delay_ms=1_000))
    await pass_by(world, 2 * HOUR_MS)
    (stuck,) = (await look(world)).stuck

    await world.promoted(1)  # while the sweeper stands still
    await world.settle(await world.take(), DONE)
    again = replace(document().job, delay_ms=HOUR_MS)
    assert await world.store.requeue(Requeue(ORG, id_, again)) == "requeued"
    assert await world.store.requeue_stuck([stuck], Counter()) == []
    await world.promoted(0)


async def test_pages_cover_all_jobs_of_all_organisations_once(world: World) -> None:
    ids = await world.add(
        *(document(org=org) for org in ("acme", "zeta", "acme", "beta", "zeta") for _ in range(3))
    )
    await world.execute("UPDATE job SET lane = 'vanished'")
    await pass_by(world, 2 * HOUR_MS)
    now_ms, _ = await world.store.attend()
    after: tuple[str, int] | None = ("", 0)
    found: list[StuckJob] = []
    sizes = []
    while after is not None:
        page = await world.store.stuck(after, 4, now_ms - HOUR_MS, now_ms)
        found += page.stuck
        sizes.append(page.size)
        after = page.after
    assert sorted(one.job.document_id for one in found) == sorted(ids)
    assert (sum(sizes), max(sizes)) == (15, 4)


# --- what is done ----------------------------------------------------------------------------------


async def test_of_two_who_requeue_at_once_one_does_and_one_is_counted(world: World) -> None:
    await put_aside(world)
    await pass_by(world, 2 * HOUR_MS)
    stuck = (await look(world)).stuck
    other = await world.another()

    taken = await asyncio.gather(*(store.requeue_stuck(stuck, Counter()) for store in (world.store, other)))

    assert sorted(map(len, taken)) == [0, 1]
    assert (await world.store.retry_job()).requeued["documents"] == 1
    assert (await world.job(stuck[0].job.document_id))["requeues"] == 1


@pytest.mark.parametrize("moved", [False, True])
async def test_who_is_seized_is_buried_once_and_only_if_nobody_took_him_meanwhile(
    world: World, moved: bool
) -> None:
    (id_,) = await world.add(document(policy=Policy(attempts=2)))
    await world.settle(await world.take(), retry(1_000))
    world.clock.turn(1_000)
    found = await world.store.job_at(ORG, id_, f"doc-{id_}")
    assert found is not None
    if moved:
        await world.promoted(1)
        await world.take()
    ending = Dead(Failure("extract", "Stuck", "stuck", "no attempt left"), "stuck", exhausted=True)
    settles = [
        Settle(replace(found, token=new_token(), worker=0, claims=found.claims + 1, claimed_ms=world.clock.now_ms()),
               ending, found.stage, found.lane, seized=True, ours=False)
        for _ in range(2)
    ]  # fmt: skip
    other = await world.another()

    answers = await asyncio.gather(world.store.settle(settles[0]), other.settle(settles[1]))

    assert sorted(answers) == ([False, False] if moved else [False, True])
    status, told = await world.status(id_), await world.store.retry_job()
    assert status.state == ("running" if moved else "dead")
    assert told.max_retries_exceeded["documents"] == (0 if moved else 1)
    if not moved:
        assert status.attempts_made == 1
        history = await world.store.attempts(ORG, id_)
        assert [(a.outcome, a.charged) for a in history] == [("retry", True), ("dead", False)]
