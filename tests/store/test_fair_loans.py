"""Fairness of loans: what is lent while its dependency is down has its turns, and its old ones again when recalled."""

from __future__ import annotations

import asyncpg

from perdure.store.base import BREAKER
from perdure.store.operations import Raise
from tests.store.making import World, document
from tests.store.test_fairness import outage, pile, served, worked_through


async def lent_in_vain(world: World, rounds: int) -> None:
    """The dependency `ocr` is back, and more is lent each second, but no worker claims."""
    await world.store.probed("ocr", True)
    for _ in range(rounds):
        world.clock.turn(1_000)
        assert await world.store.lend()


async def test_a_ramp_leaves_the_others_their_turns(world: World) -> None:
    await outage(world)
    await pile(world, "held", 300, lane="ocr")
    await pile(world, "busy", 300)
    await served(world, 100)
    await world.store.probed("ocr", True)
    for _ in range(7):  # up to 64 a second
        world.clock.turn(1_000)
        await world.store.lend()

    shares = await served(world, 60)

    assert shares["busy"] == shares["held"] == 30


async def test_what_was_lent_and_not_claimed_keeps_its_place_before_what_was_not(world: World) -> None:
    await outage(world)
    ids = await world.add(*(document(f"n{n}", lane="ocr") for n in range(3)))
    world.clock.turn(10_000)
    assert await world.store.lend() == 1

    await world.store.release("ocr")

    assert [c.job.document_id for _ in ids for c in await world.claim()] == ids


async def test_what_was_lent_and_not_claimed_shares_the_turns_with_the_others(world: World) -> None:
    await outage(world)
    await pile(world, "held", 50, lane="ocr")
    await worked_through(world, "busy", 100)  # the present is far from the turns of what is held
    await pile(world, "waits", 5)
    await lent_in_vain(world, 5)  # 32 a second

    await world.store.release("ocr")

    assert await served(world, 10, batch=1) == {"held": 5, "waits": 5}


async def test_after_many_rounds_of_lending_the_order_within_a_lane_is_the_old_one(world: World) -> None:
    await world.store.weigh("heavy", 3)
    await outage(world)
    for org in ("heavy", "plain"):
        await pile(world, org, 30, lane="ocr")
    before = {row["id"]: row["vt"] for row in await world.table("job")}
    await lent_in_vain(world, 4)
    for _ in range(3):
        await world.store.probed("ocr", False)
    assert await world.store.lend() == 0  # all is recalled
    world.clock.turn(60_000)
    assert await world.store.lend() == 1
    await lent_in_vain(world, 3)

    await world.store.hold("ocr", "leave it alone", "ann")

    assert {row["id"]: row["vt"] for row in await world.table("job")} == before
    await world.store.release("ocr")
    found = [c.job.id for _ in range(60) for c in await world.claim(1)]
    assert found == sorted(before, key=lambda id_: (before[id_], id_))


async def test_a_newcomer_to_a_lane_of_which_all_is_lent_is_not_put_far_behind(world: World) -> None:
    """Its turn is near that of the one that is lent, although the present of the queue is far ahead."""
    await outage(world)
    await pile(world, "held", 1, lane="ocr")
    await worked_through(world, "busy", 300)
    world.clock.turn(60_000)
    assert await world.store.lend() == 1
    await pile(world, "new", 1, lane="ocr")
    await pile(world, "busy", 50)

    await world.store.release("ocr")

    shares = await served(world, 6, batch=1)
    assert (shares["held"], shares["new"]) == (1, 1)


async def test_a_raised_document_that_gets_a_priority_while_it_is_lent_goes_back_to_the_others(
    world: World,
) -> None:
    await outage(world)
    first, raised = await world.add(*(document(org="held", lane="ocr") for _ in range(2)))
    assert await world.store.raise_(Raise("held", raised)) == "raised"
    world.clock.turn(60_000)
    assert await world.store.lend() == 1
    assert await world.store.raise_(Raise("held", raised, priority=0)) == "changed"

    await world.store.release("ocr")

    assert [c.job.document_id for _ in range(2) for c in await world.claim(1)] == [first, raised]


async def test_a_priority_that_is_given_while_a_document_is_lent_counts_after_its_recall(
    world: World,
) -> None:
    await outage(world)
    ids = await world.add(*(document(org="held", lane="ocr") for _ in range(40)))
    await lent_in_vain(world, 3)
    lent = sum(row["probe"] is not None for row in await world.table("job"))
    assert 2 < lent < 40
    assert await world.store.raise_(Raise("held", ids[lent - 1], priority=10)) == "changed"
    assert await world.store.raise_(Raise("held", ids[0], priority=-10)) == "changed"

    await world.store.release("ocr")

    order = [c.job.document_id for _ in ids for c in await world.claim(1)]
    others = [id_ for n, id_ in enumerate(ids) if n not in (0, lent - 1)]
    assert order == [ids[lent - 1], *others, ids[0]]


async def test_a_document_that_is_raised_while_it_is_lent_does_not_put_its_lane_back(world: World) -> None:
    await world.store.weigh("held", 0.01)
    await outage(world)
    first, _ = await world.add(*(document(org="held", lane="ocr") for _ in range(2)))
    await worked_through(world, "busy", 1_000)
    world.clock.turn(60_000)
    assert await world.store.lend() == 1
    assert await world.store.raise_(Raise("held", first)) == "raised"
    await pile(world, "busy", 6)

    await world.store.release("ocr")

    assert (await served(world, 3, batch=1))["held"] == 2


async def test_what_a_release_left_lent_does_not_put_its_lane_back_at_the_next_outage(
    postgres_world: World,
) -> None:
    """It was locked, so that the release could not recall it."""
    world = postgres_world
    await outage(world)
    (first,) = await world.add(document(org="held", lane="ocr"))
    world.clock.turn(60_000)
    assert await world.store.lend() == 1
    locker = await asyncpg.connect(world.url)
    async with locker.transaction():
        await locker.execute("SELECT 1 FROM job WHERE document_id = $1 FOR UPDATE", first)
        await world.store.release("ocr")
        await worked_through(world, "busy", 300)
        await pile(world, "new", 1, lane="ocr")
    await locker.close()

    await world.store.hold("ocr", "away again", BREAKER)
    await pile(world, "busy", 50)
    await world.store.release("ocr")

    shares = await served(world, 6, batch=1)
    assert (shares["held"], shares["new"]) == (1, 1)
