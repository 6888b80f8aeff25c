"""The bound: the same statements as the engine's, in transactions of the same size, through the bare driver.

No flusher, no futures, no stages, no runner, no event loop between the statements on SQLite; rows are made in a line
each. What this reaches is what the database and its driver allow on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from perdure.bench import load
from perdure.core.clock import wall_ms
from perdure.core.token import new_token
from perdure.store import postgres, sqlite
from perdure.store.base import Query, Row, Steps
from perdure.store.dialect import Dialect
from perdure.store.operations import Claim
from perdure.store.postgres_dialect import PostgresDialect
from perdure.store.postgres_session import WRITER_SESSION
from perdure.store.sqlite_dialect import SqliteDialect

T = TypeVar("T")
NOW_MS = 1_800_000_000_000
HASH = "0" * 64
FIVE = {stage.name for stage in load.five.stages}


class Bare(Protocol):
    """A driver and nothing else."""

    sql: Dialect

    async def transaction(self, steps: Steps[T]) -> T: ...
    async def tidy(self) -> None:
        """Clear away what the measure before left behind, so that it is nobody's burden."""

    async def close(self) -> None: ...


async def connect(url: str) -> Bare:
    """The bare driver of the store at this address, set up as the engine sets it up."""
    if url.startswith("sqlite"):
        return BareSqlite(Path(url.removeprefix("sqlite:///")))
    return await BarePostgres.connect(url)


class BareSqlite:
    """apsw in this very thread."""

    def __init__(self, path: Path) -> None:
        self.sql: Dialect = SqliteDialect()
        self._connection = sqlite.connect(path)
        self._connection.create_scalar_function("perdure_now", lambda *_: wall_ms(), 0)

    async def transaction(self, steps: Steps[T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        answer = sqlite.drive(self._connection, steps)
        self._connection.execute("COMMIT")
        return answer

    async def tidy(self) -> None:
        return

    async def close(self) -> None:
        self._connection.close()


class BarePostgres:
    """asyncpg on one connection."""

    def __init__(self, connection: Any) -> None:
        self.sql: Dialect = PostgresDialect()
        self._connection = connection

    @classmethod
    async def connect(cls, url: str) -> BarePostgres:
        import asyncpg

        connection = await asyncpg.connect(url)
        await connection.execute(WRITER_SESSION)
        return cls(connection)

    async def transaction(self, steps: Steps[T]) -> T:
        async with self._connection.transaction():
            return await postgres.drive(self._connection, steps, lambda more_s=0.0: None)

    async def tidy(self) -> None:
        await self._connection.execute("VACUUM")

    async def close(self) -> None:
        await self._connection.close()


class Bound:
    """The engine's work, bare. Each measure gives units per second."""

    def __init__(self, bare: Bare) -> None:
        self.bare, self.sql = bare, bare.sql
        self._flushes = count(1)
        self.worker = 0

    async def register(self) -> None:
        def steps() -> Steps[int]:
            added = yield Query(self.sql.WORKER_ADD, ("client", "bound", "", NOW_MS))
            return int(added[0][0])

        self.worker = await self.bare.transaction(steps())

    # --- statements ------------------------------------------------------------------------------

    def _guard(self) -> Query:
        return Query(self.sql.GUARD, (self.worker, next(self._flushes), None))

    def _claim(self, queue: str, limit: int) -> Steps[list[Row]]:
        claim = Claim(self.worker, (queue,), new_token(), limit, limit)
        return (yield from self.sql.claim(claim, NOW_MS, claim.kinds))

    def _save(self, jobs: list[Row], stage: str, following: str) -> Steps[None]:
        fence = [(n, j[1], j[0], j[8], following, "", 30_000, False) for n, j in enumerate(jobs)]
        _whole(jobs, (yield Query(self.sql.FENCE_SAVE, (NOW_MS,), fence)))
        yield self._saved(jobs, stage)

    def _saved(self, jobs: list[Row], stage: str) -> Query:
        output = load.OUTPUT.encode() if stage in FIVE else b"1"
        return Query(
            self.sql.SAVED_ADD,
            rows=[
                (j[1], j[3], j[4], stage, 1, 1, None, HASH, HASH, len(output), output, None, j[8], NOW_MS, 0, False)
                for j in jobs
            ],
        )  # fmt: skip

    def _finish(self, jobs: list[Row], stage: str) -> Steps[None]:
        finished = [(n, j[1], j[0], j[8], stage, self.worker, None) for n, j in enumerate(jobs)]
        _whole(jobs, (yield from self.sql.finish(finished, NOW_MS)))
        yield self._saved(jobs, stage)

    def _retry(self, jobs: list[Row], stage: str) -> Steps[None]:
        fence = [
            (n, j[1], j[0], j[8], False, False, "queued", stage, "", 0, j[10], 0, 0, 0, 0, 0, 0, False, False, False)
            for n, j in enumerate(jobs)
        ]  # fmt: skip
        _whole(jobs, (yield Query(self.sql.FENCE_SETTLE, (NOW_MS,), fence)))
        error = ("Transient", "transient", None, "the service is away", "f" * 16)
        attempts = [
            (j[1], j[3], j[2], 1, j[11], j[10], True, j[8], stage, self.worker, NOW_MS, NOW_MS, "retry", *error, 0, "",
             None, None)
            for j in jobs
        ]  # fmt: skip
        yield Query(self.sql.ATTEMPT_ADD, rows=attempts)

    # --- measures --------------------------------------------------------------------------------

    async def drain(self, batch: int) -> float:
        """One-stage documents: settle the last batch and claim the next in one transaction."""

        def turn(jobs: list[Row]) -> Steps[list[Row]]:
            yield self._guard()
            if jobs:
                yield from self._finish(jobs, "only")
            return (yield from self._claim("one", batch))

        return await self._until_empty(turn)

    async def stages5(self, batch: int) -> float:
        """Five-stage documents: four saves, then the last one with the end and the next claim."""
        names = [stage.name for stage in load.five.stages]

        def save(jobs: list[Row], number: int) -> Steps[None]:
            yield self._guard()
            yield from self._save(jobs, names[number], names[number + 1])

        def turn(jobs: list[Row]) -> Steps[list[Row]]:
            yield self._guard()
            if jobs:
                yield from self._finish(jobs, names[-1])
            return (yield from self._claim("five", batch))

        async def between(jobs: list[Row]) -> None:
            for number in range(len(names) - 1):
                await self.bare.transaction(save(jobs, number))

        return await self._until_empty(turn, between)

    async def retry_storm(self, batch: int) -> float:
        """Claims that fail `FAILURES` times before they succeed; claims per second."""

        def turn(jobs: list[Row]) -> Steps[list[Row]]:
            yield self._guard()
            if failed := [j for j in jobs if j[10] <= load.FAILURES]:
                yield from self._retry(failed, "stormy")
            if ended := [j for j in jobs if j[10] > load.FAILURES]:
                yield from self._finish(ended, "stormy")
            return (yield from self._claim("storm", batch))

        return await self._until_empty(turn)

    async def _until_empty(
        self, turn: Callable[[list[Row]], Steps[list[Row]]], between: Callable[[list[Row]], Any] | None = None
    ) -> float:
        began_s, taken, jobs = time.perf_counter(), 0, await self.bare.transaction(turn([]))
        while jobs:
            taken += len(jobs)
            if between is not None:
                await between(jobs)
            jobs = await self.bare.transaction(turn(jobs))
        return taken / (time.perf_counter() - began_s)

    async def enqueue(self, documents: int, batch: int) -> float:
        """Documents with their jobs, `batch` in each transaction."""
        content = b"a text of some length, so that there is something to keep"

        def add(numbers: range) -> Steps[None]:
            yield self._guard()
            ids = [f"bare-{batch}-{n:09}" for n in numbers]
            yield Query(
                self.sql.DOCUMENT_ADD,
                rows=[
                    ("bare", i, "documents", "one", "text", "", "", HASH, len(content), content, None, b"{}", None,
                     None, NOW_MS)
                    for i in ids
                ],
            )  # fmt: skip
            yield Query(self.sql.TURNS, rows=[("bare", "bare")])
            yield Query(self.sql.FLOW_TIMES, rows=[("bare", "one", "")])
            yield Query(self.sql.TURN_SET, rows=[("bare", "bare", "", "", 0, float(numbers.stop))])
            yield Query(
                self.sql.JOB_ADD,
                rows=[
                    ("bare", f"doc-{i}", i, "one", "bare", "", "only", "queued", 0, 1.0 * n, NOW_MS, 30_000, 1, 3, None,
                     None, None, None, NOW_MS)
                    for n, i in zip(numbers, ids, strict=True)
                ],
            )  # fmt: skip

        began_s = time.perf_counter()
        for start in range(0, documents, batch):
            await self.bare.transaction(add(range(start, min(start + batch, documents))))
        return documents / (time.perf_counter() - began_s)


def _whole(jobs: list[Row], accepted: list[Row]) -> None:
    assert len(accepted) == len(jobs), "the bound did less than the engine would"
