"""Events and calls become numbers on a board. Each process of a worker has one of these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from perdure.calls.dependency import DEPENDENCIES, Operation, subscribe
from perdure.calls.timing import TIMING
from perdure.core.events import (
    AnyEvent,
    AttemptEnded,
    ChunksDeleted,
    DocumentDead,
    Events,
    ForeignKeyRefused,
    JobRecovered,
    StageSaved,
    StageSkipped,
    StuckSwept,
    SweepPartial,
    WorkerLost,
    WorkerStalled,
    WriteFenced,
)
from perdure.watch.board import Board
from perdure.watch.metrics import (
    BREAKER_STATES,
    ERROR_TYPES,
    LARGER,
    METRICS,
    OTHER,
    OUTCOMES,
    SIZES,
    size_of,
)

if TYPE_CHECKING:
    from perdure.engine.pipeline import Pipeline  # a supervisor does without what it needs

SAMPLE_S = 1.0
#: Why a job was taken back; anything else is told of a worker's end.
REASONS = {"lease expired": "lease_expired", "stuck": "stuck"}
CALL_OUTCOMES = ("ok", "failed")
FAILURES = ("outage", "rate_limited")


class Meter:
    """Counts on `board` from the moment it is made until `close`."""

    def __init__(self, board: Board, events: Events) -> None:
        self.board = board
        self._sampled: dict[str, tuple[int, int, int]] = {}  # requests and failures of each kind
        self._heard: dict[type, Callable[[Any], None]] = {
            AttemptEnded: self._attempt, StageSaved: self._saved, StageSkipped: self._skipped,
            DocumentDead: self._dead, JobRecovered: self._recovered, ForeignKeyRefused: self._refused,
            ChunksDeleted: self._deleted, WriteFenced: self._plain("perdure_fenced_writes_total"),
            WorkerLost: self._plain("perdure_workers_lost_total"),
            WorkerStalled: self._plain("perdure_workers_stalled_total"),
            StuckSwept: self._swept, SweepPartial: self._plain("perdure_sweep_failures_total"),
        }  # fmt: skip
        for metric in METRICS:
            if metric.of == "process":
                for labels in metric.known:
                    board.start(metric.name, *labels)
        self._leave = [events.subscribe(self.hear), subscribe(self.called)]

    def close(self) -> None:
        """Count no longer."""
        for leave in self._leave:
            leave()
        self._leave.clear()

    # --- documents -------------------------------------------------------------------------------

    def know(self, pipelines: Iterable[Pipeline]) -> None:
        """Let what they may do begin at 0."""
        start = self.board.start
        for pipeline in pipelines:
            for outcome in OUTCOMES:
                start("perdure_attempts_total", pipeline.name, outcome)
            for stage in pipeline.stages:
                start("perdure_stages_resumed_total", pipeline.name, stage.name)
                start("perdure_stages_rerun_total", pipeline.name, stage.name)
                for size in (*(name for _, name in SIZES), LARGER):
                    start("perdure_stage_seconds", pipeline.name, stage.name, size)
                for name in stage.needs:
                    self._know(name)

    def hear(self, event: AnyEvent) -> None:
        """Count an event, if it is one of those that are counted."""
        if (heard := self._heard.get(type(event))) is not None:
            heard(event)

    def _plain(self, name: str) -> Callable[[object], None]:
        return lambda _: self.board.add(name)

    def _attempt(self, event: AttemptEnded) -> None:
        self.board.add("perdure_attempts_total", event.pipeline, event.outcome)

    def _saved(self, event: StageSaved) -> None:
        where = (event.pipeline, event.stage)
        self.board.observe(
            "perdure_stage_seconds", *where, size_of(event.size), value=event.duration_ms / 1000
        )
        if event.rerun:
            self.board.add("perdure_stages_rerun_total", *where)

    def _skipped(self, event: StageSkipped) -> None:
        self.board.add("perdure_stages_resumed_total", event.pipeline, event.stage)

    def _dead(self, event: DocumentDead) -> None:
        if event.follow_up:
            self.board.add("perdure_follow_up_deaths_total", event.follow_up)
            return
        self.board.add("perdure_documents_dead_total", event.collection)
        if event.exhausted:
            self.board.add("retry_job_documents_max_retries_exceeded_total", event.collection)

    def _recovered(self, event: JobRecovered) -> None:
        self.board.add("perdure_lease_recoveries_total", REASONS.get(event.reason, "worker_lost"))

    def _swept(self, event: StuckSwept) -> None:
        add = self.board.add
        add("retry_job_runs_total", event.status)
        for collection, count in event.requeued.items():
            add("retry_job_documents_requeued_total", collection, amount=count)
        for collection, count in event.skipped.items():
            add("retry_job_documents_skipped_backoff_total", collection, amount=count)
        for kind, count in event.errors.items():
            add("retry_job_errors_total", kind if kind in ERROR_TYPES else OTHER, amount=count)
        self.board.observe("retry_job_duration_seconds", value=event.duration_ms / 1000)

    def _refused(self, _: ForeignKeyRefused) -> None:
        self.board.add("perdure_foreign_key_errors_total")

    def _deleted(self, event: ChunksDeleted) -> None:
        self.board.add("perdure_chunk_deletions_total", event.kind, amount=event.count)

    # --- calls -----------------------------------------------------------------------------------

    def called(self, ended: Operation) -> None:
        """Count an operation on a service."""
        add, outcome = self.board.add, "ok" if ended.success else "failed"
        self._know(ended.api_name)
        add("perdure_calls_total", ended.api_name, outcome)
        if ended.retry_count:
            add("perdure_calls_retried_total", ended.api_name, outcome)
            add("perdure_call_retries_total", ended.api_name, amount=ended.retry_count)
            self.board.observe("perdure_call_added_seconds", ended.api_name, value=ended.added_ms / 1000)

    def _know(self, dependency: str) -> None:
        if dependency in self._sampled:
            return
        self._sampled[dependency] = (0, 0, 0)
        for outcome in CALL_OUTCOMES:
            self.board.start("perdure_calls_total", dependency, outcome)
            self.board.start("perdure_calls_retried_total", dependency, outcome)
        self.board.start("perdure_call_retries_total", dependency)
        self.board.start("perdure_call_added_seconds", dependency)
        self.board.start("perdure_requests_total", dependency)
        for kind in FAILURES:
            self.board.start("perdure_request_failures_total", dependency, kind)

    async def run(self) -> None:
        """Until it is cancelled: note every second how services are doing, which nobody tells."""
        try:
            while True:
                self.sample()
                await asyncio.sleep(SAMPLE_S)
        finally:
            self.sample()

    def sample(self) -> None:
        """Note how many requests went out, and what is left for retries."""
        for name, state in list(DEPENDENCIES.items()):
            self._know(name)
            counted = (state.requests, state.failures, state.throttled)
            more = [now - before for now, before in zip(counted, self._sampled[name], strict=True)]
            self._sampled[name] = counted
            self.board.add("perdure_requests_total", name, amount=more[0])
            for kind, amount in zip(FAILURES, more[1:], strict=True):
                self.board.add("perdure_request_failures_total", name, kind, amount=amount)
            self.board.put("perdure_retry_budget_tokens", name, value=state.budget.tokens)
            self.board.put("perdure_request_limit", name, value=state.limiter.rate or 0.0)
            word = state.breaker_word(TIMING.clock())
            self.board.put("perdure_breaker_state", name, value=BREAKER_STATES.index(word))
