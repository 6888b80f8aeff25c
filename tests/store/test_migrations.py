"""Migrations: one schema however it was reached, and programs that refuse what they do not understand."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.errors import SchemaNewer, SchemaOutdated
from perdure.store import migrate
from perdure.store.base import Query, Row
from perdure.store.migrate import Migration
from perdure.store.open import open_store
from perdure.store.sql_store import SqlStore
from tests.store.making import document, one

pytestmark = pytest.mark.empty_store

SQLITE_SCHEMA = (
    "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY type, name"
)
POSTGRES_SCHEMA = (
    "SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity, ordinal_position "
    "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 7",
    "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
    "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
    "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1",
)
COLUMNS = {
    "sqlite": "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'",
    "postgres": "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'",
}


async def read(store: SqlStore, sql: str) -> list[Row]:
    return await store.driver.read(one(Query(sql)))


async def write(store: SqlStore, sql: str) -> list[Row]:
    return await store.driver.write(one(Query(sql)))


async def schema(store: SqlStore) -> list[list[Row]]:
    """Everything the database knows about its tables, without their rows."""
    queries = (SQLITE_SCHEMA,) if store.dialect_name == "sqlite" else POSTGRES_SCHEMA
    return [await read(store, query) for query in queries]


async def opened_schema(url: str) -> list[list[Row]]:
    store = open_store(url)
    await store.open()
    try:
        return await schema(store)
    finally:
        await store.close()


@pytest.fixture
def one_more(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that this program knows one more migration than it does."""
    known = migrate.known

    def pretend(text: str = "CREATE TABLE more (id int PRIMARY KEY)", needs: int = 1) -> None:
        monkeypatch.setattr(
            migrate, "known", lambda dialect: [*known(dialect), Migration("9999_more", needs, text)]
        )

    return pretend


async def test_opening_an_empty_database_gives_all_migrations_one_by_one(
    store_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The schema that `open` makes equals the one that the numbered files make, each in a transaction of its own."""
    stepwise = open_store(store_url)
    await stepwise.driver.open()
    steps = migrate.known(stepwise.dialect_name)
    assert [m.name for m in steps] == sorted(m.name for m in steps)
    try:
        assert await migrate.applied(stepwise.driver) == {}
        await stepwise.driver.script(migrate.TABLE)
        for step in steps:
            await stepwise.driver.script(step.text)
        made = await schema(stepwise)
        if stepwise.dialect_name == "postgres":  # this database is made anew by `open`
            await stepwise.driver.script("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    finally:
        await stepwise.driver.close()

    url = store_url if stepwise.dialect_name == "postgres" else f"sqlite:///{tmp_path}/opened.db"
    assert await opened_schema(url) == made
    assert sum(map(len, made)) > 20


async def test_both_stores_have_the_same_tables_and_columns(postgres_url: str, tmp_path: Path) -> None:
    columns = []
    for url in (f"sqlite:///{tmp_path}/perdure.db", postgres_url):
        store = open_store(url)
        await store.open()
        found = await read(store, COLUMNS[store.dialect_name])
        await store.close()
        # SQLite keeps its own books, its blobs lie beside the file, and its words in tables of their own
        apart = ("sqlite_", "blob_", "chunk_text", "chunk_staged")
        columns.append({(t, c) for t, c in found if not t.startswith(apart)})

    assert columns[0] == columns[1] - {("chunk", "found")}


async def test_opening_again_changes_nothing(store_url: str) -> None:
    first = await opened_schema(store_url)

    assert await opened_schema(store_url) == first
    store = open_store(store_url)
    assert await store.migrate() == []
    await store.open()  # the same store, after its migration
    await store.close()


async def test_an_older_schema_is_refused_until_it_is_migrated(
    store_url: str, one_more: Callable[..., None]
) -> None:
    await opened_schema(store_url)
    one_more()

    with pytest.raises(SchemaOutdated, match=r"9999_more.*perdure migrate"):
        await opened_schema(store_url)

    assert await open_store(store_url).migrate() == ["9999_more"]
    assert "more" in str(await opened_schema(store_url))


async def test_who_opens_while_another_migrates_waits_for_it(
    store_url: str, one_more: Callable[..., None]
) -> None:
    await opened_schema(store_url)
    one_more()
    migrating = open_store(store_url)
    await migrating.driver.open()
    assert await migrating.driver.lock("migrate", 0)

    opening = asyncio.create_task(opened_schema(store_url))
    await asyncio.sleep(0.15)
    assert not opening.done()
    await migrate.migrate(migrating.driver, migrating.dialect_name)

    assert "more" in str(await opening)
    await migrating.driver.close()


async def test_a_migration_that_fails_leaves_nothing_behind(
    store_url: str, one_more: Callable[..., None]
) -> None:
    before = await opened_schema(store_url)
    one_more("CREATE TABLE more (id int PRIMARY KEY); CREATE TABLE more (id int)")

    with pytest.raises(Exception, match="more"):
        await open_store(store_url).migrate()
    with pytest.raises(SchemaOutdated):
        await opened_schema(store_url)
    one_more("CREATE TABLE fine (id int PRIMARY KEY)")
    assert await open_store(store_url).migrate() == ["9999_more"]
    assert "fine" not in str(before)


@pytest.mark.parametrize(("needs", "accepted"), [(1, True), (99, False)])
async def test_a_newer_schema_is_accepted_unless_it_needs_a_newer_program(
    store_url: str, needs: int, accepted: bool
) -> None:
    await opened_schema(store_url)
    newer = open_store(store_url)
    await newer.open()
    await write(newer, f"INSERT INTO migration (name, needs, applied_ms) VALUES ('9999_later', {needs}, 0)")
    await newer.close()

    store = open_store(store_url)
    if accepted:
        await store.open()
        assert (await store.add([document()]))[0].answer == "added"
        await store.close()
    else:
        with pytest.raises(SchemaNewer, match=r"9999_later.*upgrade"):
            await store.open()


async def test_many_that_open_an_empty_database_at_once_all_succeed(store_url: str) -> None:
    stores = [open_store(store_url) for _ in range(8)]

    await asyncio.gather(*(store.open() for store in stores))

    for store in stores:
        assert (await store.add([document()]))[0].answer == "added"
        await store.close()


OPENING = """
import asyncio, sys
from perdure.store.open import open_store
async def main():
    store = open_store(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    await store.open()
    await store.close()
asyncio.run(main())
"""


def test_two_processes_that_migrate_an_empty_database_at_once_both_succeed(store_url: str) -> None:
    command = [sys.executable, "-c", OPENING, store_url]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    assert [process.wait(90) for process in both] == [0, 0]
    for process in both:
        process.communicate()
    assert asyncio.run(opened_schema(store_url))
