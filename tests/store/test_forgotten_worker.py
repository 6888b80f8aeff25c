"""A worker that was cut off and taken for dead comes back: it is listed again, and what it had is another's."""

from __future__ import annotations

from perdure.store.operations import Beat
from tests.store.making import World


async def test_a_beat_registers_a_forgotten_worker_again(world: World) -> None:
    await world.store.retire(world.worker)
    assert [w for w in await world.store.workers() if w.kind == "worker"] == []
    lost = await world.store.beat(Beat(world.worker, ((1, 1),)))
    assert lost == {(1, 1)}
    [again] = [w for w in await world.store.workers() if w.kind == "worker"]
    assert (again.id, again.name, again.queues) == (world.worker, "w", ("documents",))
    assert await world.store.register("worker", "next", ["documents"]) != world.worker
