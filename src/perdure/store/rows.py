"""Values to rows and rows to values: the only place that knows the order of columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, assert_never

from perdure.core.chunk import Connection
from perdure.core.fleet import TOKENS_MAX, breaker_word
from perdure.core.knobs import usable_knobs_of
from perdure.core.lane import like, plain
from perdure.core.model import GATHERING_MS, POLICY_HOOK, Job, Policy, State, job_name
from perdure.core.outcome import Dead, Done, Failure, Gather, Hold, Later, Retry, hold_delay_ms
from perdure.core.pace import Pace
from perdure.store.base import BREAKER, Row
from perdure.store.dialect import DOCUMENT_COLUMNS, GATHERS, JOB_COLUMNS, WHY_DONE
from perdure.store.exchange import looking_of, rates_of
from perdure.store.operations import (
    EmittedRow,
    HandOver,
    ItemOutput,
    NewChunk,
    NewDocument,
    NewEvent,
    NewJob,
    Save,
    Settle,
    StageOutput,
)
from perdure.store.records import Attempt, Claimed, DependencyRecord, DocumentRecord, Reporter, Status
from perdure.store.text import cleaned

JOB_WIDTH = JOB_COLUMNS.count(",") + 1
JOB_QUEUE = JOB_COLUMNS.split(", ").index("j.queue")
JOB_ORG = JOB_COLUMNS.split(", ").index("j.org")
JOB_PIPELINE = JOB_COLUMNS.split(", ").index("j.pipeline")
JOB_LANE = JOB_QUEUE + 1
JOB_SUSPECT = JOB_COLUMNS.split(", ").index("j.suspect")
JOB_PRIORITY = JOB_COLUMNS.split(", ").index("j.priority")
#: Why the breaker of a service looks that is not known to fail yet.
LOOKING = "many requests failed of late"
DOCUMENT_WIDTH = DOCUMENT_COLUMNS.count(",") + 1


def job(row: Row, collection: str | None = None) -> Job:
    """A job from JOB_COLUMNS."""
    (id_, org, key, document_id, pipeline, queue, lane, stage, token, generation, attempts, claims, postpones,
     releases, crashes, postponed_ms, suspect, attempts_max, policy, claimed_ms, lease_ms, fresh_from, priority,
     input_, limit_key, worker, holds, progress_ms, probe, remote, flickers) = row  # fmt: skip
    return Job(
        id_, org, key, document_id, pipeline, queue, lane, stage, token, generation, attempts, claims, postpones,
        releases, crashes, postponed_ms, bool(suspect), attempts_max, Policy.from_text(policy), claimed_ms, lease_ms,
        fresh_from, priority, input_, limit_key, worker, holds, progress_ms, probe, remote, flickers,
        collection,
    )  # fmt: skip


def jobs(found: Sequence[Row], bad: list[tuple[int, Exception]] | None = None) -> list[Job]:
    """Those that can be read; of the others `bad` gets the id and the reason."""
    read = []
    for row in found:
        try:
            read.append(job(row))
        except Exception as error:  # whatever it is that somebody else wrote there
            if bad is not None:
                bad.append((row[0], error))
    return read


def readable(found: Sequence[Row]) -> list[Claimed]:
    """Claims that can be read. The others stay as they are until their lease ends, and a sweep tells of them: one row
    that somebody else wrote to must not keep a queue from its workers."""
    read = []
    for row in found:
        with suppress(Exception):
            read.append(claimed(row))
    return read


def claimed(row: Row) -> Claimed:
    """A claim from JOB_COLUMNS and DOCUMENT_COLUMNS."""
    document = DocumentRecord(*row[JOB_WIDTH:])
    return Claimed(job(row[:JOB_WIDTH], document.collection), document)


def status(row: Row) -> Status:
    """A status from STATUS_COLUMNS; a pruned job leaves only what the document knows."""
    (id_, org, collection, pipeline, name, state, stage, generation, attempts, attempts_max, claims, suspect, degraded,
     run_at_ms, beat_ms, created_ms, finished_ms, error_code, error_message, held_by, remote) = row  # fmt: skip
    due_ms = None if run_at_ms == GATHERING_MS else run_at_ms
    return Status(
        id_, org, collection, pipeline, name, state, stage, generation, attempts or 0, attempts_max or 0, claims or 0,
        bool(suspect), bool(degraded), due_ms, beat_ms, created_ms, finished_ms, error_code, error_message,
        None if held_by is None else plain(held_by), bool(remote),
    )  # fmt: skip


def dependency(row: Row, reporters: Sequence[Reporter], now_ms: int) -> DependencyRecord:
    """A dependency as its own row and its workers have it, at this time."""
    (
        name,
        down_ms,
        reason,
        held_by,
        probe_at_ms,
        probes,
        ramp_per_s,
        ramp_ms,
        nominal_per_s,
        tokens,
        paced,
    ) = row
    pace = Pace.from_text(paced).at(now_ms)
    state = pace.word if down_ms is None else "down" if ramp_ms is None else "ramping"
    breaker = breaker_word(down_ms is not None, ramp_ms is not None, looking_of(reporters))
    if down_ms is None:
        reason = pace.reason or (LOOKING if breaker == "half_open" else None)
    share = None if pace.reason is None or state == "down" else round(pace.seen, 3)
    if state == "paused" or (state == "down" and held_by == BREAKER):
        share = 0.0  # nobody is answered; while somebody else holds it nobody asks
    most = usable_knobs_of(name).tokens
    return DependencyRecord(
        name, state, down_ms, reason, held_by, 0, probe_at_ms, probes,
        ramp_per_s, nominal_per_s, tokens * most / TOKENS_MAX, most, pace.rate or None, pace.pause_ms or None, share,
        breaker, sum(rate or 0.0 for rate in rates_of(reporters, now_ms)), sum(one.in_flight for one in reporters),
    )  # fmt: skip


def attempt_record(row: Row) -> Attempt:
    """A claim that ended, as history has it."""
    document_id, job_key, generation, claim, number, charged, *rest, requests = row
    made = json.loads(requests) if requests is not None else {}
    return Attempt(document_id, job_key, generation, claim, number, bool(charged), *(*rest, made))


def document(d: NewDocument, now_ms: int) -> Row:
    return (
        d.org, d.id, d.collection, d.job.pipeline, d.kind, d.name, d.media_type, d.content_hash, d.size, d.inline,
        d.blob, d.meta, d.dedupe, d.parent_id, now_ms,
    )  # fmt: skip


def content(document_id: str, d: NewDocument) -> Row:
    return (
        d.org, document_id, d.kind, d.name, d.media_type, d.content_hash, d.size, d.inline, d.blob, d.meta,
    )  # fmt: skip


def save_fence(ordinal: int, op: Save) -> Row:
    return (
        ordinal,
        op.job.org,
        op.job.id,
        op.job.token,
        op.stage,
        like(op.lane, op.job.lane),
        op.lease_ms,
        op.suspect,
    )


def settle_fence(ordinal: int, op: Settle, lanes_down: set[str]) -> Row:
    """What the job becomes. Nobody else may change a fenced job, so its counters are absolute."""
    j, lane = op.job, like(op.lane, op.job.lane)
    attempts, postpones, postponed_ms = j.attempts, j.postpones, j.postponed_ms
    releases, crashes, flickers = j.releases, j.crashes, j.flickers
    holds, suspect, delay_ms, aside = j.holds, j.suspect, 0, False
    match op.outcome:
        case Done():
            raise AssertionError("what is finished is written by the dialect's `finish`")
        case Dead(charged=charged, crashes=crashes):
            state = State.DEAD
            attempts -= not charged
        case Retry(delay_ms=delay_ms, crashes=crashes, suspect=suspect):
            state = State.WAITING if delay_ms else State.QUEUED
            flickers = 0  # it has paid for them
        case Later(delay_ms=delay_ms, suspect=suspect) as later:
            state = State.WAITING if delay_ms else State.QUEUED
            attempts, releases = attempts - 1, releases + later.released
            postpones = (0 if later.afresh else postpones) + later.counted
            flickers = (0 if later.afresh else flickers) + later.flickered
            postponed_ms += delay_ms if later.bounded else 0
        case Hold(suspect=suspect, aside=False) if lane in lanes_down:
            state = State.QUEUED
            attempts, holds = attempts - 1, 0
        case Hold(suspect=suspect):
            state = State.WAITING
            attempts, holds, delay_ms, aside = attempts - 1, holds + 1, hold_delay_ms(holds), True
        case Gather(suspect=suspect):
            state = State.WAITING
            attempts, delay_ms = attempts - 1, GATHERS
        case _:
            assert_never(op.outcome)
    limited = j.limit_key is not None and not (op.save is not None and op.save.frees)
    if state is State.QUEUED and limited:
        state = State.PARKED  # back under its limit: the flush that fills it counts under the limit's lock
    terminal = state is State.DEAD
    return (
        ordinal, j.org, j.id, j.token, op.expired_only, not op.ours, str(state), op.stage, lane, delay_ms, attempts,
        postpones, postponed_ms, releases, crashes, holds, flickers, suspect, terminal, aside,
    )  # fmt: skip


def finish(ordinal: int, op: Settle) -> Row:
    j = op.job
    return (ordinal, j.org, j.id, j.token, op.stage, j.worker, op.requests)


def hand_over(ordinal: int, op: HandOver) -> Row:
    j = op.job
    return (ordinal, j.org, j.id, j.token, op.stage, like(op.lane, j.lane), op.token, op.remote)


def event(e: NewEvent, now_ms: int, handing: HandOver | None = None) -> Row:
    """An event for the outbox, and the lease that begins when it is published."""
    lease: Row = (None, None, None) if handing is None else (handing.job.id, handing.token, handing.wait_ms)
    return (e.id, e.org, e.document_id, e.name, e.payload, *lease, now_ms, now_ms)


def saved(j: Job, out: StageOutput, now_ms: int) -> Row:
    return (
        j.org, j.document_id, j.pipeline, out.stage, j.generation, out.version, out.model, out.input_hash,
        out.output_hash, out.size, out.inline, out.blob, j.token, now_ms, out.duration_ms, out.degraded,
    )  # fmt: skip


def item_key(j: Job, it: ItemOutput) -> Row:
    return (j.org, j.document_id, j.pipeline, it.stage, j.generation, it.key)


def item(j: Job, it: ItemOutput) -> Row:
    return (
        j.org, j.document_id, j.pipeline, it.stage, j.generation, it.key, it.fingerprint, it.size, it.inline, it.blob,
        j.token,
    )  # fmt: skip


def emitted_key(j: Job, row: EmittedRow) -> Row:
    return (j.org, j.document_id, row.name, row.key)


def emitted(save: Save, row: EmittedRow, now_ms: int) -> Row:
    j, stage = save.job, save.ran or save.stage
    return (
        j.org, j.document_id, row.name, row.key, row.data, j.pipeline, stage, save.fingerprint, j.generation, now_ms,
    )  # fmt: skip


def stale(save: Save) -> Row:
    """Whose older rows go when the stage is saved."""
    j = save.job
    return (j.org, j.document_id, j.pipeline, save.ran, save.fingerprint)


def chunk(j: Job, new: NewChunk, scope: str) -> Row:
    c = new.chunk
    return (
        j.org, j.document_id, c.id, c.position, c.start, c.end, c.anchor, c.page, c.model, c.vector, c.heading, c.text,
        scope, new.words,
    )  # fmt: skip


def connection_key(c: Connection) -> Row:
    return (c.chunk_id, c.other_document_id, c.other_id)


def connection(j: Job, c: Connection) -> Row:
    return (j.org, j.document_id, c.chunk_id, c.other_document_id, c.other_id, c.score, c.model)


def attempt(op: Settle, now_ms: int) -> Row:
    """The history of a claim, written once."""
    j, failure = op.job, _failure(op)
    name, charged, delay_ms, why = _told(op)
    charged = charged and not op.seized  # it did not run
    stage = failure.stage if failure else op.save.ran if op.save else op.stage
    if failure is not None and failure.place is not None:
        why = f"{why}; raised at {failure.place}"
    error: Row = (None, None, None, None, None)
    if failure is not None:
        error = (
            cleaned(failure.error_type), cleaned(failure.code), _status_code(failure), cleaned(failure.message),
            failure.fingerprint,
        )  # fmt: skip
    return (
        j.org, j.document_id, j.key, j.generation, j.claims, j.attempts, charged, j.token,
        stage, j.worker, j.claimed_ms, now_ms, name, *error, delay_ms, cleaned(why),
        op.requests, cleaned(failure.traceback) if failure is not None and failure.traceback else None,
    )  # fmt: skip


def ending(op: Settle) -> Row:
    """What tells this end of a claim from another one's: outcome and reason, as history keeps them."""
    name, _, _, why = _told(op)
    return (name, cleaned(why))


def cancelled(j: Job, reason: str, now_ms: int) -> Row:
    """The history of a claim that an operator ended."""
    why = f"cancelled: {cleaned(reason)}" if reason else "cancelled"
    return (
        j.org, j.document_id, j.key, j.generation, j.claims, j.attempts, True, j.token, j.stage, j.worker, j.claimed_ms,
        now_ms, "cancelled", None, None, None, None, None, None, why, None, None,
    )  # fmt: skip


def document_end(op: Settle, now_ms: int) -> Row | None:
    """A document dies with its main job; a follow-up job's end is its own."""
    if "/" in op.job.key:
        return None
    match op.outcome:
        case Dead(failure=failure):
            meta = {
                "stage": failure.stage,
                "type": failure.error_type,
                "attempts": op.job.attempts,
                "worker": op.job.worker,
            }
            return (
                op.job.org, op.job.document_id, "dead", now_ms, cleaned(failure.code), cleaned(failure.message),
                json.dumps(meta),
            )  # fmt: skip
        case _:
            return None


def dead(op: Settle, now_ms: int) -> Row | None:
    """What a dead document or follow-up job is listed and grouped by; a document has its message itself."""
    j = op.job
    if not isinstance(op.outcome, Dead):
        return None
    failure = op.outcome.failure
    attempts = j.attempts - (not op.outcome.charged)
    name = job_name(j.key, j.generation)
    return (
        j.org, j.document_id, j.pipeline, j.queue, op.lane, failure.stage, cleaned(failure.error_type),
        cleaned(failure.code), _status_code(failure), failure.fingerprint, attempts, j.generation, now_ms, name,
        cleaned(failure.message) if name else None,
    )  # fmt: skip


def hook(op: Settle) -> NewJob | None:
    """The follow-up job that tells about a main job's end, where the pipeline asked for one."""
    ending = {Done: "done", Dead: "dead"}.get(type(op.outcome))
    if ending is None or "/" in op.job.key or ending not in op.job.policy.hooks:
        return None
    told: dict[str, Any] | None = None
    if isinstance(op.outcome, Dead):
        f = op.outcome.failure
        told = {
            "stage": f.stage, "error_type": f.error_type, "code": f.code, "message": cleaned(f.message),
            "status_code": f.status_code,
        }  # fmt: skip
    name = f"on_{ending}"
    return NewJob(
        f"{op.job.pipeline}.{name}",
        op.job.queue,
        name,
        name=name,
        policy=POLICY_HOOK,
        input=json.dumps(told).encode(),
    )


def _told(op: Settle) -> tuple[str, bool, int | None, str]:
    """An outcome in the words of history: name, charged, delay, why."""
    match op.outcome:
        case Done():
            return "done", True, None, WHY_DONE
        case Retry(delay_ms=delay_ms, why=why, word=word):
            return word, True, delay_ms, why
        case Later(delay_ms=delay_ms, why=why, word=word):
            return word, False, delay_ms, why
        case Hold(why=why):
            return "hold", False, None, why
        case Gather(why=why):
            return "gather", False, None, why
        case Dead(why=why, charged=charged):
            return "dead", charged, None, why


def _status_code(failure: Failure) -> int | None:
    """Whatever the error carried; no status has more than three digits."""
    found = failure.status_code
    return found if found is not None and abs(found) < 1_000 else None


def _failure(op: Settle) -> Failure | None:
    return None if isinstance(op.outcome, Done) else op.outcome.failure
