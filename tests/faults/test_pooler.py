"""Behind a pooler that lends server connections for one transaction at a time, with an unpooled address for locks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from perdure.errors import StoreError
from perdure.store.open import open_store
from tests.faults.bouncer import PROGRAM_VARIABLE, Bouncer
from tests.faults.fleet import Fleet
from tests.store.making import document

pytestmark = pytest.mark.full

CLIENTS, ADDS = 6, 10
SETTINGS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "enable_seqscan",
    "jit",
)


#: How many prepared statements it follows. Debian's PgBouncer follows none: a newer one is named in a variable.
FOLLOWS = [0, 100] if os.environ.get(PROGRAM_VARIABLE) else [0]


@pytest.fixture(params=FOLLOWS, ids=lambda count: "statements-followed" if count else "statements-lost")
def bouncer(request: pytest.FixtureRequest, postgres_store_url: str) -> Iterator[Bouncer]:
    with Bouncer(postgres_store_url, prepared_statements=request.param) as made:
        yield made


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "no-direct"])
def test_every_add_and_read_of_many_clients_succeeds(
    bouncer: Bouncer, postgres_store_url: str, direct: bool
) -> None:
    """Six clients share three server connections; without an unpooled address the pooler is noticed."""
    refused = asyncio.run(_add_and_read(bouncer.url, postgres_store_url if direct else None))
    assert refused == []


async def _add_and_read(url: str, direct_url: str | None) -> list[StoreError]:
    """From several clients at the same time; the errors."""
    stores = [open_store(url, None, direct_url) for _ in range(CLIENTS)]
    refused: list[StoreError] = []

    async def use(number: int) -> None:
        await stores[number].open()
        for n in range(ADDS):
            try:
                await stores[number].add([document(f"{number}-{n}")])
                await stores[number].tally()
            except StoreError as error:
                refused.append(error)

    await asyncio.gather(*map(use, range(CLIENTS)))
    for store in stores:
        await store.close()
    return refused


def test_no_setting_stays_on_a_connection_that_others_get(bouncer: Bouncer, postgres_store_url: str) -> None:
    """Another program that shares the pooler keeps its own limits."""

    async def use() -> None:
        store = open_store(bouncer.url, None, postgres_store_url)
        await store.open()
        for n in range(20):
            await asyncio.gather(store.add([document(f"n{n}")]), store.tally(), store.workers())
        assert await _settings(bouncer.url) == await _settings(postgres_store_url)
        await store.close()

    asyncio.run(use())


async def _settings(url: str) -> set[tuple[str, ...]]:
    """What three clients see that ask at the same time, so that each has a server connection of its own."""
    clients = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(3)]
    asked = ", ".join(f"current_setting('{name}')" for name in SETTINGS)

    async def ask(connection: asyncpg.Connection) -> tuple[str, ...]:
        async with connection.transaction():
            rows = await connection.fetch(f"SELECT {asked}, pg_sleep(0.2)::text")
            return tuple(rows[0])

    try:
        return set(await asyncio.gather(*map(ask, clients)))
    finally:
        for connection in clients:
            await connection.close()


def test_workers_end_every_document_without_charging_one(
    bouncer: Bouncer, postgres_store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DIRECT_URL", postgres_store_url)
    with Fleet(bouncer.url, tmp_path) as fleet:
        names = [*(f"d{n}" for n in range(40)), "large"]
        for _ in range(2):
            fleet.start("five", concurrency=5)
        fleet.add("steps", dict.fromkeys(names, "text") | {"large": "word " * 500_000})
        fleet.wait_until_ended()
        found = fleet.statuses()
        assert {found[name].state for name in names} == {"done"}
        assert {found[name].attempts_made for name in names} == {1}
        assert {a.outcome for name in names for a in fleet.attempts(name)} == {"done"}
