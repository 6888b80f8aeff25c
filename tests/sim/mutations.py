"""Bugs planted on purpose, of the kinds that real systems have had. A simulator that does not find them proves nothing.

Each is a context manager that breaks the engine while it is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from perdure.core import outcome as rules
from perdure.core.model import Job
from perdure.core.outcome import Orphaned, Outcome, Overdue, Result, Retry
from perdure.engine import recovery
from perdure.store import apply, flusher, rows
from perdure.store.base import Query, Row, Steps
from perdure.store.operations import Claim, Operation, Promote, Save, Settle
from perdure.store.records import SavedStage
from perdure.store.sql_store import SqlStore
from perdure.store.sqlite_dialect import SqliteDialect

Mutation = Callable[[], AbstractContextManager[None]]


@contextmanager
def no_fence() -> Iterator[None]:
    """A write is accepted whoever holds the lease."""
    save = SqliteDialect.FENCE_SAVE.replace("AND token = $5", "AND $5 IS NOT NULL")
    settle = SqliteDialect.FENCE_SETTLE.replace("AND token = $5", "AND $5 IS NOT NULL")
    assert save != SqliteDialect.FENCE_SAVE
    assert settle != SqliteDialect.FENCE_SETTLE
    with (
        mock.patch.object(SqliteDialect, "FENCE_SAVE", save),
        mock.patch.object(SqliteDialect, "FENCE_SETTLE", settle),
    ):
        yield


@contextmanager
def two_operations_of_one_job_in_one_flush() -> Iterator[None]:
    """Both ride together, and as in one UPDATE over arrays only one is applied although both are answered."""
    whole = apply.Flush.fenced

    def fenced(
        self: apply.Flush,
        saves: Sequence[tuple[int, Save]],
        settles: Sequence[tuple[int, Settle]],
        answers: list[Any],
    ) -> Steps[None]:
        numbered: list[tuple[int, Save | Settle]] = sorted([*saves, *settles], key=lambda one: one[0])
        last = {op.job.id: n for n, op in numbered}
        yield from whole(
            self,
            [(n, op) for n, op in saves if last[op.job.id] == n],
            [(n, op) for n, op in settles if last[op.job.id] == n],
            answers,
        )
        for n, op in numbered:
            answers[n] = answers[last[op.job.id]]

    with (
        mock.patch.object(flusher, "subject", return_value=None),
        mock.patch.object(apply.Flush, "fenced", fenced),
    ):
        yield


@contextmanager
def neighbours_charged_for_a_crash() -> Iterator[None]:
    """Whoever was in hand when a worker died has used an attempt."""

    def charged(job: Job, result: Result) -> Outcome:
        if isinstance(result, Orphaned):
            result = Overdue(result.stage, "worker_lost", result.reason)
        return rules.outcome(job, result)

    with mock.patch.object(recovery, "outcome", charged):
        yield


@contextmanager
def two_transactions_instead_of_one() -> Iterator[None]:
    """What a stage does to the world is committed first, that it was done afterwards."""
    save_whole, settle_whole = SqlStore.save, SqlStore.settle

    async def first(self: SqlStore, save: Save) -> Save:
        def steps() -> Steps[None]:
            for statement, params in save.sql:
                yield Query(statement, params)

        if save.sql:
            await self.driver.write(steps)
        return replace(save, sql=())

    async def save(self: SqlStore, op: Save) -> bool:
        return await save_whole(self, await first(self, op))

    async def settle(self: SqlStore, op: Settle) -> bool:
        return await settle_whole(self, replace(op, save=await first(self, op.save)) if op.save else op)

    with mock.patch.object(SqlStore, "save", save), mock.patch.object(SqlStore, "settle", settle):
        yield


@contextmanager
def select_then_update_claim() -> Iterator[None]:
    """What is ready is looked up in one transaction and taken in the next, without looking again."""
    seen: dict[int, list[Row]] = {}

    def claim(self: SqliteDialect, op: Claim, now_ms: int, suspect: bool, limit: int) -> Steps[list[Row]]:
        ids = seen.pop(op.worker, [])
        ready = yield Query("SELECT id FROM job WHERE state = 'queued' AND lane = '' LIMIT $1", (limit,))
        seen[op.worker] = ready
        if not ids:
            return []
        yield Query(self._TAKE, (op.token, op.worker, now_ms), rows=ids)
        return (yield Query(self._TAKEN, rows=ids))

    with mock.patch.object(SqliteDialect, "claim", claim):
        yield


@contextmanager
def attempts_counted_at_failure() -> Iterator[None]:
    """A claim is free; only a failure that gets recorded counts."""
    whole = rows.settle_fence
    take = SqliteDialect._TAKE.replace("attempts = attempts + 1, ", "")
    assert take != SqliteDialect._TAKE

    def settle_fence(ordinal: int, op: Settle, lanes_down: set[str]) -> Row:
        given_back = not isinstance(op.outcome, Retry)
        job = replace(op.job, attempts=op.job.attempts + given_back)
        if isinstance(op.outcome, Retry):
            job = replace(job, attempts=job.attempts + 1)
        return whole(ordinal, replace(op, job=job), lanes_down)

    with (
        mock.patch.object(SqliteDialect, "_TAKE", take),
        mock.patch.object(rows, "settle_fence", settle_fence),
    ):
        yield


@contextmanager
def retry_never_scheduled() -> Iterator[None]:
    """What waits is never promoted."""

    async def promote(self: SqlStore, op: Promote) -> int:
        return 0

    with mock.patch.object(SqlStore, "promote", promote):
        yield


@contextmanager
def cleanup_on_resume() -> Iterator[None]:
    """A second attempt starts from nothing."""

    async def saves(self: SqlStore, org: str, document_id: str, pipeline: str) -> list[SavedStage]:
        await self._change(Query("DELETE FROM saved WHERE document_id = $1", (document_id,)))
        return []

    with mock.patch.object(SqlStore, "saves", saves):
        yield


@contextmanager
def lost_reply_taken_for_a_failure() -> Iterator[None]:
    """A flush whose reply was lost is applied once more."""
    whole = flusher.Flusher._steps

    def steps(
        self: flusher.Flusher, ops: Sequence[Operation], number: int, in_doubt: bool
    ) -> Steps[list[Any]]:
        return whole(self, ops, number, False)

    def registered(
        self: flusher.Flusher, ops: Sequence[Operation], number: int, in_doubt: bool
    ) -> Steps[list[Any]]:
        if in_doubt:
            yield Query("UPDATE worker SET flush = $2 - 1 WHERE id = $1", (self.client, number))
        return (yield from steps(self, ops, number, in_doubt))

    with mock.patch.object(flusher.Flusher, "_steps", registered):
        yield


@contextmanager
def no_quarantine() -> Iterator[None]:
    """A document may crash for as long as it has attempts."""
    with mock.patch.object(rules, "CRASHES_MAX", 100):
        yield


MUTATIONS: tuple[Mutation, ...] = (
    no_fence,
    two_operations_of_one_job_in_one_flush,
    neighbours_charged_for_a_crash,
    two_transactions_instead_of_one,
    select_then_update_claim,
    attempts_counted_at_failure,
    retry_never_scheduled,
    cleanup_on_resume,
    lost_reply_taken_for_a_failure,
    no_quarantine,
)
