"""Priorities order the jobs of an organisation; they do not give it more turns than others have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.store.making import World, document
from tests.store.test_fairness import pile, served

ORDER = "SELECT id FROM job WHERE state = 'queued' ORDER BY vt, priority DESC, id"


async def all_ranks(world: World, org: str, each: int, upwards: bool = True, **job: Any) -> None:
    """Jobs of every priority; upwards, each rank goes before all that wait already."""
    for priority in range(-10, 11) if upwards else range(10, -11, -1):
        await pile(world, org, each, priority=priority, **job)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("upwards", [True, False])
async def test_who_uses_all_priorities_has_no_more_turns(world: World, batch: int, upwards: bool) -> None:
    await all_ranks(world, "ranked", 8, upwards)
    await pile(world, "plain", 100)

    shares = await served(world, 80, batch)

    assert abs(shares["ranked"] - shares["plain"]) <= 2 * batch


async def test_of_three_each_has_its_share(world: World) -> None:
    await all_ranks(world, "ranked", 8)
    await pile(world, "one", 100)
    await pile(world, "two", 100)

    shares = await served(world, 90, batch=3)

    assert all(abs(n - 30) <= 6 for n in shares.values()), shares


async def test_two_that_use_them_share(world: World) -> None:
    for org in ("one", "two"):
        await all_ranks(world, org, 4)

    shares = await served(world, 80, batch=2)

    assert abs(shares["one"] - shares["two"]) <= 12


async def test_a_weight_counts_with_priorities_too(world: World) -> None:
    await world.store.weigh("heavy", 3)
    await all_ranks(world, "heavy", 8)
    await pile(world, "plain", 100)

    shares = await served(world, 80, batch=1)

    assert abs(shares["heavy"] - 60) <= 3


async def test_within_the_organisation_nothing_changes(world: World) -> None:
    await all_ranks(world, "ranked", 2)
    alone = [row[0] for row in await world.query(ORDER)]
    await pile(world, "plain", 60)

    found = [one for _ in range(102) for one in await world.claim()]

    assert [one.job.id for one in found if one.job.org == "ranked"] == alone


async def test_an_urgent_one_still_goes_before_the_backlog_of_its_organisation(world: World) -> None:
    await pile(world, "ranked", 50)
    [urgent] = await world.add(document(org="ranked", priority=5))

    assert [one.job.document_id for one in await world.claim()] == [urgent]


async def test_who_is_alone_is_not_held_up(world: World) -> None:
    await all_ranks(world, "ranked", 2)

    assert await served(world, 42, batch=4) == {"ranked": 42}
