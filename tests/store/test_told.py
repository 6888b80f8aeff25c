"""A document's status is the same before and after its job's row is pruned, and tells the last failure meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.core.outcome import Outcome
from perdure.store.operations import Cancel, Requeue
from tests.store.making import DONE, ORG, World, dead, document, hold, later, retry, save


async def pruned(world: World) -> None:
    world.clock.turn(10_000_000)
    await world.store.prune(3_600_000, 1_000)
    assert await world.query("SELECT id FROM job WHERE state IN ('done', 'cancelled')") == []


@pytest.mark.parametrize("with_saves", [False, True])
async def test_a_done_document_keeps_its_status_when_its_job_is_pruned(
    world: World, with_saves: bool
) -> None:
    id_, other = await world.add(document(), document())
    await world.settle(await world.take(), retry())
    first, second = await world.claim(2)
    world.clock.turn(700)
    await world.store.save(save(first.job, "chunk"))
    world.clock.turn(800)
    if with_saves:  # PostgreSQL saves and finishes in one statement
        await world.store.save(save(second.job, "chunk"))
    await world.settle(replace(first.job, stage="chunk"), DONE)
    await world.settle(second.job, DONE)
    before = await world.status(id_), await world.status(other)
    assert {one.attempts_made for one in before} == {1, 2}
    assert all(one.attempts_max == 3 and one.stage and one.last_heartbeat_ms for one in before)

    await pruned(world)

    assert (await world.status(id_), await world.status(other)) == before
    assert [s for s in await world.store.documents() if s.id == id_] == [before[0]]
    standing = await world.store.standing(ORG, id_)
    assert standing is not None
    assert standing.status == before[0]


@pytest.mark.parametrize("claimed", [False, True])
async def test_a_cancelled_document_keeps_its_status_when_its_job_is_pruned(
    world: World, claimed: bool
) -> None:
    (id_,) = await world.add(document())
    if claimed:
        await world.take()
    await world.store.cancel(Cancel(ORG, id_, "me", "no"))
    before = await world.status(id_)
    assert (before.attempts_made, before.attempts_max, before.stage) == (int(claimed), 3, "extract")

    await pruned(world)

    assert replace(await world.status(id_), suspect=before.suspect) == before


async def test_a_document_that_waits_tells_its_last_failure(world: World) -> None:
    (id_,) = await world.add(document())
    assert (await world.status(id_)).error_code is None
    for outcome in (retry(1_000), later(1_000), hold()):
        job = await world.take()
        assert (await world.status(id_)).error_code is None, "while it runs nothing has failed yet"
        await world.settle(job, outcome)
        status = await world.status(id_)
        assert (status.error_code, status.error_message) == ("unexpected", "boom"), outcome
        assert [(s.error_code, s.error_message) for s in await world.store.documents()] == [
            ("unexpected", "boom")
        ]
        world.clock.turn(10_000_000)
        await world.promoted(1)
    await world.settle(await world.take(), DONE)
    assert (await world.status(id_)).error_code is None


async def test_a_new_generation_has_no_failure_of_the_old_one(world: World) -> None:
    (id_,) = await world.add(document())
    ends: list[Outcome] = [retry(), dead("http_404")]
    for end in ends:
        await world.settle(await world.take(), end)
    assert (await world.status(id_)).error_code == "http_404"
    await world.store.requeue(Requeue(ORG, id_, document().job, None, "me", "again"))
    assert (await world.status(id_)).error_code is None
