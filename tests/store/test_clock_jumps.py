"""A clock that is set ahead takes no document from a worker that lives, however far it is set."""

from __future__ import annotations

import pytest

from perdure.core.events import Events
from perdure.core.model import Job
from perdure.engine.sweeper import JUMP_MS, LATE_MS, RENEWAL_S_MAX, Sweeper
from perdure.store.operations import Beat
from tests.store.making import LEASE_MS, World, document

BEAT_MS = 10_000  # how often a worker renews a lease of 30 s


class Watched:
    """A sweeper beside a worker that lives; the store's clock and the monotonic one go together until it is set."""

    def __init__(self, world: World) -> None:
        self.world, self.monotonic_s = world, 1_000.0
        self.sweeper = Sweeper(world.store, Events(), server_young_s=0.0)
        self.sweeper.lives = lambda worker: True

    async def taken(self, seconds: int, *held: Job) -> int:
        """How many jobs are taken back while this time passes; those in `held` are renewed every 10 s."""
        taken = 0
        for n in range(1, seconds + 1):
            self.world.clock.turn(1_000)
            self.monotonic_s += 1
            taken += (await self.sweeper.sweep(self.monotonic_s)).recovered
            if n * 1_000 % BEAT_MS == 0 and held:
                assert (
                    await self.world.store.beat(
                        Beat(self.world.worker, tuple((job.id, job.token or 0) for job in held))
                    )
                    == set()
                )
        return taken


async def begun(world: World) -> tuple[Watched, Job]:
    await world.add(document())
    return Watched(world), await world.take()


@pytest.mark.parametrize("ahead_s", [1, 5, 19, 21, 25, 30, 35, 40, 3_600])
async def test_a_clock_that_is_set_ahead_takes_no_lease_that_is_renewed(world: World, ahead_s: int) -> None:
    watched, job = await begun(world)
    assert await watched.taken(9, job) == 0

    world.clock.turn(ahead_s * 1_000)

    assert await watched.taken(40, job) == 0


@pytest.mark.parametrize("passed_s", range(10))
async def test_wherever_between_two_renewals_the_clock_is_set(world: World, passed_s: int) -> None:
    watched, job = await begun(world)
    await watched.taken(40 + passed_s, job)

    world.clock.turn(LEASE_MS - 3_000)  # what is left of the lease is no longer than that after 3 s

    assert await watched.taken(40, job) == 0


async def test_a_lease_that_is_not_renewed_is_taken_when_it_ends(world: World) -> None:
    watched, _ = await begun(world)

    assert await watched.taken(LEASE_MS // 1_000) == 0
    assert await watched.taken(LATE_MS // 1_000) == 1


async def test_after_a_jump_a_lease_that_is_not_renewed_is_taken_within_its_renewal(world: World) -> None:
    watched, _ = await begun(world)
    assert await watched.taken(3) == 0

    world.clock.turn(LEASE_MS)

    assert await watched.taken(int(RENEWAL_S_MAX) - 1) == 0
    assert await watched.taken(3) == 1


async def test_a_jump_that_no_sweep_notices_is_smaller_than_a_renewal(world: World) -> None:
    """A worker renews after a third of its lease, so less than two thirds cannot end it."""
    assert JUMP_MS < LEASE_MS * 2 / 3
    watched, job = await begun(world)
    for _ in range(5):
        assert await watched.taken(9, job) == 0
        world.clock.turn(JUMP_MS)
        assert await watched.taken(1, job) == 0
        await world.store.beat(Beat(world.worker, ((job.id, job.token or 0),)))


@pytest.mark.parametrize("frozen_s", [8, 24, 40])
async def test_a_jump_after_a_sweep_that_was_frozen_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch, frozen_s: int
) -> None:
    """The store's time is read after the look: a sweeper that was frozen in between saw a jump that was none."""
    watched, job = await begun(world)
    assert await watched.taken(40, job) == 0
    look = world.store.expired

    async def frozen(limit: int, bad: list[tuple[int, Exception]] | None = None) -> list[Job]:
        found = await look(limit, bad)
        for _ in range(frozen_s // 8):
            world.clock.turn(8_000)
            await world.store.beat(Beat(world.worker, ((job.id, job.token or 0),)))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "expired", frozen)
        assert await watched.taken(1) == 0
    watched.monotonic_s += frozen_s

    world.clock.turn(LEASE_MS + 1_000)

    assert await watched.taken(40, job) == 0
