"""A document's standing is what its status, saves, items and attempts say."""

from __future__ import annotations

from tests.store.making import ORG, World, document


async def test_nothing_is_said_of_what_is_not_there(world: World) -> None:
    assert await world.store.standing(ORG, "nothing") is None


async def test_one_that_nobody_claimed_has_no_stages(world: World) -> None:
    added = document()
    await world.add(added)
    found = await world.store.standing(ORG, added.id)
    assert found is not None
    assert found.status == await world.store.status(ORG, added.id)
    assert (found.stages, found.items, found.last_attempt_ms) == ([], 0, None)
