"""Documents of very many chunks: no statement grows with them, so none meets the limit of time on a slow machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.store.base import Query, Steps
from perdure.store.indexing import SLICE
from tests.store.making import ORG, World, dead
from tests.store.test_chunks import indexed, vector

COUNT = 2 * SLICE + 100


class Recorded:
    """A driver that keeps the statements of its writes."""

    def __init__(self, driver: Any) -> None:
        self._driver, self.queries = driver, list[Query]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def write(self, steps: Callable[[], Steps[Any]]) -> Any:
        def recorded() -> Steps[Any]:
            running, rows = steps(), None
            try:
                while True:
                    query = next(running) if rows is None else running.send(rows)
                    self.queries.append(query)
                    rows = yield query
            except StopIteration as stop:
                return stop.value

        return await self._driver.write(recorded)

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
