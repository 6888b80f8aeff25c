"""A caller that is cancelled in the middle of a statement leaves no open transaction behind: the next write on the same
connection would be a part of it, answered and never committed, and the next read would see an old state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import store
from perdure.store.base import Query, Steps
from perdure.store.blobs import TableBlobs
from perdure.store.open import open_store
from perdure.store.postgres_transaction import transaction

ADD = "INSERT INTO tally (name, value) VALUES ($1, 1)"
MOMENTS = 30  # turns of the event loop; a write takes fewer


def add(name: str) -> Callable[[], Steps[str]]:
    def steps() -> Steps[str]:
        yield Query(ADD, (name,))
        return name

    return steps


def count() -> Steps[int]:
    found: int = (yield Query("SELECT count(*) FROM tally WHERE name LIKE 'ours%'"))[0][0]
    return found


def test_no_other_transaction_begins_on_a_connection_that_is_used_again() -> None:
    sources = Path(store.__file__).parent.rglob("*.py")
    assert [
        p.name for p in sources if ".transaction(" in p.read_text().replace("_sessions.transaction(", "")
    ] == ["postgres_transaction.py"]


async def cut_off(work: Coroutine[Any, Any, object], turns: int) -> None:
    """Cancel the work after so many turns of the loop."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0.0005 if turns % 2 else 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_write_after_one_that_was_cancelled_is_committed_when_it_answers(
    postgres_store_url: str,
) -> None:
    ours, seen = open_store(postgres_store_url), await asyncpg.connect(postgres_store_url)
    await ours.open()
    try:
        for turns in range(MOMENTS):
            await cut_off(ours.driver.write(add(f"cancelled {turns}")), turns)
            name = await ours.driver.write(add(f"ours {turns}"))
            assert await seen.fetchval("SELECT count(*) FROM tally WHERE name = $1", name) == 1, turns
    finally:
        await seen.close()
        await ours.close()


@pytest.mark.parametrize("verb", ["read", "snapshot"])
async def test_a_read_after_one_that_was_cancelled_sees_the_present(
    postgres_store_url: str, verb: str
) -> None:
    ours = open_store(postgres_store_url)
    await ours.open()
    try:
        for turns in range(MOMENTS):
            await asyncio.gather(*(cut_off(getattr(ours.driver, verb)(count), turns) for _ in range(4)))
            await ours.driver.write(add(f"ours {turns}"))
            assert set(await asyncio.gather(*(ours.driver.read(count) for _ in range(4)))) == {turns + 1}
    finally:
        await ours.close()


async def test_a_blob_after_one_that_was_cancelled_is_there_when_it_answers(postgres_store_url: str) -> None:
    ours, other = open_store(postgres_store_url), open_store(postgres_store_url)
    await ours.open()
    await other.open()
    drivers: list[Any] = [ours.driver, other.driver]
    blobs, seen = (TableBlobs(driver.reading) for driver in drivers)
    try:
        for turns in range(MOMENTS):
            await asyncio.gather(
                *(cut_off(blobs.put(f"cancelled {turns} {n}".encode()), turns) for n in range(4))
            )
            digests = await asyncio.gather(*(blobs.put(f"ours {turns} {n}".encode()) for n in range(4)))
            assert [await seen.exists(digest) for digest in digests] == [True] * 4, turns
    finally:
        await ours.close()
        await other.close()


@pytest.mark.parametrize(
    "how", [KeyError("ours"), asyncio.CancelledError("ours")], ids=["failed", "cancelled"]
)
async def test_a_transaction_within_another_ends_with_its_own_error(
    postgres_store_url: str, how: BaseException
) -> None:
    """Behind a pooler every blob is written so."""
    connection = await asyncpg.connect(postgres_store_url)
    try:
        with pytest.raises(type(how), match="ours"):
            async with transaction(connection), transaction(connection):
                raise how
        assert connection.is_closed() or not connection.is_in_transaction()
    finally:
        connection.terminate()
