"""Jobs that do not get on: which ones are found, what is done about each, and what is counted with it."""

from __future__ import annotations

from dataclasses import replace

from perdure.core.model import Policy
from perdure.core.outcome import Hold
from perdure.store.stuck import COLLECTIONS, Page, Run
from tests.store.making import START_MS, World, dead, document

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ASIDE = Hold("no worker knows this pipeline", aside=True)


async def pass_by(world: World, ms: int, served: bool = True) -> None:
    """Time in which a worker lives and the sweeper looks; `served=False`: nobody does."""
    if served:
        for _ in range(ms // 60_000):
            world.clock.turn(60_000)
            await world.execute("UPDATE worker SET beat_ms = $1", world.clock.now_ms())
            await world.store.attend()
    else:
        world.clock.turn(ms)


async def look(world: World, size: int = 100, threshold_ms: int = HOUR_MS) -> Page:
    now_ms = await world.store.attend()
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
