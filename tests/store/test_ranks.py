"""Priorities order the jobs of an organisation; they do not give it more turns than others have."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.store.making import DONE, World, document
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


async def test_those_that_go_first_keep_their_order_across_pipelines(world: World) -> None:
    await all_ranks(world, "ranked", 8)
    await pile(world, "plain", 40, pipeline="maps")
    await pile(world, "plain", 40)

    found = [one.job for _ in range(60) for one in await world.claim()]

    plain = [job.pipeline for job in found if job.org == "plain"]
    assert len(plain) >= 20
    assert plain == sorted(plain, key=["maps", "books"].index)


async def test_ranks_in_two_pipelines_are_one_share(world: World) -> None:
    await all_ranks(world, "ranked", 8)
    await all_ranks(world, "ranked", 8, pipeline="maps")
    await pile(world, "plain", 100)

    shares = await served(world, 80, batch=1)

    assert abs(shares["ranked"] - shares["plain"]) <= 4


async def test_who_is_alone_is_not_held_up(world: World) -> None:
    await all_ranks(world, "ranked", 2)

    assert await served(world, 42, batch=4) == {"ranked": 42}


async def let_in(world: World, count: int) -> Counter[str]:
    """Claim and finish one after the other: how many of each organisation."""
    found: Counter[str] = Counter()
    for _ in range(count):
        job = await world.take()
        found[job.org] += 1
        assert await world.settle(job, DONE)
    return found


@pytest.mark.parametrize("bounds", [(1, None), (3, None), (None, 1.0)])
@pytest.mark.parametrize("upwards", [True, False])
async def test_under_a_limit_that_organisations_share_they_have_no_more_turns(
    world: World, bounds: tuple[int | None, float | None], upwards: bool
) -> None:
    await world.store.limit("host", *bounds)
    await all_ranks(world, "ranked", 8, upwards, limit_key="host")
    await pile(world, "plain", 100, limit_key="host")

    shares: Counter[str] = Counter()
    for _ in range(60):
        world.clock.turn(1_000)
        await world.store.refill()
        shares += await let_in(world, 1)

    assert abs(shares["ranked"] - shares["plain"]) <= 6, shares


@pytest.mark.parametrize("limited", [False, True])
async def test_turns_that_nobody_else_wanted_are_not_owed(world: World, limited: bool) -> None:
    """An organisation that was alone for long shares with a newcomer from now on, and does not stand back for it."""
    await world.store.limit("host", 1, None)
    more: dict[str, Any] = {"limit_key": "host"} if limited else {}
    await all_ranks(world, "ranked", 30, **more)
    await let_in(world, 300)
    await pile(world, "plain", 200, **more)

    shares = await let_in(world, 150)

    assert abs(shares["ranked"] - shares["plain"]) <= 30, shares
