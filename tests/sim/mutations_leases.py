"""Planted bugs in claims, leases, transactions and retries, of the kinds that real systems have had."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from perdure.core import outcome as rules
from perdure.core.model import Job
from perdure.core.outcome import Orphaned, Outcome, Overdue, Result, Retry
from perdure.engine import recovery
from perdure.engine.keeper import Keeper
from perdure.store import apply, flusher, resolving, rows
from perdure.store.base import Query, Row, Steps
from perdure.store.operations import Added, Claim, Kind, NewDocument, Operation, Promote, Save, Settle
from perdure.store.records import SavedStage
from perdure.store.sql_store import SqlStore
from perdure.store.sqlite_dialect import SqliteDialect
from tests.sim.planting import breaks, sql


@breaks("fence", "history")
def no_fence() -> Iterator[None]:
    """A write is accepted whoever holds the lease."""
    with (
        sql("FENCE_SAVE", "AND token = $5", "AND $5 IS NOT NULL"),
        sql("FENCE_SETTLE", "AND token = $5", "AND $5 IS NOT NULL"),
    ):
        yield


@breaks("acknowledged")
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


@breaks("budget")
def neighbours_charged_for_a_crash() -> Iterator[None]:
    """Whoever was in hand when a worker died has used an attempt."""

    def charged(job: Job, result: Result) -> Outcome:
        if isinstance(result, Orphaned):
            result = Overdue(result.stage, "worker_lost", result.reason)
        return rules.outcome(job, result)

    with mock.patch.object(recovery, "outcome", charged):
        yield


@breaks("once")
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


@breaks("lease", "progress")
def select_then_update_claim() -> Iterator[None]:
    """What is ready is looked up in one transaction and taken in the next, without looking again."""
    seen: dict[int, list[Row]] = {}

    def claim(self: SqliteDialect, op: Claim, now_ms: int, kinds: Sequence[Kind]) -> Steps[list[Row]]:
        chosen = seen.pop(op.worker, [])
        ready = "SELECT vt, -priority, id FROM job WHERE state = 'queued' AND lane = '' LIMIT $1"
        seen[op.worker] = yield Query(ready, (sum(kind.most for kind in kinds),))
        return (yield from self.take(op, now_ms, chosen))

    with mock.patch.object(SqliteDialect, "claim", claim):
        yield


@breaks("counters")
def attempts_counted_at_failure() -> Iterator[None]:
    """A claim is free; only a failure that gets recorded counts."""
    whole = rows.settle_fence

    def settle_fence(ordinal: int, op: Settle, lanes_down: set[str]) -> Row:
        given_back = not isinstance(op.outcome, Retry)
        job = replace(op.job, attempts=op.job.attempts + given_back)
        if isinstance(op.outcome, Retry):
            job = replace(job, attempts=job.attempts + 1)
        return whole(ordinal, replace(op, job=job), lanes_down)

    with (
        sql("_TAKE", "attempts = attempts + 1, ", ""),
        mock.patch.object(rows, "settle_fence", settle_fence),
    ):
        yield


@breaks("converges")
def retry_never_scheduled() -> Iterator[None]:
    """What waits is never promoted."""

    async def promote(self: SqlStore, op: Promote) -> int:
        return 0

    with mock.patch.object(SqlStore, "promote", promote):
        yield


@breaks("immutable")
def cleanup_on_resume() -> Iterator[None]:
    """A second attempt starts from nothing."""

    async def saves(
        self: SqlStore, org: str, document_id: str, pipeline: str, generation: int | None = None
    ) -> list[SavedStage]:
        await self._change(Query("DELETE FROM saved WHERE document_id = $1", (document_id,)))
        return []

    with mock.patch.object(SqlStore, "saves", saves):
        yield


@breaks("acknowledged", "fence", "immutable", "lease")
def lost_reply_taken_for_a_failure() -> Iterator[None]:
    """A flush whose reply was lost is applied once more."""
    whole = flusher.Flusher._steps

    def steps(
        self: flusher.Flusher, ops: Sequence[Operation], number: int, in_doubt: bool
    ) -> Steps[tuple[list[Any], apply.Flush | None]]:
        if in_doubt:
            yield Query("UPDATE worker SET flush = $2 - 1 WHERE id = $1", (self.client, number))
        return (yield from whole(self, ops, number, False))

    with mock.patch.object(flusher.Flusher, "_steps", steps):
        yield


@breaks("alone")
def no_quarantine() -> Iterator[None]:
    """A document may crash for as long as it has attempts."""
    with mock.patch.object(rules, "CRASHES_MAX", 100):
        yield


@breaks("acknowledged")
def acknowledged_before_the_commit() -> Iterator[None]:
    """A client is answered while its document is still on the way."""
    whole = SqlStore.add

    async def add(self: SqlStore, documents: Sequence[NewDocument]) -> list[Added]:
        task = asyncio.create_task(whole(self, documents))
        await asyncio.wait({task}, timeout=0.003)
        return [Added(document.id, "added") for document in documents]

    with mock.patch.object(SqlStore, "add", add):
        yield


@breaks("lease")
def leases_taken_from_the_living() -> Iterator[None]:
    """A lease that will be over in a while counts as over."""
    with (
        sql("EXPIRED", "j.lease_until_ms <", "j.lease_until_ms - 4000 <"),
        sql("FENCE_SETTLE", "lease_until_ms < $1", "lease_until_ms - 4000 < $1"),
    ):
        yield


@breaks("lease", "early")
def leases_by_the_workers_clock() -> Iterator[None]:
    """Each process judges leases and due times by its own clock."""

    def init(self: flusher.Flusher, driver: Any, register: Any, now_ms: Any, **more: Any) -> None:
        def own_ms() -> int:
            behind_s = len(driver.process.name) % 3 * 20
            return int(driver.world.now_ms()) - behind_s * 1000

        whole(self, driver, register, own_ms, **more)

    whole = flusher.Flusher.__init__
    with mock.patch.object(flusher.Flusher, "__init__", init):
        yield


@breaks("lease")
def tokens_given_twice() -> Iterator[None]:
    """A worker claims under the same token every time."""
    with mock.patch("perdure.engine.worker.new_token", return_value=7):
        yield


@breaks("lease")
def claims_not_counted() -> Iterator[None]:
    """Nothing rises with every claim."""
    with sql("_TAKE", "claims = claims + 1, ", ""):
        yield


@breaks("converges", "budget")
def leases_never_renewed() -> Iterator[None]:
    """What takes longer than its lease is taken away again and again."""

    async def keep(self: Keeper) -> None: ...

    with mock.patch.object(Keeper, "_keep", keep):
        yield


@breaks("fence")
def beats_for_others() -> Iterator[None]:
    """A worker renews what it had in hand, whoever has it by now."""
    with sql("BEAT", "AND token = $3", "AND $3 IS NOT NULL"):
        yield


@breaks("acknowledged")
def doubt_taken_for_success() -> Iterator[None]:
    """A flush that may have been applied is never applied again, even if it was not."""
    whole = flusher.Flusher._steps

    def steps(
        self: flusher.Flusher, ops: Sequence[Operation], number: int, in_doubt: bool
    ) -> Steps[tuple[list[Any], apply.Flush | None]]:
        if not in_doubt:
            return (yield from whole(self, ops, number, in_doubt))
        yield Query("UPDATE worker SET flush = $2 WHERE id = $1", (self.client, number))
        return (yield from resolving.resolve(self._driver.dialect, ops, "")), None

    with mock.patch.object(flusher.Flusher, "_steps", steps):
        yield
