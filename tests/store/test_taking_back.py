"""Whoever takes a job back may have read it long ago, and may be wrong about its worker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perdure.core.events import Events
from perdure.core.model import Job
from perdure.core.outcome import Later
from perdure.engine import keeper as keeper_module
from perdure.engine.keeper import APART_S, BEAT_S_MAX, Keeper
from perdure.engine.slate import Slate
from perdure.engine.sweeper import SERVER_YOUNG_S, Sweeper
from perdure.store.operations import Beat, Settle
from tests.store.making import LEASE_MS, World, document, output, save


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


# --- when a worker is taken for dead ----------------------------------------------------------------


class Watch:
    """A keeper that watches over another worker whose lock is free, and the time by its monotonic clock."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.s = 1_000.0
        self.up_s = 3_600.0
        self.slate = Slate.private()
        self.keeper = Keeper(world.store, Events(), 0, self.slate, Sweeper(world.store, Events()))
        clock = SimpleNamespace(monotonic=lambda: self.s, monotonic_ns=lambda: int(self.s * 1e9))
        monkeypatch.setattr(keeper_module, "time", clock)
        monkeypatch.setattr(world.store, "up_for_s", self._up_for_s)

    async def _up_for_s(self) -> float:
        return self.up_s

    async def kill(self) -> Job:
        """A job whose worker has no lock any more."""
        await self.world.add(document())
        job = await self.world.take()
        await self.world.store.driver.unlock("worker", job.worker)
        return job

    async def look(self, after_s: float) -> list[Job]:
        """Look once more after a while; what the worker still has in hand."""
        self.s += after_s
        await self.keeper._look()
        return await self.world.store.in_hand(self.world.worker)


async def test_a_worker_is_dead_when_its_lock_is_free_on_two_looks_apart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(world, monkeypatch)
    job = await watch.kill()

    assert await watch.look(0) == [job]
    assert await watch.look(APART_S / 2) == [job]
    assert await watch.look(APART_S / 2) == []


async def test_a_worker_that_beats_without_its_lock_is_not_dead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection broke, and it is connected again."""
    watch = Watch(world, monkeypatch)
    job = await watch.kill()
    assert await watch.look(0) == [job]

    world.clock.turn(500)
    await world.store.beat(Beat(world.worker, ()))

    assert await watch.look(APART_S) == [job]


async def test_no_worker_is_dead_while_the_server_is_young(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(world, monkeypatch)
    job = await watch.kill()
    watch.up_s = SERVER_YOUNG_S - 1
    assert await watch.look(0) == [job]

    assert await watch.look(APART_S) == [job]


async def test_a_jump_takes_no_short_lease_of_a_worker_that_beats_rarely(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had nothing in hand, so its last beat is older than a short lease, and the next one is not due yet."""
    watch = Watch(world, monkeypatch)
    await watch.look(0)
    await world.add(document(lease_ms=6_000))
    job = await world.take()
    assert await watch.look(BEAT_S_MAX - 0.5) == [job]

    world.clock.turn(60_000)
    await watch.keeper._sweep()

    assert await watch.look(0) == [job]


async def test_a_job_is_given_up_after_two_thirds_of_a_lease_that_was_not_renewed(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(sqlite_world, monkeypatch)
    slot = watch.slate.take(1, 9, LEASE_MS, int(watch.s * 1000))

    watch.s += LEASE_MS / 1000 * 2 / 3
    await watch.keeper._give_up()
    assert not watch.slate.revoked(slot)

    watch.s += 0.001
    await watch.keeper._give_up()
    assert watch.slate.revoked(slot)
