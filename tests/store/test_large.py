"""Documents of very many chunks: no statement grows with them, so none meets the limit of time on a slow machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure.errors import StoreUnavailable
from perdure.store import indexing
from perdure.store.base import Query, Steps
from perdure.store.indexing import SLICE
from perdure.store.open import open_store
from tests.store.making import ORG, World, dead, output, retry, save
from tests.store.test_chunks import chunk, chunk_set, indexed, vector

COUNT = 2 * SLICE + 100


class Recorded:
    """A driver that keeps the statements of its writes."""

    def __init__(self, driver: Any) -> None:
        self._driver, self.queries = driver, list[Query]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def write(self, steps: Callable[[], Steps[Any]]) -> Any:
        return await self._driver.write(self._recorded(steps))

    async def write_aside(self, steps: Callable[[], Steps[Any]]) -> Any:
        return await self._driver.write_aside(self._recorded(steps))

    def _recorded(self, steps: Callable[[], Steps[Any]]) -> Callable[[], Steps[Any]]:
        def recorded() -> Steps[Any]:
            running, rows = steps(), None
            try:
                while True:
                    query = next(running) if rows is None else running.send(rows)
                    self.queries.append(query)
                    rows = yield query
            except StopIteration as stop:
                return stop.value

        return recorded

    def rows_of(self, *tables: str) -> list[int | None]:
        """How many rows each statement that writes to these tables was given; None: any number."""
        begins = tuple(
            f"{verb} {table} " for verb in ("INSERT INTO", "DELETE FROM", "UPDATE") for table in tables
        )
        return [
            None if query.rows is None else len(query.rows)
            for query in self.queries
            if query.sql.startswith(begins)
        ]


async def test_a_large_document_is_saved_and_purged_in_slices(world: World) -> None:
    near = [vector(1, n / COUNT) for n in range(COUNT)]
    other = await indexed(world, "whale", vectors=[vector(1, 0)])
    recorded = Recorded(world.store.driver)
    world.store.driver = world.store.flusher._driver = recorded
    job = await indexed(world, *(f"whale {n}" for n in range(COUNT)), vectors=near)
    assert await world.store.connect(ORG, job.document_id, threshold=0.1) == COUNT
    await world.store.connect(ORG, other.document_id, threshold=0.1)
    await world.settle(job, dead())

    assert await world.store.purge([(ORG, job.document_id)]) == {(ORG, job.document_id): "purged"}

    written = recorded.rows_of("chunk", "connection")
    assert None not in written
    assert max(rows for rows in written if rows is not None) <= SLICE
    assert sum(rows for rows in recorded.rows_of("chunk") if rows is not None) == 2 * COUNT
    assert await world.table("connection") == []
    assert [row["document_id"] for row in await world.table("chunk")] == [other.document_id]


async def test_nobody_waits_for_the_chunks_of_a_large_document(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, driver = postgres_world, postgres_world.store.driver
    monkeypatch.setattr(indexing, "LARGE_CHUNKS", 3)
    begun, go = asyncio.Event(), asyncio.Event()
    write = driver.write_aside

    async def slowly(steps: Callable[[], Steps[Any]]) -> Any:
        begun.set()
        await go.wait()
        return await write(steps)

    monkeypatch.setattr(driver, "write_aside", slowly)
    large = asyncio.create_task(indexed(world, "one", "two", "three"))
    await begun.wait()
    small = await indexed(world, "four", "five")
    assert [one.text for one in await world.store.chunks(ORG, small.document_id)] == ["four", "five"]
    assert not large.done()
    go.set()
    job = await large
    assert [one.text for one in await world.store.chunks(ORG, job.document_id)] == ["one", "two", "three"]

    own = open_store(world.url, world.clock)  # its clients go when it is closed
    await own.open()
    late = chunk(job.document_id, 0, "late", vector(1))
    await own.save(save(job, output=output(), chunks=chunk_set(*[late] * 3)))
    clients = "SELECT id FROM worker WHERE kind = 'client'"
    before = await world.store._rows(clients)
    await own.close()
    assert len(before) - len(await world.store._rows(clients)) == 1


async def test_what_is_written_aside_is_fenced_and_resolved_as_all_else(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost once after COMMIT, of its words and of itself; and once a later claim has the job."""
    world, driver = postgres_world, postgres_world.store.driver
    monkeypatch.setattr(indexing, "LARGE_CHUNKS", 1)
    write, lost = driver.write_aside, 0

    async def losing(steps: Callable[[], Steps[Any]]) -> Any:
        nonlocal lost
        answer = await write(steps)
        if lost < 2:
            lost += 1
            raise StoreUnavailable("the connection was lost")
        return answer

    monkeypatch.setattr(driver, "write_aside", losing)
    job = await indexed(world, "one", "two")
    assert lost == 2
    assert await world.table("chunk_staged") == []
    assert len(await world.store.chunks(ORG, job.document_id)) == 2
    await world.settle(job, retry(0))  # it is ready at once
    await world.take()
    late = chunk(job.document_id, 0, "late", vector(1))
    assert not await world.store.save(save(job, output=output(), chunks=chunk_set(late)))
    assert [one.text for one in await world.store.chunks(ORG, job.document_id)] == ["one", "two"]
