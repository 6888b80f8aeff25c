"""A child that is given other content in the very transaction in which it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from perdure.core.outcome import Outcome
from perdure.store.operations import Requeue
from tests.store.making import DONE, ORG, World, dead, document, retry, save
from tests.store.test_feed import told as read


@pytest.mark.parametrize(
    ("ending", "told"), [(DONE, ["document.done"]), (dead(), ["document.dead"]), (retry(1_000), [])]
)
async def test_a_child_that_ends_while_its_parent_renews_it_goes_on_with_the_new_content(
    world: World, ending: Outcome, told: list[str]
) -> None:
    parent_id, child_id = await world.add(document("parent"), child := document("child"))
    jobs = {one.job.document_id: one.job for one in await world.claim(2)}
    renewed = replace(child, content_hash="another", parent_id=parent_id, refresh=True)

    kept = await asyncio.gather(
        world.settle(jobs[child_id], ending), world.store.save(save(jobs[parent_id], documents=(renewed,)))
    )
    assert all(kept)

    status = await world.status(child_id)
    assert (status.state, status.generation) == ("queued", 2)
    assert await world.store.dead_one(ORG, child_id) is None
    assert await world.miscounted() == {}
    feed = await read(world, len(told) + 1)
    assert [one.name for one in feed if one.document_id == child_id] == [*told, "document.requeued"]
    assert (await world.take()).document_id == child_id


async def test_a_child_that_is_requeued_while_its_parent_renews_it_is_counted_once(world: World) -> None:
    parent_id, child_id = await world.add(document("parent"), child := document("child"))
    jobs = {one.job.document_id: one.job for one in await world.claim(2)}
    await world.settle(jobs[child_id], dead())
    renewed = replace(child, content_hash="another", parent_id=parent_id, refresh=True)

    answer, kept = await asyncio.gather(
        world.store.requeue(Requeue(ORG, child_id, child.job, None, "ann", "again")),
        world.store.save(save(jobs[parent_id], documents=(renewed,))),
    )

    assert (answer, kept) == ("requeued", True)
    assert (await world.status(child_id)).generation == 3
    assert await world.miscounted() == {}
    assert (await world.take()).generation == 3
