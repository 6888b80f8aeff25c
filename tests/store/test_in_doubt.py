"""When a write is in doubt and its retry fails, nothing is applied twice and no answer is untrue."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.errors import SettingInvalid, StoreBusy, StoreUnavailable, Unstorable
from tests.store.faults import Given, break_writes, lock_timeout, never_sent, refused, reply_lost, well
from tests.store.making import ORG, World, Write, dead, document, output, save


async def test_after_a_refusal_in_doubt_the_next_write_is_not_taken_for_the_last(world: World) -> None:
    await world.add(document(), document())
    first, second = (c.job for c in await world.claim(2))
    break_writes(world, [reply_lost, refused])
    with pytest.raises(StoreUnavailable, match=r"unknown.*28000"):
        await world.store.save(save(first, output=output()))
    break_writes(world, [never_sent])

    assert await world.store.save(save(second, output=output()))

    for job in (first, second):
        assert len(await world.store.saves(ORG, job.document_id, "books")) == 1


async def test_a_batch_that_is_refused_in_doubt_is_not_applied_twice(world: World) -> None:
    await world.add(*(document() for _ in range(4)))
    break_writes(world, [reply_lost, refused])

    answers = await asyncio.gather(world.claim(), world.claim(), return_exceptions=True)

    assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
    assert len(await world.store.in_hand(world.worker)) == 2


async def test_a_refused_value_is_found_although_the_store_was_away_before(world: World) -> None:
    await world.add(*(document() for _ in range(3)))
    jobs = [c.job for c in await world.claim(3)]
    break_writes(world, [never_sent])

    poisoned = replace(output(), size=2**70)
    answers = await asyncio.gather(
        world.store.save(save(jobs[0], output=poisoned)),
        *(world.store.save(save(job, output=output())) for job in jobs[1:]),
        return_exceptions=True,
    )

    assert isinstance(answers[0], Unstorable)
    assert answers[1:] == [True, True]


async def test_a_stage_statement_in_doubt_that_meets_a_lock_is_applied_once(world: World) -> None:
    await world.execute("CREATE TABLE mine (id text)")
    await world.add(document())
    job = await world.take()
    break_writes(world, [reply_lost, lock_timeout])

    assert await world.store.save(save(job, sql=(("INSERT INTO mine VALUES ($1)", ("a",)),)))

    assert await world.query("SELECT id FROM mine") == [("a",)]


async def test_giving_up_in_doubt_while_busy_does_not_say_that_nothing_was_written(world: World) -> None:
    await world.add(document())
    flusher = world.store.flusher

    async def busy_at_the_end(_: Write, __: Given) -> Any:
        flusher._close_by_s = 0.0
        raise StoreBusy("deadlock detected")

    break_writes(world, [reply_lost, busy_at_the_end])
    with pytest.raises(StoreUnavailable, match="unknown"):
        await world.store.add([document()])
    assert (await world.store.add([document()]))[0].answer == "added"


async def test_an_add_that_cannot_be_done_again_fails_alone(world: World) -> None:
    known = document("known", dedupe="k")
    await world.add(known)
    await world.settle(await world.take(), dead())
    await world.add(document(), document())
    other = await world.another()

    async def lost_and_purged(write: Write, steps: Given) -> Any:
        await write(steps)
        assert await other.purge([(ORG, known.id)]) == {(ORG, known.id): "purged"}
        raise StoreUnavailable("the connection was lost after COMMIT")

    break_writes(world, [lost_and_purged, well, refused])
    added, claimed = await asyncio.gather(
        world.store.add([document(dedupe="k")]), world.claim(), return_exceptions=True
    )

    assert isinstance(added, SettingInvalid)
    assert isinstance(claimed, list)
    assert [c.job for c in claimed] == await world.store.in_hand(world.worker)
