"""`perdure migrate`: sets up, brings up to date, says what is wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import asyncpg
import pytest

from perdure.store.migrate import TABLE, known
from tests.doors.command import facts, refused, succeeded

pytestmark = pytest.mark.empty_store

UP_TO_DATE = "nothing to do: the store is up to date\n"


def names(url: str) -> list[str]:
    return [migration.name for migration in known("sqlite" if url.startswith("sqlite") else "postgres")]


def execute(url: str, *statements: str) -> None:
    """Change the store behind the program's back."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()
        return

    async def run() -> None:
        connection = await asyncpg.connect(url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(run())


def test_a_fresh_store_is_set_up_and_then_up_to_date(store_url: str) -> None:
    assert succeeded("migrate", "--store", store_url) == "".join(f"applied {n}\n" for n in names(store_url))
    assert succeeded("migrate", "--store", store_url) == UP_TO_DATE


def test_the_store_comes_from_the_environment_too(tmp_path: Path) -> None:
    assert succeeded("migrate", cwd=tmp_path, PERDURE_STORE="sqlite:///other.db").startswith("applied ")
    assert (tmp_path / "other.db").exists()
    assert succeeded("migrate", "--store", "sqlite:///other.db", cwd=tmp_path) == UP_TO_DATE


def test_an_outdated_store_is_refused_until_it_is_migrated(store_url: str) -> None:
    execute(store_url, TABLE, "INSERT INTO migration (name, needs, applied_ms) VALUES ('0000_before', 1, 0)")
    said = refused(1, "schema_outdated", "status", "--store", store_url)
    assert "perdure migrate" in said
    assert names(store_url)[0] in said
    assert "applied " in succeeded("migrate", "--store", store_url)
    assert sum(facts("--store", store_url)["documents"].values()) == 0


def test_a_store_of_a_newer_release_is_refused(store_url: str) -> None:
    succeeded("migrate", "--store", store_url)
    execute(store_url, "INSERT INTO migration (name, needs, applied_ms) VALUES ('9999_later', 9999, 0)")
    assert "upgrade this program" in refused(1, "schema_newer", "status", "--store", store_url)


@pytest.mark.parametrize("url", ["books.db", "mysql://somewhere/books", "sqlite:///", "sqlite:///:memory:"])
def test_a_wrong_address_is_answered_with_the_accepted_forms(url: str, tmp_path: Path) -> None:
    said = refused(2, "store_url_invalid", "migrate", "--store", url, cwd=tmp_path)
    assert said == refused(2, "store_url_invalid", "migrate", cwd=tmp_path, PERDURE_STORE=url)
    assert "sqlite:///" in said
    assert "postgresql://" in said
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_not_there_is_told_from_a_wrong_address(tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path}/no/such/directory/books.db"
    assert "does not exist" in refused(1, "store_unavailable", "migrate", "--store", missing)
    assert "127.0.0.1" in refused(
        1, "store_unavailable", "migrate", "--store", "postgresql://127.0.0.1:1/books"
    )
