"""What PostgreSQL's own settings and schemas mean to a store: commits are durable, and stores share no lock."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure.operate.status import overview
from perdure.store import postgres_session
from perdure.store.base import Query, Steps
from perdure.store.open import open_store
from perdure.store.postgres_dialect import PostgresDialect
from tests.store.making import document

MODE = "SELECT current_setting('synchronous_commit')"


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def set_default(url: str, name: str, value: str) -> None:
    """For every session from now on."""
    database = urlsplit(url).path.removeprefix("/")
    await execute(url, f"""ALTER DATABASE "{database}" SET {name} = '{value}'""")


def mode() -> Steps[Any]:
    return (yield Query(MODE))[0][0]


@pytest.mark.parametrize(
    ("servers", "ours"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
)
async def test_commits_wait_for_the_disk_whatever_the_server_says(
    postgres_store_url: str, servers: str, ours: str
) -> None:
    await set_default(postgres_store_url, "synchronous_commit", servers)
    store = open_store(postgres_store_url)
    await store.open()
    try:
        driver: Any = store.driver
        assert await driver.write(mode) == ours
        assert await driver.read(mode) == ours  # these write blobs, too
        async with driver._direct_connection() as connection:
            assert await connection.fetchval(MODE) == ours
        driver._writer.connection.terminate()
        assert await driver.write(mode) == ours
        facts = await overview(store)
        assert facts["durability"] == {"synchronous_commit": servers, "fsync": "on"}
        assert any("synchronous_commit" in one["text"] for one in facts["problems"]) == (servers == "off")
    finally:
        await store.close()


async def test_commits_behind_a_pooler_wait_for_the_disk(postgres_store_url: str) -> None:
    await set_default(postgres_store_url, "synchronous_commit", "off")
    store = open_store(postgres_store_url, None, f"{postgres_store_url}&connect_timeout=10")
    await store.open()
    try:
        driver: Any = store.driver
        assert driver._sessions.pooled
        assert [await driver.write(mode), await driver.read(mode)] == ["on", "on"]
    finally:
        await store.close()


async def test_stores_in_two_schemas_of_a_database_share_no_lock(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_number = PostgresDialect.WORKER_ADD.replace("random()", "0.5")
    monkeypatch.setattr(PostgresDialect, "WORKER_ADD", one_number)
    names = ("first", "second")
    stores = []
    for name in names:
        await execute(postgres_url, f"CREATE SCHEMA {name}")
        sign = "&" if "?" in postgres_url else "?"
        stores.append(open_store(f"{postgres_url}{sign}search_path={name},public"))
    try:
        for store in stores:
            await store.open()
        workers = [await store.register("worker", "w", ["documents"]) for store in stores]
        assert workers[0] == workers[1]
        assert [await store.lead() for store in stores] == [True, True]
        assert [await store.missing([workers[0]]) for store in stores] == [set(), set()]
        await stores[0].retire(workers[0])
        assert [await store.missing([workers[0]]) for store in stores] == [{workers[0]}, set()]
    finally:
        for store in stores:
            await store.close()


async def test_locks_of_different_names_do_not_meet(postgres_store_url: str) -> None:
    stores = [open_store(postgres_store_url) for _ in range(2)]
    for store in stores:
        await store.open()
    try:
        first, second = (store.driver for store in stores)
        assert await first.lock("leader", 0)
        assert not await second.lock("leader", 0)
        assert await second.lock("migrate", 0)
        assert await second.locked("leader", [0, 1]) == {0}
    finally:
        for store in stores:
            await store.close()


async def test_a_migration_takes_as_long_as_it_takes(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_session, "SESSION", "SET statement_timeout = '300ms'")
    store = open_store(postgres_store_url)
    await store.open()
    try:
        await store.driver.script("SELECT pg_sleep(0.7)")
    finally:
        await store.close()


@pytest.mark.parametrize("state", ["XX000", "P0001", "55000", "0A000"])
async def test_an_error_without_a_word_of_ours_is_its_operations_alone(
    postgres_store_url: str, state: str
) -> None:
    await execute(
        postgres_store_url,
        f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON document FOR EACH ROW
        WHEN (NEW.name = 'bad') EXECUTE FUNCTION refuse()""",
    )
    store = open_store(postgres_store_url)
    await store.open()
    try:
        names = ["a", "bad", "b", "c"]
        answers = await asyncio.gather(
            *(store.add([document(name)]) for name in names), return_exceptions=True
        )
    finally:
        await store.close()
    told = [getattr(one, "code", "added") for one in answers]
    assert told == ["added", "store_error", "added", "added"]
