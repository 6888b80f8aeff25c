"""Keys of the HTTP API: whose they are, what they may do, and that a secret is kept by nobody but its owner."""

from __future__ import annotations

import pytest

from perdure.errors import InputInvalid
from tests.store.making import ORG, World


async def test_a_key_is_known_by_what_its_owner_presents(world: World) -> None:
    key, shown = await world.store.add_key(ORG, "backend", ["write", "read"], "ann")
    assert await world.store.key(shown) == key
    assert (key.org, key.name, key.scopes) == (ORG, "backend", ("read", "write"))


@pytest.mark.parametrize(
    "wrong",
    ["", "pk_", "Bearer x", "pk_0000000000000000_" + "a" * 43, "\u00e4" * 64, "pk_0_0", "x" * 10_000],
)
async def test_what_is_no_key_is_nobodys(world: World, wrong: str) -> None:
    await world.store.add_key(ORG, "", ["read"], "ann")
    assert await world.store.key(wrong) is None


async def test_the_id_alone_or_with_another_secret_is_not_enough(world: World) -> None:
    _, one = await world.store.add_key(ORG, "", ["read"], "ann")
    _, other = await world.store.add_key("zeta", "", ["operate"], "ann")
    mixed = "_".join((*one.split("_")[:2], other.split("_", 2)[2]))
    assert await world.store.key(mixed) is None


async def test_a_revoked_key_is_good_for_nothing(world: World) -> None:
    key, shown = await world.store.add_key(ORG, "", ["read"], "ann")
    assert await world.store.revoke_key(key.id, "ben")
    assert await world.store.key(shown) is None
    assert not await world.store.revoke_key(key.id, "ben")
    assert [(one.id, one.revoked_ms) for one in await world.store.keys(ORG)] == [(key.id, world.clock.ms)]


async def test_the_secret_is_not_in_the_store(world: World) -> None:
    _, shown = await world.store.add_key(ORG, "backend", ["read"], "ann")
    secret = shown.split("_", 2)[2]
    assert all(secret not in str(row) for row in await world.table("api_key"))
    assert all(secret not in str(row) for row in await world.table("act"))


async def test_making_and_revoking_is_in_the_trail(world: World) -> None:
    key, _ = await world.store.add_key(ORG, "backend", ["read"], "ann")
    await world.store.revoke_key(key.id, "ben")
    acts = await world.table("act")
    assert [(a["who"], a["verb"], a["target"]) for a in acts] == [
        ("ann", "key-add", key.id),
        ("ben", "key-revoke", key.id),
    ]


@pytest.mark.parametrize("scopes", [[], ["admin"], ["read", "Write"]])
async def test_scopes_that_do_not_exist_are_refused(world: World, scopes: list[str]) -> None:
    with pytest.raises(InputInvalid, match="scopes read, write, operate"):
        await world.store.add_key(ORG, "", scopes, "ann")
