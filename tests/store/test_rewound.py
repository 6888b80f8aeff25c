"""A store whose last commits are lost, as after the promotion of a standby that lacked them.

A test undoes commits by hand: the rows are as they were, and the number of the client's flush is behind.
"""

from __future__ import annotations

import asyncio

from perdure.core.outcome import Done
from perdure.store.operations import Promote
from tests.store.faults import break_writes, never_sent
from tests.store.making import QUEUE, World, document, output, save


async def rewind(world: World, flushes: int) -> None:
    """The client's last flushes were never written; the test undoes what else they did."""
    number = "UPDATE worker SET flush = flush - $2 WHERE id = $1"
    await world.execute(number, world.store.flusher.client, flushes)


async def test_add_is_written_although_the_number_is_ahead(world: World) -> None:
    await world.add(document(), document())
    first = world.store.flusher.client
    await world.add(document())
    await rewind(world, 1)

    (added,) = await asyncio.wait_for(world.store.add([document("after")]), 30)

    assert added.answer == "added"
    assert (await world.status(added.id)).state == "queued"
    assert world.store.flusher.client != first, "the client registered again"


async def test_add_in_doubt_is_written_once_if_the_number_is_ahead(world: World) -> None:
    """No try under a number can have been applied to a history that ends before it."""
    await world.add(document())
    await world.add(document())
    await rewind(world, 1)
    break_writes(world, [never_sent])

    (added,) = await world.store.add([document("in doubt")])

    assert added.answer == "added"
    assert await world.query("SELECT count(*) FROM document WHERE name = 'in doubt'") == [(1,)]


async def test_stage_after_a_lost_one_is_refused(world: World) -> None:
    """Its claim and token are in the history that is left, and the stage before it is not."""
    (id_,) = await world.add(document())
    job = await world.take()
    assert await world.store.save(save(job, output=output()))
    await world.execute("DELETE FROM saved")
    await rewind(world, 1)

    assert not await world.settle(job, Done())

    assert (await world.status(id_)).state == "running"
    assert [expired.id for expired in await world.store.expired(10, [])] == [job.id]


async def test_stage_after_a_lost_one_is_refused_although_the_client_gave_up_in_doubt(world: World) -> None:
    """It registers again without having seen its number."""
    await world.add(document())
    job = await world.take()
    assert await world.store.save(save(job, output=output()))
    await world.execute("DELETE FROM saved")
    await rewind(world, 1)
    world.store.flusher.client = 0

    assert not await world.store.save(save(job, output=output()))


async def test_work_goes_on_if_only_the_registration_is_new(world: World) -> None:
    """Nothing is lost, so nothing is taken from the worker."""
    await world.add(document())
    job = await world.take()
    world.store.flusher.client = 0

    assert await world.store.save(save(job, output=output()))
    assert await world.settle(job, Done())


async def test_flow_that_was_declared_in_the_lost_moments_is_declared_again(world: World) -> None:
    """Otherwise no claim would see its jobs."""
    await world.store.promote(Promote())
    await world.add(document())
    for table in ("job", "flow", "document"):
        await world.execute(f"DELETE FROM {table}")
    await rewind(world, 1)

    (id_,) = await world.add(document())

    assert [c.document.id for c in await world.claim(queues=(QUEUE,))] == [id_]


async def test_number_of_a_worker_that_is_lost_and_lives_is_not_given_again(postgres_world: World) -> None:
    """Its row is lost, and the sequence of the numbers is as it was before."""
    world = postgres_world
    await world.execute("DELETE FROM worker WHERE id = $1", world.worker)
    await world.execute("SELECT setval(pg_get_serial_sequence('worker', 'id'), $1, false)", world.worker)
    other = await world.another()

    assert await other.register("worker", "other", [QUEUE]) != world.worker


async def test_number_of_a_client_that_is_lost_and_lives_is_not_given_again(postgres_world: World) -> None:
    """Otherwise either would take the other's flushes for its own."""
    world = postgres_world
    await world.add(document())
    ours = world.store.flusher.client
    await world.execute("DELETE FROM worker WHERE id = $1", ours)
    await world.execute("SELECT setval(pg_get_serial_sequence('worker', 'id'), $1, false)", ours)
    world.store.driver._held.discard(("worker", ours))  # type: ignore[attr-defined]
    other = await world.another()
    await other.add([document()])

    assert other.flusher.client != ours


async def test_stage_in_doubt_after_a_lost_one_is_refused(world: World) -> None:
    await world.add(document(), document())
    first, second = (c.job for c in await world.claim(2))
    assert await world.store.save(save(first, output=output()))
    await world.execute("DELETE FROM saved")
    await rewind(world, 1)
    break_writes(world, [never_sent])

    assert not await world.store.save(save(first, output=output()))
    assert not await world.store.save(save(second, output=output()))
