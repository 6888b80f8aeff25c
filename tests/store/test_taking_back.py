"""Whoever takes a job back may have read it long ago, and may be wrong about its worker."""

from __future__ import annotations

from perdure.core.events import Events
from perdure.core.outcome import Later
from perdure.engine.keeper import Keeper
from perdure.engine.slate import Slate
from perdure.engine.sweeper import Sweeper
from perdure.store.operations import Settle
from tests.store.making import World, document, output, save


async def test_a_job_that_got_on_since_it_was_read_is_not_set_back(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    assert await world.store.save(save(job, "chunk", output=output()))

    back = Settle(job, Later(0, "worker lost"), job.stage, job.lane, ours=False)

    assert not await world.store.settle(back)
    status = await world.store.status(job.org, id_)
    assert status is not None
    assert (status.state, status.stage) == ("running", "chunk")


async def test_a_worker_whose_lock_came_after_the_look_is_not_buried(world: World) -> None:
    """Between its row and its lock a new worker looks dead; one that has a job has its lock."""
    await world.add(document())
    job = await world.take()  # by a worker that lives
    keeper = Keeper(world.store, Events(), 0, Slate.private(), Sweeper(world.store, Events()))

    await keeper._bury(job.worker)

    assert await world.store.in_hand(job.worker) == [job]
