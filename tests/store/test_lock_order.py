"""Two flushes about the same two documents, asked in opposite order, lock them in one order: neither waits for the
other. A third transaction holds the later document, so that both flushes are in the middle of their locks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure.core.model import Job
from perdure.store.apply import Flush
from perdure.store.base import Steps
from perdure.store.operations import Cancel, Operation, Settle
from perdure.store.sql_store import SqlStore
from perdure.store.sqlite_dialect import SqliteDialect
from tests.core.jobs import UNSTARTED
from tests.store.locks import WAIT_S, locked, until_waiting
from tests.store.making import DONE, World, dead, document, output, retry, save


class Watched:
    """A driver that keeps what its writes raised."""

    def __init__(self, store: SqlStore) -> None:
        self._driver = store.driver
        self.errors: list[str] = []
        store.flusher._driver = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def write(self, steps: Callable[[], Steps[Any]]) -> Any:
        try:
            return await self._driver.write(steps)
        except Exception as error:
            self.errors.append(str(error))
            raise


def cancelled(job: Job) -> Operation:
    return Cancel(job.org, job.document_id)


def saved(job: Job) -> Operation:
    return save(job, job.stage, output=output())


def retried(job: Job) -> Operation:
    return Settle(job, retry(), job.stage, "")


def finished(job: Job) -> Operation:
    return Settle(job, DONE, job.stage, "")


async def together(store: SqlStore, operations: list[Operation]) -> list[Any]:
    """All in one flush."""
    return await asyncio.gather(*map(store.flusher.submit, operations))


async def deadlocks(world: World, operation: Callable[[Job], Operation], jobs: list[Job], table: str) -> int:
    """How many there are when two clients do this to both documents while another one has locked the second."""
    stores = [world.store, await world.another()]
    for store in stores:  # they are registered, and know all flows
        await store.add([document("known")])
    watched = [Watched(store) for store in stores]
    key = "id" if table == "document" else "document_id"
    flushes = []
    async with locked(world, f"SELECT 1 FROM {table} WHERE {key} = $1", jobs[1].document_id) as other:
        for number, (store, order) in enumerate(zip(stores, (jobs[::-1], jobs), strict=True), 1):
            flushes.append(asyncio.create_task(together(store, [operation(job) for job in order])))
            await until_waiting(other, number)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*flushes)
    return sum("40P01" in error for one in watched for error in one.errors)


@pytest.mark.parametrize("operation", [cancelled, saved, retried, finished])
async def test_jobs_are_locked_in_one_order(
    postgres_world: World, operation: Callable[[Job], Operation]
) -> None:
    await postgres_world.add(document(), document())
    jobs = [claimed.job for claimed in await postgres_world.claim(2)]

    assert await deadlocks(postgres_world, operation, jobs, "job") == 0


async def test_documents_whose_jobs_were_pruned_are_locked_in_one_order(postgres_world: World) -> None:
    world = postgres_world
    await world.add(document(), document())
    jobs = [claimed.job for claimed in await world.claim(2)]
    for job in jobs:
        await world.settle(job, DONE)
    assert await world.store.prune(age_ms=0, count=0) == 2

    assert await deadlocks(world, cancelled, jobs, "document") == 0
    assert [(await world.status(job.document_id)).state for job in jobs] == ["done", "done"]


def test_sqlite_has_one_writer_and_is_asked_for_no_locks() -> None:
    flush = Flush(SqliteDialect(), 1, 1, 0, set(), {})
    batch = [Settle(UNSTARTED, DONE, "chunk", ""), Settle(UNSTARTED, dead(), "chunk", "")]

    assert list(flush.lock(batch)) == []
