"""Planted bugs in the life of a document: what is saved, how it goes on, how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock

from perdure.core import outcome as rules
from perdure.core.model import Job
from perdure.core.outcome import Dead, Done, Later, Outcome, Result, Stopped
from perdure.engine import recovery, runner, saving
from perdure.engine.execution import Execution
from perdure.engine.journey import Journey
from perdure.engine.result import SpawnDocument
from perdure.engine.runner import Runner
from perdure.store import apply, rows
from perdure.store.base import Query, Row, Steps
from perdure.store.operations import NewJob, Save, Settle
from perdure.store.sql_store import SqlStore
from tests.sim.planting import breaks, sql


@breaks("early")
def promoted_before_it_is_due() -> Iterator[None]:
    """Whatever waits is moved on at once."""
    with sql("DUE", "run_at_ms <= $1", "$1 > 0"):
        yield


@breaks("reason")
def dead_without_a_reason() -> Iterator[None]:
    """What it died of is lost on the way."""
    whole = rows.document_end

    def document_end(op: Settle, now_ms: int) -> Row | None:
        if isinstance(op.outcome, Dead):
            failure = replace(op.outcome.failure, code="")
            op = replace(op, outcome=replace(op.outcome, failure=failure))
        return whole(op, now_ms)

    with mock.patch.object(rows, "document_end", document_end):
        yield


@breaks("immutable")
def saved_stages_run_again() -> Iterator[None]:
    """A second attempt takes nothing up."""
    with mock.patch.object(saving, "usable", return_value={}):
        yield


@breaks("immutable")
def saved_items_run_again() -> Iterator[None]:
    """A second attempt takes the stages up, but not the items."""

    async def load_items(self: Execution) -> dict[str, bytes]:
        return {}

    with mock.patch.object(Execution, "_load_items", load_items):
        yield


@breaks("progress")
def retry_from_the_first_stage() -> Iterator[None]:
    """A job that fails stands at the beginning again."""
    whole = rows.settle_fence

    def settle_fence(ordinal: int, op: Settle, lanes_down: set[str]) -> Row:
        first = "one" if op.job.pipeline == "books" else op.stage
        return whole(ordinal, replace(op, stage=first), lanes_down)

    with mock.patch.object(rows, "settle_fence", settle_fence):
        yield


@breaks("progress")
def requeue_within_the_generation() -> Iterator[None]:
    """What had ended goes on as if it had not."""
    with sql("DOCUMENT_OPEN", "generation = generation + 1", "generation = generation"):
        yield


@breaks("whole")
def cancel_leaves_the_job() -> Iterator[None]:
    """The document is cancelled, its job goes on."""
    with sql("JOB_CANCEL", "WHERE", "WHERE FALSE AND"):
        yield


@breaks("whole", "feed")
def the_end_is_told_later() -> Iterator[None]:
    """The job ends in one transaction, the document in the next."""
    settle_whole, end_whole = SqlStore.settle, rows.document_end

    async def settle(self: SqlStore, op: Settle) -> bool:
        kept = await settle_whole(self, op)
        if kept and (end := end_whole(op, 1)):
            await self._change(Query(self.sql.DOCUMENT_END, end))
        return kept

    with (
        mock.patch.object(SqlStore, "settle", settle),
        mock.patch.object(rows, "document_end", return_value=None),
    ):
        yield


@breaks("alone")
def suspects_among_others() -> Iterator[None]:
    """A suspect runs where everybody runs."""
    whole = Execution.__init__

    def init(self: Execution, at: Runner, journey: Journey, *rest: Any) -> None:
        whole(self, at, journey, *rest)
        self.job = replace(self.job, suspect=False)

    with mock.patch.object(Execution, "__init__", init):
        yield


@breaks("once")
def hooks_forgotten() -> Iterator[None]:
    """Nobody is told of the end."""
    with mock.patch.object(rows, "hook", return_value=None):
        yield


@breaks("converges", "budget")
def postponements_uncounted() -> Iterator[None]:
    """Who asks to wait may ask for ever."""
    whole = rules._given_back

    def given_back(job: Job, later: Later) -> Any:
        return whole(job, replace(later, counted=False))

    with mock.patch.object(rules, "_given_back", given_back):
        yield


@breaks("sound", "budget")
def stopping_breaks() -> Iterator[None]:
    """A journey that is asked to stop falls over its own feet."""

    def stopped(self: Runner, journey: Journey) -> Stopped:
        raise RuntimeError("nobody thought of this")

    with mock.patch.object(Runner, "_stopped", stopped):
        yield


@breaks("whole", "converges")
def stopped_passes_for_done() -> Iterator[None]:
    """A worker that is asked to stop reports its jobs as finished."""
    whole = rules.outcome

    def outcome(job: Job, result: Result) -> Outcome:
        return Done() if isinstance(result, Stopped) else whole(job, result)

    with mock.patch.object(runner, "outcome", outcome), mock.patch.object(recovery, "outcome", outcome):
        yield


@breaks("whole")
def rows_taken_for_stale() -> Iterator[None]:
    """A stage that is saved by a later claim clears what its items emitted."""
    with sql("EMITTED_STALE", "AND fingerprint <> $5", "AND $5 <> ''"):
        yield


@breaks("once")
def children_by_another_name() -> Iterator[None]:
    """A child that is spawned again is another child."""
    numbers = count(1)

    def document_id(self: SpawnDocument, parent_id: str) -> str:
        return f"{parent_id}-child-{next(numbers)}"

    with mock.patch.object(SpawnDocument, "document_id", document_id):
        yield


@breaks("once")
def statements_of_a_second_attempt_skipped() -> Iterator[None]:
    """Somebody thought that they had been run."""
    whole = apply.Flush.kept

    def kept(self: apply.Flush, saves: Sequence[Save]) -> Steps[None]:
        yield from whole(self, [replace(save, sql=() if save.job.claims > 1 else save.sql) for save in saves])

    with mock.patch.object(apply.Flush, "kept", kept):
        yield


@breaks("reason")
def hooks_told_something_else() -> Iterator[None]:
    """Who is told of a death is told another cause."""
    whole = rows.hook

    def hook(op: Settle) -> NewJob | None:
        told = whole(op)
        if told is None or told.input in (None, b"null"):
            return told
        return replace(told, input=json.dumps({**json.loads(told.input), "code": "unknown"}).encode())

    with mock.patch.object(rows, "hook", hook):
        yield


@breaks("reason")
def postponements_counted_twice() -> Iterator[None]:
    """Who asks to wait dies of it sooner than was allowed."""
    whole = rules._given_back

    def given_back(job: Job, later: Later) -> Any:
        return whole(replace(job, postpones=job.postpones * 2), later)

    with mock.patch.object(rules, "_given_back", given_back):
        yield


@breaks("progress")
def requeue_of_the_living() -> Iterator[None]:
    """A document that is still in progress starts once more."""
    with sql("DOCUMENT_LOCK", "d.state,", "CASE d.state WHEN 'open' THEN 'dead' ELSE d.state END,"):
        yield


@breaks("sound")
def sweeping_breaks() -> Iterator[None]:
    """A part of the sweep falls over its own feet."""

    async def refill(self: SqlStore) -> None:
        raise KeyError("nobody thought of this")

    with mock.patch.object(SqlStore, "refill", refill):
        yield
