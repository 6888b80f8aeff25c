"""A keeper whose worker's event loop stands still: what it tells the store, and whose leases it renews."""

from __future__ import annotations

import pytest

from perdure.core.events import Events
from perdure.engine import keeper as keeper_module
from perdure.engine.keeper import ALIVE_S, Keeper
from perdure.engine.loop_watch import SILENT_MS
from perdure.engine.slate import Slate
from perdure.engine.sweeper import Sweeper
from tests.store.making import World, document

STALL_MS = 25_000
BEGAN_MS = 1_000_000


class Watched:
    """A worker with a job in hand, its keeper, and their clock."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, stall_ms: int) -> None:
        self.world, self.now_ms = world, BEGAN_MS
        self.slate, self.stalls = Slate.private(), list[int]()
        self.keeper = Keeper(
            world.store, Events(), world.worker, self.slate, Sweeper(world.store, Events()),
            stall_ms=stall_ms, on_stall=self.stalls.append,
        )  # fmt: skip
        monkeypatch.setattr(keeper_module, "monotonic_ms", lambda: self.now_ms)

    async def take(self) -> None:
        await self.world.add(document())
        job = await self.world.take()
        self.slot = self.slate.take(job.id, job.token or 0, job.lease_ms, self.now_ms)

    async def passes(self, seconds: float, *, ticks: bool) -> None:
        for _ in range(int(seconds / ALIVE_S)):
            self.now_ms += int(ALIVE_S * 1000)
            self.world.clock.turn(int(ALIVE_S * 1000))
            if ticks:
                self.slate.tick()
            await self.keeper._keep()
            await self.keeper._give_up()

    async def silent_since_ms(self) -> int | None:
        (ours,) = (one for one in await self.world.store.workers() if one.id == self.world.worker)
        return ours.silent_since_ms


async def test_silence_is_told_when_it_begins_and_when_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(world, monkeypatch, 0)
    await watched.take()
    await watched.passes(30, ticks=True)
    assert await watched.silent_since_ms() is None
    began_ms = world.clock.ms
    await watched.passes(SILENT_MS / 1000 - 1, ticks=False)
    assert await watched.silent_since_ms() is None
    await watched.passes(120, ticks=False)
    silent_since_ms = await watched.silent_since_ms()
    assert silent_since_ms is not None
    assert abs(silent_since_ms - began_ms) <= 1_000
    assert not watched.slate.revoked(watched.slot)  # its supervisor ends it, and until then it is ours
    await watched.passes(1, ticks=True)
    assert await watched.silent_since_ms() is None
    assert watched.stalls == []


@pytest.mark.parametrize("others", [True, False])
async def test_leases_of_an_embedded_worker_that_stands_still_are_left_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    watched = Watched(world, monkeypatch, STALL_MS)
    if others:
        await world.store.register("worker", "other", ["documents"])
        await watched.keeper._look()
    await watched.take()
    await watched.passes(60, ticks=True)
    await watched.passes(20, ticks=False)
    assert (watched.stalls, watched.slate.revoked(watched.slot)) == ([], False)
    await watched.passes(40, ticks=False)
    assert watched.slate.revoked(watched.slot) == others
    assert [told >= STALL_MS for told in watched.stalls] == [True]
    assert len(await world.store.expired(10)) == others
