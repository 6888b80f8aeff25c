"""How jobs enter the ready queue: fairness time, due time, limits. Steps used by `apply`.

Fairness: each organisation has a virtual time per queue and rank; a job's turn is the later of its organisation's next
turn and the queue's present. Limits: a job with a limit key enters `parked`, and `fill` lets in as many as there is
room for; whoever enters or leaves fills in the same transaction, under the lock of the limit's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perdure.core.frozen import frozen
from perdure.core.lane import needs_of
from perdure.core.model import REPAIRED, Job, State, job_key, repairs
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import Counting
from perdure.store.dialect import Dialect
from perdure.store.operations import NewDocument, NewJob, Raise

PRIORITY_MAX = 100
RANK_MAX = 10
#: Retries have a stream of their own: neither behind their organisation's whole backlog nor before everybody else.
RANK_RETRY = 1_000
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


def first(document: NewDocument) -> Entry:
    """The main job of a new document."""
    return Entry(document.org, document.id, job_key(document.id), document.job)


def follow_up(parent: Job, job: NewJob) -> Entry:
    """A job spawned by another of the same document; once per generation."""
    name = job.name or job.pipeline
    if repairs(parent.key):
        name = f"{name}{REPAIRED}"
    if parent.generation > 1:
        name = f"{name}-g{parent.generation}"
    return Entry(parent.org, parent.document_id, job_key(parent.document_id, name), job, parent.generation)


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


def enter(
    sql: Dialect, entries: Sequence[Entry], now_ms: int, keys: set[str], counting: Counting
) -> Steps[None]:
    """Write the jobs, whose queues and lanes are declared: waiting if not due, parked if limited, ready otherwise."""
    if not entries:
        return
    limited = {(e.job.limit_key, e.job.limit_each) for e in entries if e.job.limit_key and e.job.limit_each}
    if limited:
        yield Query(sql.SLOT_ADD, rows=sorted(limited))
    due_ms = [_due_ms(e.job, now_ms) for e in entries]
    now_due = [n for n, at in enumerate(due_ms) if at <= now_ms]
    wanted = [(entries[n].job.queue, entries[n].org, rank_of(entries[n].job.priority)) for n in now_due]
    turns: dict[int, float] = dict(zip(now_due, (yield from assign(sql, wanted)), strict=True))
    rows: dict[str, list[Row]] = {"first": [], "follow": [], "again": []}
    for n, e in enumerate(entries):
        state = State.WAITING if n not in turns else State.PARKED if e.job.limit_key else State.QUEUED
        if state is State.PARKED and e.job.limit_key:
            keys.add(e.job.limit_key)
        row = (
            e.org, e.key, e.document_id, e.job.pipeline, e.job.queue, e.job.lane, e.job.stage, str(state),
            e.job.priority, turns.get(n, 0.0), due_ms[n], e.job.lease_ms, e.generation, e.job.policy.attempts,
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


def promote(sql: Dialect, limit: int, now_ms: int, keys: set[str], counting: Counting) -> Steps[int]:
    """Move due waiting jobs on to their queue."""
    due = yield Query(sql.DUE, (now_ms, limit))
    if not due:
        return 0
    wanted = [
        (queue, org, RANK_RETRY if claims else rank_of(priority))
        for _, org, queue, _, claims, priority, run_at_ms, *_ in due
        if run_at_ms
    ]
    turns = iter((yield from assign(sql, wanted)))
    moved = []
    for id_, org, queue, limit_key, _, _, run_at_ms, key, lane in due:
        vt = next(turns) if run_at_ms else 0.0  # one that was raised keeps its place before all others
        if limit_key is not None:
            keys.add(limit_key)
        state = State.PARKED if limit_key is not None else State.QUEUED
        moved.append((org, id_, str(state), vt))
        counting.job(key, queue, lane, "waiting", -1)
        counting.job(key, queue, lane, str(state))
    yield Query(sql.PROMOTE, rows=moved)
    return len(moved)


def raise_(sql: Dialect, op: Raise, now_ms: int) -> Steps[str]:
    """Put a job that waits for its turn before all others, or where its new priority ranks."""
    found = yield Query(sql.JOB_WAITING, (op.org, op.document_id))
    if not found:
        return "refused: the document is running, finished or unknown"
    id_, queue, state, run_at_ms = found[0]
    if op.priority is None:
        yield Query(sql.JOB_RAISE, (op.org, id_, 0.0, 0, PRIORITY_MAX))
        return "raised"
    due = state != State.WAITING
    vt = (yield from assign(sql, [(queue, op.org, rank_of(op.priority))]))[0] if due else 0.0
    # one that was raised before goes back to the others
    yield Query(sql.JOB_RAISE, (op.org, id_, vt, run_at_ms or now_ms, op.priority))
    return "changed"


def assign(sql: Dialect, wanted: Sequence[tuple[str, str, int]]) -> Steps[list[float]]:
    """The virtual times of these (queue, organisation, rank) turns, in order."""
    if not wanted:
        return []
    pairs = sorted({(queue, org) for queue, org, _ in wanted})
    tails: dict[tuple[str, str], dict[int, float]] = {pair: {} for pair in pairs}
    weights: dict[str, float] = {}
    for queue, org, rank, vt, weight in (yield Query(sql.TURNS, rows=pairs)):
        weights[org] = weight
        if rank is not None:
            tails[queue, org][rank] = vt
    present: dict[str, float] = {}
    for queue, ready, latest in (yield Query(sql.VT_NOW, rows=sorted({(q,) for q, _, _ in wanted}))):
        present[queue] = next((vt for vt in (ready, latest) if vt is not None), 0.0)
    turns = []
    for queue, org, rank in wanted:
        tail = tails[queue, org]
        ahead = (vt for r, vt in tail.items() if r == rank or rank <= r < RANK_RETRY)
        tail[rank] = max(max(ahead, default=0.0) + 1 / weights[org], present[queue])
        turns.append(tail[rank])
    changed = sorted({(queue, org, rank) for queue, org, rank in wanted})
    yield Query(sql.TURN_SET, rows=[(q, o, r, tails[q, o][r]) for q, o, r in changed])
    return turns


def fill(sql: Dialect, keys: Iterable[str], now_ms: int, counting: Counting) -> Steps[None]:
    """Let parked jobs in as far as their limits have room; a key without a limit lets everything in."""
    wanted = sorted(keys)
    if not wanted:
        return
    limits = {row[0]: row[1:] for row in (yield Query(sql.SLOTS, rows=[(key,) for key in wanted]))}
    for key in wanted:
        room, credit = FILL_MAX, 0.0
        if key in limits:
            concurrency, rate, credit, credit_ms = limits[key]
            if concurrency is not None:
                room = concurrency - (yield Query(sql.SLOT_USED, (key,)))[0][0]
            if rate is not None:
                earned = (now_ms - credit_ms) * rate / 1000 if credit_ms else 0.0
                credit = min(max(1.0, rate), credit + max(0.0, earned))
                room = min(room, int(credit))
        parked = (yield Query(sql.PARKED, (key, room))) if room > 0 else []
        if parked:
            yield Query(sql.UNPARK, rows=[row[:2] for row in parked])
            for _, _, key_, queue, lane in parked:
                counting.job(key_, queue, lane, "parked", -1)
                counting.job(key_, queue, lane, "queued")
        if key in limits and limits[key][1] is not None:
            yield Query(sql.SLOT_CREDIT, (key, credit - len(parked), now_ms))


def rank_of(priority: int) -> int:
    """Priorities rank within an organisation; few ranks, so that they cannot multiply its share without bound."""
    return max(-RANK_MAX, min(RANK_MAX, priority))


def _due_ms(job: NewJob, now_ms: int) -> int:
    return job.run_at_ms if job.run_at_ms is not None else now_ms + job.delay_ms
