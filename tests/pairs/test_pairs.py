"""Verbs beside each other on the real PostgreSQL, statement by statement: no order of their statements deadlocks, gives
an answer that is not true, loses a document, does something twice or counts wrong.

A few pairs in `make test`; all of them with `make pairs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure.store import locking
from perdure.store.base import Query, Row, Steps
from perdure.store.postgres_dialect import PostgresDialect
from tests.pairs.conftest import PROPERTY
from tests.pairs.exploring import SWITCHES
from tests.pairs.kit import Stepped
from tests.pairs.pairs import Told, all_pairs, run_all

#: With one of their situations each.
SHORT = [
    ("add", "purge", 1),
    ("done", "cancel", 1),
    ("save degraded", "cancel", 0),
    ("refresh", "purge", 0),
    ("deliver", "purge", 0),
    pytest.param("serve", "release", 0, marks=pytest.mark.full),
    pytest.param("lend", "priority and claim", 0, marks=pytest.mark.full),
]


def explore(url: str, first: str, second: str, switches: int, only: int | None = None) -> Told:
    async def run() -> Told:
        async with Stepped(url) as world:
            return await run_all(world, first, second, switches, only)

    return asyncio.run(run())


def told_wrong(told: Told) -> str:
    """Each violation, how often it came, and an order of statements that leads to it."""
    return "\n".join(f"{n} x {kind}\n{told.examples[kind]}" for kind, n in told.violations.items())


@pytest.mark.parametrize(("first", "second", "only"), SHORT)
def test_no_order_of_their_statements_breaks_a_promise(
    postgres_store_url: str, first: str, second: str, only: int
) -> None:
    told = explore(postgres_store_url, first, second, switches=1, only=only)

    assert told.interleavings > 10
    assert not told.violations, told_wrong(told)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("first", "second"), all_pairs())
def test_no_order_of_any_two_verbs_breaks_a_promise(
    postgres_store_url: str, first: str, second: str, record_property: Callable[[str, Any], None]
) -> None:
    told = explore(postgres_store_url, first, second, SWITCHES)
    record_property(PROPERTY, (told.interleavings, sum(told.violations.values())))

    assert not told.violations, told_wrong(told)


# --- and it would be seen -------------------------------------------------------------------------


def test_it_is_seen_when_jobs_are_not_locked_before_their_documents(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresDialect, "JOBS_LOCK", None)

    told = explore(postgres_store_url, "done", "cancel", switches=1, only=0)

    assert any("deadlock" in kind for kind in told.violations)


def test_it_is_seen_when_an_answer_names_a_document_that_was_purged(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlocked(sql: Any, asked: list[Row]) -> Steps[list[str]]:
        found: dict[int, str] = dict(
            (yield Query(sql.DOCUMENT_SAME.removesuffix("FOR KEY SHARE OF d"), rows=asked))
        )
        return [found[n] if n in found else row[2] for n, row in enumerate(asked)]

    monkeypatch.setattr(locking, "there", unlocked)

    told = explore(postgres_store_url, "add", "purge", switches=1, only=1)

    assert any("which is not there" in kind for kind in told.violations)
