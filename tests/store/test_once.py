"""Under one key something is done once, whoever asks again: at the same time, from elsewhere, after a lost reply."""

from __future__ import annotations

import asyncio

import pytest

from perdure.store.once import KeyReused
from perdure.store.operations import Added, Once
from tests.store.making import ORG, World, document


async def test_the_second_time_the_first_answer_is_told(world: World) -> None:
    one, other = document(), document()
    first = await world.store.add_once(Once(ORG, "k", "hash"), [one])
    again = await world.store.add_once(Once(ORG, "k", "hash"), [other])
    assert first.added == again.added
    assert (first.repeated, again.repeated) == (False, True)
    assert await world.store.status(ORG, other.id) is None


async def test_a_key_that_was_used_for_something_else_is_refused(world: World) -> None:
    await world.store.add_once(Once(ORG, "k", "hash"), [document()])
    other = document()
    with pytest.raises(KeyReused):
        await world.store.add_once(Once(ORG, "k", "another"), [other])
    assert await world.store.status(ORG, other.id) is None


async def test_another_organisation_may_use_the_same_key(world: World) -> None:
    first = await world.store.add_once(Once(ORG, "k", "hash"), [document()])
    other = await world.store.add_once(Once("zeta", "k", "else"), [document(org="zeta")])
    assert first.added != other.added
    assert not other.repeated


async def test_fifty_at_a_time_from_two_processes_add_one(world: World) -> None:
    stores = [world.store, await world.another()]
    asked = [stores[n % 2].add_once(Once(ORG, "k", "hash"), [document()]) for n in range(50)]
    answers = await asyncio.gather(*asked)
    assert len({tuple(a.added or ()) for a in answers}) == 1
    assert sum(not a.repeated for a in answers) == 1
    assert len(await world.store.documents(ORG, None, None, 100)) == 1


async def test_what_exists_already_is_answered_alike_each_time(world: World) -> None:
    known = (await world.store.add([document(dedupe="same")]))[0].id
    first = await world.store.add_once(Once(ORG, "k", "hash"), [document(dedupe="same"), document()])
    again = await world.store.add_once(Once(ORG, "k", "hash"), [document(dedupe="same"), document()])
    assert first.added is not None
    assert [(a.id, a.answer) for a in first.added[:1]] == [(known, "exists")]
    assert first.added[1].answer == "added"
    assert again.added == first.added


async def test_what_may_have_changed_is_not_finished_until_somebody_says_so(world: World) -> None:
    known = (await world.store.add([document(dedupe="key:a")]))[0].id
    once = Once(ORG, "k", "hash")
    for repeated in (False, True):
        answer = await world.store.add_once(once, [document(dedupe="key:a")])
        assert (answer.added, answer.repeated, answer.finished) == (
            [Added(known, "exists", "queued")],
            repeated,
            False,
        )
    refreshed = [Added(known, "refreshed")]
    assert await world.store.finish_once(once, refreshed) == refreshed
    assert await world.store.finish_once(once, [Added(known, "unchanged")]) == refreshed
    last = await world.store.add_once(once, [document(dedupe="key:a")])
    assert (last.added, last.finished) == (refreshed, True)


async def test_keys_are_forgotten_after_a_while(world: World) -> None:
    once = Once(ORG, "k", "hash")
    await world.store.add_once(once, [document()])
    world.clock.turn(1_001)
    assert await world.store.forget_onces(1_000, 10) == 1
    assert not (await world.store.add_once(once, [document()])).repeated
