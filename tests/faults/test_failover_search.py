"""Vectors in memory follow the numbers of transactions; a standby that lacks the last ones gives those again."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.proxy import Proxy
from tests.faults.replication import Replication, replication
from tests.store.making import ORG, World
from tests.store.test_chunks import MODEL, indexed, vector

pytestmark = pytest.mark.timeout(1_800)

LOST = 50
EAST, NORTH = vector(1, 0), vector(0, 1)


async def found(world: World, near: bytes) -> list[str]:
    """The chunks that a search by vector finds."""
    return sorted(hit.snippet for hit in await world.store.search(ORG, "", (MODEL, near), limit=100))


async def follow(servers: Replication, address: Proxy) -> None:
    async with World(address.url) as world:
        world.tampered = True
        await indexed(world, "before", vectors=[EAST])
        await asyncio.to_thread(servers.attach, synchronous=False)
        await asyncio.to_thread(servers.stop_sending)
        for n in range(LOST):
            await indexed(world, f"lost {n}", vectors=[NORTH])
        assert len(await found(world, NORTH)) == LOST
        await asyncio.to_thread(servers.fail_over, "kill")
        address.point_to(servers.primary.url)

        await indexed(world, "after", vectors=[EAST])

        assert await found(world, EAST) == ["after", "before"]
        assert await found(world, NORTH) == [], "chunks of today under numbers that were those of lost ones"


def test_vectors_follow_a_standby_that_lacks_the_last_moments() -> None:
    with replication() as servers, Proxy(servers.primary.url, {}) as address:
        asyncio.run(follow(servers, address))
