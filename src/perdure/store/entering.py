"""How jobs enter the ready queue: their turn (`fairness`), due time, limits. Steps used by `apply`.

A job with a limit key enters `parked`, and `fill` lets in as many as there is room for; the flush in which a job enters
or leaves fills in the same transaction, under the lock of the limit's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from perdure.core.frozen import frozen
from perdure.core.lane import is_large, needs_of, sized
from perdure.core.limit_key import is_gate
from perdure.core.model import REPAIRED, Job, State, job_key, repairs
from perdure.store import ranks
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import Counting
from perdure.store.dialect import Dialect
from perdure.store.fairness import RANK_RETRY, Flow, assign, from_present, rank_of
from perdure.store.gates import ungate
from perdure.store.operations import NewDocument, NewJob, Raise

PRIORITY_MAX = 100
FILL_MAX = 1_000


@frozen
class Entry:
    """A job on its way in."""

    org: str
    document_id: str
    key: str
    job: NewJob
    generation: int = 1
    fresh_from: str | None = None
    again: bool = False  # a requeue: the row may exist

    @property
    def flow(self) -> Flow:
        return (self.job.queue, self.job.pipeline, self.job.lane)


def first(document: NewDocument, large: bool) -> Entry:
    """The main job of a new document."""
    return Entry(document.org, document.id, job_key(document.id), with_size(document.job, large))


def with_size(job: NewJob, large: bool) -> NewJob:
    """The job in the lane of large documents, or of others."""
    return replace(job, lane=sized(job.lane, large)) if large != is_large(job.lane) else job


def follow_up(parent: Job, job: NewJob) -> Entry:
    """A job spawned by another of the same document; once per generation."""
    name = job.name or job.pipeline
    if repairs(parent.key):
        name = f"{name}{REPAIRED}"
    if parent.generation > 1:
        name = f"{name}-g{parent.generation}"
    new = with_size(job, is_large(parent.lane))
    return Entry(parent.org, parent.document_id, job_key(parent.document_id, name), new, parent.generation)


def declare_flows(sql: Dialect, flows: Iterable[Flow]) -> Steps[None]:
    """Make flows known, with their queues and lanes: claims see no job whose flow is missing."""
    new = sorted(set(flows))
    yield from declare(sql, [queue for queue, _, _ in new], [lane for _, _, lane in new])
    for flow in new:
        yield Query(sql.FLOW_ADD, flow)


def declare(sql: Dialect, queues: Iterable[str], lanes: Iterable[str]) -> Steps[None]:
    """Make queues and lanes known; known ones keep their state, a lane whose dependency is down starts down."""
    for queue in sorted(set(queues)):
        yield Query(sql.QUEUE_ADD, (queue,))
    new = sorted(set(lanes) - {""})
    if new:
        yield Query(sql.LANES_LOCK, (None,))  # else one that is held or released right now would miss it
    down = {row[0]: row[1:] for row in (yield Query(sql.DEPENDENCIES_DOWN))} if new else {}
    for lane in new:
        yield Query(sql.LANE_ADD, (lane, *lane_state(lane, down)))


def lane_state(lane: str, down: Mapping[str, Row]) -> Row:
    """Since when and why a lane is down, given the dependencies that are; (None, None) when it is up."""
    return next((down[need] for need in sorted(needs_of(lane)) if need in down), (None, None))


@frozen
class Raised:
    """A job that waits for its turn and gets the one of another priority."""

    org: str
    id: int
    flow: Flow
    priority: int
    run_at_ms: int
    home: Flow | None = None  # of a lent job: the flow that it returns to, where it gets a turn, too


def enter(
    sql: Dialect, entries: Sequence[Entry], due: Sequence[Row], raised: Sequence[Raised], held: Sequence[Job],
    now_ms: int, keys: set[str], counting: Counting,
) -> Steps[None]:  # fmt: skip
    """Write new jobs, whose flows are declared: waiting if not due, parked if limited, ready otherwise. Move waiting
    ones that are `due` (rows of DUE) on to their queue; those that are `held` from now on get a turn. All turns of a
    flush are assigned together, because the transaction that assigns them locks them in order."""
    if not (entries or due or raised or held):
        return
    limited = {(e.job.limit_key, e.job.limit_each) for e in entries if e.job.limit_key and e.job.limit_each}
    if limited:
        yield Query(sql.SLOT_ADD, rows=sorted(limited))
    now_due = [_due_ms(e.job, now_ms) <= now_ms for e in entries]
    wanted = [
        *((e.flow, e.org, rank_of(e.job.priority)) for e, is_due in zip(entries, now_due, strict=True) if is_due),
        *((flow, r.org, rank_of(r.priority)) for r in raised for flow in (r.flow, r.home) if flow is not None),
        *(((job.queue, job.pipeline, job.lane), job.org, RANK_RETRY) for job in held),
        *(((row[2], row[3], row[4]), row[1], RANK_RETRY if row[6] else rank_of(row[7])) for row in due if row[8]),
    ]  # fmt: skip
    turns = iter((yield from assign(sql, wanted)))
    vts = [next(turns) if is_due else None for is_due in now_due]
    yield from _write(sql, entries, vts, now_ms, keys, counting)
    for one in raised:
        vt, home_vt = next(turns), next(turns) if one.home is not None else None
        yield Query(sql.JOB_RAISE, (one.org, one.id, vt, home_vt, one.run_at_ms, one.priority))
    for job in held:
        yield Query(sql.JOB_TURN, (job.org, job.id, next(turns)))
    yield from _promote(sql, due, turns, keys, counting)


def _write(
    sql: Dialect, entries: Sequence[Entry], vts: Sequence[float | None], now_ms: int, keys: set[str],
    counting: Counting,
) -> Steps[None]:  # fmt: skip
    rows: dict[str, list[Row]] = {"first": [], "follow": [], "again": []}
    for e, vt in zip(entries, vts, strict=True):
        state = State.WAITING if vt is None else State.PARKED if e.job.limit_key else State.QUEUED
        if state is State.PARKED and e.job.limit_key:
            keys.add(e.job.limit_key)
        row = (
            e.org, e.key, e.document_id, e.job.pipeline, e.job.queue, e.job.lane, e.job.stage, str(state),
            e.job.priority, vt or 0.0, _due_ms(e.job, now_ms), e.job.lease_ms, e.generation, e.job.policy.attempts,
            e.job.policy.to_text(), e.fresh_from, e.job.limit_key, e.job.input, now_ms,
        )  # fmt: skip
        rows["again" if e.again else "follow" if "/" in e.key else "first"].append(row)
    if rows["first"]:
        yield Query(sql.JOB_ADD, rows=rows["first"])
    if rows["follow"]:
        written = set((yield Query(sql.JOB_FOLLOW, rows=rows["follow"])))
        rows["follow"] = [row for row in rows["follow"] if (row[0], row[1]) in written]
    if rows["again"]:
        yield Query(sql.JOB_REQUEUE, rows=rows["again"])
    for row in (*rows["first"], *rows["follow"], *rows["again"]):
        counting.job(row[1], row[4], row[5], row[7])


def _promote(
    sql: Dialect, due: Sequence[Row], turns: Iterator[float], keys: set[str], counting: Counting
) -> Steps[None]:
    moved = []
    for id_, org, queue, _, lane, limit_key, _, _, run_at_ms, key in due:
        vt = next(turns) if run_at_ms else 0.0  # one that was raised keeps its place before all others
        if limit_key is not None:
            keys.add(limit_key)
        state = State.PARKED if limit_key is not None else State.QUEUED
        moved.append((org, id_, str(state), vt))
        counting.job(key, queue, lane, "waiting", -1)
        counting.job(key, queue, lane, str(state))
    if moved:
        yield Query(sql.PROMOTE, rows=moved)


def raise_(sql: Dialect, op: Raise, now_ms: int, raised: list[Raised]) -> Steps[str]:
    """Put a job that waits for its turn before all others, or where its new priority ranks: then it is added to
    `raised`, and gets its turn with all others of the flush."""
    found = yield Query(sql.JOB_WAITING, (op.org, op.document_id))
    if not found:
        return "refused: the document is running, finished or unknown"
    id_, queue, pipeline, lane, state, run_at_ms, home = found[0]
    if op.priority is None:
        yield Query(sql.JOB_RAISE, (op.org, id_, 0.0, None, 0, PRIORITY_MAX))
        return "raised"
    # one that was raised before goes back to the others
    run_at_ms = run_at_ms or now_ms
    if state == State.WAITING:
        yield Query(sql.JOB_RAISE, (op.org, id_, 0.0, None, run_at_ms, op.priority))
    else:
        lent = (queue, pipeline, home) if home is not None else None
        raised.append(Raised(op.org, id_, (queue, pipeline, lane), op.priority, run_at_ms, lent))
    return "changed"


def fill(
    sql: Dialect, keys: Iterable[str], now_ms: int, counting: Counting, free: bool = False
) -> Steps[None]:
    """Let parked jobs in as far as their limits have room; a key without a limit lets everything in. `free`: leave
    limits alone that somebody else has locked. Under the limit of an organisation or a dependency claims let in."""
    every = set(keys)
    if lifted := sorted(key for key in every if is_gate(key)):
        own = yield from _lifted(sql, lifted, now_ms, counting)
        every = (every | own) - set(lifted)
    wanted = sorted(every)
    if not wanted:
        return
    slots = yield Query(sql.SLOTS_FREE if free else sql.SLOTS, rows=[(key,) for key in wanted])
    limits = {row[0]: row[1:] for row in slots}
    if free:
        wanted = sorted(limits)
    for key in wanted:
        room, credit, had = FILL_MAX, 0.0, None
        if key in limits:
            concurrency, rate, credit, credit_ms, had = limits[key]
            if concurrency is not None:
                room = concurrency - (yield Query(sql.SLOT_USED, (key,)))[0][0]
            if rate is not None:
                earned = (now_ms - credit_ms) * rate / 1000 if credit_ms else 0.0
                credit = min(max(1.0, rate), credit + max(0.0, earned))
                room = min(room, int(credit))
        parked = (yield from ranks.parked(sql, key, room, now_ms, had)) if room > 0 else []
        if parked:
            yield from _let_in(sql, parked, counting)
            if key in limits:
                yield from ranks.let_in(sql, key, had, parked)
        if key in limits and limits[key][1] is not None:
            yield Query(sql.SLOT_CREDIT, (key, credit - len(parked), now_ms))


def _lifted(sql: Dialect, keys: Sequence[str], now_ms: int, counting: Counting) -> Steps[set[str]]:
    """Let those on who wait at gates that are none any more; the keys whose own limits they have."""
    gates = {row[0] for row in (yield Query(sql.GATES))}
    own: set[str] = set()
    for key in keys:
        if key not in gates and (parked := (yield Query(sql.PARKED, (key, FILL_MAX, now_ms, -inf)))):
            own |= yield from ungate(sql, parked, counting)
    return own


def _let_in(sql: Dialect, parked: Sequence[Row], counting: Counting) -> Steps[None]:
    """They are ready. One whose turn passed while it waited for room gets another: the present does not move back."""
    late = [
        ((queue, pipeline, lane), org) for org, _, _, queue, pipeline, lane, _, stale, *_ in parked if stale
    ]
    again = iter((yield from from_present(sql, late)))
    yield Query(sql.UNPARK, rows=[(row[0], row[1], next(again) if row[7] else row[6]) for row in parked])
    for _, _, key, queue, _, lane, *_ in parked:
        counting.job(key, queue, lane, "parked", -1)
        counting.job(key, queue, lane, "queued")


def _due_ms(job: NewJob, now_ms: int) -> int:
    return job.run_at_ms if job.run_at_ms is not None else now_ms + job.delay_ms
