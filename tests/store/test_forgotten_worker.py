"""A worker that was cut off and taken for dead comes back: it is listed again, and what it had is another's."""

from __future__ import annotations

from perdure.store.operations import Beat
from tests.store.making import DONE, World, document

DAY_MS = 86_400_000


async def test_a_beat_registers_a_forgotten_worker_again(world: World) -> None:
    await world.store.retire(world.worker)
    assert [w for w in await world.store.workers() if w.kind == "worker"] == []
    lost = await world.store.beat(Beat(world.worker, ((1, 1),)))
    assert lost == {(1, 1)}
    [again] = [w for w in await world.store.workers() if w.kind == "worker"]
    assert (again.id, again.name, again.queues) == (world.worker, "w", ("documents",))
    assert await world.store.register("worker", "next", ["documents"]) != world.worker


async def test_a_client_that_writes_is_not_forgotten_although_its_lock_is_lost(world: World) -> None:
    """A lock is lost with its connection; the client would take it for lost commits and let go of its documents."""
    await world.add(document())
    job = await world.take()
    world.clock.turn(2 * DAY_MS)
    await world.store.beat(Beat(world.worker, ()))
    await world.store.driver.unlock("worker", world.store.flusher.client)

    assert await (await world.another()).forget_clients(DAY_MS) == 0

    assert await world.settle(job, DONE)
    world.clock.turn(2 * DAY_MS)
    assert await (await world.another()).forget_clients(DAY_MS) == 1
