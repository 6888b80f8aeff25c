"""Jobs that do not get on: finding them, making them due again, counting. Steps used by `apply`, and the store's verbs
for the stuck sweep (`engine/stuck.py`).

A job is past its due time since it was put aside for the first time, or since it was to run. Time in which its queue
had no worker or its lane was down does not count: `attend` keeps since when a queue is served and a lane is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from perdure.core.clock import Clock
from perdure.core.escalation import DEAD_MAX, EXHAUSTED_MAX, HOUR_MS, Escalation, escalation
from perdure.core.frozen import frozen
from perdure.core.model import Job
from perdure.core.outcome import Dead
from perdure.store import entering, handing_out, rows
from perdure.store.base import Driver, Query, Row, Steps
from perdure.store.counting import Counting
from perdure.store.dialect import JOB_COLUMNS, Dialect
from perdure.store.locking import by_document
from perdure.store.operations import Settle
from perdure.store.reading import one
from perdure.store.records import RetryJob

BEAT_MS = 30_000  # a worker that was heard of since lives
GAP_MS = 120_000  # a queue that nobody was seen to serve for so long was not served
#: Comes after every job.
END = ("\U0010ffff", 2**62)
COLLECTIONS = ("archives", "messages", "chunks", "threads", "documents", "images")
BY_COLLECTION = (
    "requeued", "skipped_backoff", "max_retries_exceeded", "stuck", "starved", "failed", "exhausted",
)  # fmt: skip
STATUSES = ("success", "partial", "failure")

QUEUE_SERVED = (
    "UPDATE queue SET served_ms = CASE WHEN paused THEN NULL WHEN seen_ms < $2 OR served_ms > $1 THEN $1 "
    "ELSE coalesce(served_ms, $1) END, seen_ms = $1 WHERE name = $3"
)
LANES_CLOSED = "UPDATE lane SET open_ms = NULL WHERE down_ms IS NOT NULL AND open_ms IS NOT NULL"
LANES_OPENED = "UPDATE lane SET open_ms = $1 WHERE down_ms IS NULL AND (open_ms IS NULL OR open_ms > $1)"
SERVED_SINCE = "SELECT queues FROM worker WHERE kind = 'worker' AND beat_ms > $1"

_SINCE = "coalesce(j.aside_ms, CASE WHEN j.run_at_ms > j.created_ms THEN j.run_at_ms ELSE j.created_ms END)"
_PAST_DUE = (
    "FROM {page} JOIN document d ON d.org = j.org AND d.id = j.document_id LEFT JOIN queue q ON q.name = j.queue "
    "LEFT JOIN lane l ON l.name = j.lane "
    "LEFT JOIN flow f ON f.queue = j.queue AND f.lane = j.lane AND f.pipeline = j.pipeline "
    f"WHERE j.finished_ms IS NULL AND {_SINCE} <= $5 AND coalesce(j.progress_ms, 0) <= $5"
)
_KNOWN = "q.name IS NOT NULL AND l.name IS NOT NULL AND f.queue IS NOT NULL"
_OPEN = "(l.name IS NULL OR (l.down_ms IS NULL AND l.open_ms <= $5))"
#: Elsewhere without an answer and without a lease that would end; or here, where workers had every chance and either
#: put it aside each time or cannot see it: claims look into flows.
STUCK = (
    f"SELECT {JOB_COLUMNS}, d.collection, j.requeues, j.requeued_ms, "
    f"CASE WHEN j.state IN ('queued', 'parked') AND NOT ({_KNOWN}) THEN 'lost' ELSE j.state END, "
    f"{_SINCE}, j.beat_ms, "
    "EXISTS (SELECT 1 FROM outbox o WHERE o.org = j.org AND o.document_id = j.document_id AND o.token = j.token) "
    f"{_PAST_DUE} AND ((j.state = 'running' AND coalesce(j.lease_until_ms, j.beat_ms) <= $5) "
    f"OR ((q.name IS NULL OR (NOT q.paused AND q.served_ms <= $5 AND q.seen_ms > $6)) AND {_OPEN} AND ("
    f"j.state = 'waiting' OR (j.state IN ('queued', 'parked') AND (j.aside_ms IS NOT NULL OR NOT ({_KNOWN})))))) "
    "ORDER BY j.org, j.id"
)
#: Those that only wait for a free worker, or for room under a limit.
STARVED = (
    f"SELECT d.collection, count(*) {_PAST_DUE} AND {_KNOWN} AND NOT q.paused AND {_OPEN} "
    "AND j.state IN ('queued', 'parked') AND j.aside_ms IS NULL GROUP BY d.collection"
)
#: What was raised keeps its place before all others.
REQUEUE = (
    "UPDATE job SET state = 'waiting', run_at_ms = CASE WHEN run_at_ms = 0 THEN 0 ELSE CAST($1 AS bigint) END, "
    "aside_ms = $5, holds = 0, requeues = requeues + 1, requeued_ms = $1 "
    "WHERE org = $2 AND id = $3 AND requeues = $4 AND claims = $7 AND generation = $8 AND token IS NULL "
    "AND finished_ms IS NULL AND "
    "(state = CAST($6 AS text) OR ($6 = 'lost' AND state IN ('queued', 'parked'))) RETURNING id"
)
SEIZE = (
    "UPDATE job SET state = 'running', token = $4, worker = 0, claims = claims + 1, claimed_ms = $1 "
    "WHERE org = $2 AND id = $3 AND claims = $5 AND generation = $6 AND token IS NULL AND finished_ms IS NULL "
    "RETURNING id"
)
COUNT_ADD = (
    "INSERT INTO retry_job (name, label, value) VALUES ($1, $2, $3) "
    "ON CONFLICT (name, label) DO UPDATE SET value = retry_job.value + excluded.value"
)
FOUND_FORGET = "DELETE FROM retry_job WHERE name IN ('stuck', 'starved', 'last')"
FOUND_SET = (
    "INSERT INTO retry_job (name, label, value) VALUES ($1, $2, $3) "
    "ON CONFLICT (name, label) DO UPDATE SET value = excluded.value"
)
RAN = "SELECT value FROM retry_job WHERE name = 'last' AND label = 'ran_ms'"
COUNTS = "SELECT name, label, value FROM retry_job"
FAILED = "SELECT place, CAST(sum(n) AS bigint) FROM counter WHERE subject = 'document' AND state = 'dead' GROUP BY 1"
EXHAUSTED = "UPDATE dead SET exhausted = TRUE WHERE {which} AND job = '' RETURNING collection"
#: When an exhausted document was one too many within an hour: as many as are allowed died in the hour before it.
BURST = (
    "SELECT min(died_ms) FROM (SELECT died_ms, lag(died_ms, CAST($1 AS integer)) OVER "
    "(PARTITION BY collection ORDER BY died_ms) AS early_ms FROM dead WHERE exhausted) AS x "
    "WHERE died_ms - early_ms <= $2"
)
FOLLOW_UPS = "SELECT job, count(*), min(died_ms) FROM dead WHERE job <> '' GROUP BY job ORDER BY job"
EXHAUSTED_NOW = "SELECT collection, count(*), min(died_ms) FROM dead WHERE exhausted GROUP BY 1"


@frozen
class StuckJob:
    """A job that does not get on since `since_ms`. It is `lost` where it is queued and no claim can see it."""

    job: Job
    collection: str
    requeues: int
    requeued_ms: int | None
    state: str
    since_ms: int
    unpublished: bool = False  # another service is to have it, and was not told yet


@frozen
class Page:
    """What a part of all jobs has of stuck and of starved ones; `bad` are rows that cannot be read, and why."""

    after: tuple[str, int] | None  # where the next one begins; None: this was the last
    size: int
    stuck: list[StuckJob]
    starved: dict[str, int]
    bad: list[tuple[int, Exception]]


@frozen
class Run:
    """A stuck sweep, for its record."""

    status: str
    duration_ms: int
    errors: dict[str, int]
    stuck: dict[str, int]
    starved: dict[str, int]
    stuck_since_ms: int | None


# --- steps -----------------------------------------------------------------------------------


def seize(sql: Dialect, jobs: Sequence[Job], now_ms: int, counting: Counting) -> Steps[None]:
    """Claim jobs that nobody has under the token they bring, those that still stand as they did."""
    for job in sorted(jobs, key=by_document):
        was = yield Query(sql.COUNT_JOB, (job.org, job.id))
        if (yield Query(SEIZE, (now_ms, job.org, job.id, job.token, job.claims - 1, job.generation))):
            counting.left(was[0])
            counting.running(job)


def exhausts(op: Settle) -> bool:
    """Whether a document dies because its attempts are used up."""
    return isinstance(op.outcome, Dead) and op.outcome.exhausted and "/" not in op.job.key


def counted(sql: Dialect, settles: Sequence[Settle]) -> Steps[None]:
    """Count what was requeued, and documents that died because their attempts were used up."""
    counts = Counter(("requeued", op.requeued) for op in settles if op.requeued is not None)
    if exhausted := [(op.job.org, op.job.document_id) for op in settles if exhausts(op)]:
        which = sql.WHICH.format(t="dead", id="document_id")
        marked = yield Query(EXHAUSTED.format(which=which), rows=sorted(exhausted))
        counts.update(("max_retries_exceeded", row[0]) for row in marked)
    yield from _add(counts)


def _add(counts: Counter[tuple[str, str]]) -> Steps[None]:
    for (name, label), value in sorted(counts.items()):
        yield Query(COUNT_ADD, (name, label, value))


def _attend(sql: Dialect, clock_ms: int | None) -> Steps[tuple[int, int]]:
    now_ms: int = (yield Query(sql.LANES_LOCK, (clock_ms,)))[0][0]
    yield Query(LANES_CLOSED)
    yield Query(LANES_OPENED, (now_ms,))
    yield from handing_out.close_flows(sql, now_ms)
    served = {
        name for (names,) in (yield Query(SERVED_SINCE, (now_ms - BEAT_MS,))) for name in names.split(",")
    }
    for queue in sorted(served):
        yield Query(QUEUE_SERVED, (now_ms, now_ms - GAP_MS, queue))
    ran = yield Query(RAN)
    return now_ms, ran[0][0] if ran else 0


def _page(sql: Dialect, after: tuple[str, int], size: int, cutoff_ms: int, now_ms: int) -> Steps[Page]:
    end = yield Query(sql.JOBS_END, (*after, size - 1))
    upto = (end[0][0], end[0][1]) if end else END
    asked, page = (*after, *upto, cutoff_ms), sql.JOBS_PAGE.format(size=size)
    found, bad = [], []
    for row in (yield Query(STUCK.format(page=page), (*asked, now_ms - GAP_MS))):
        try:
            found.append(_stuck(row))
        except Exception as error:  # whatever it is that somebody else wrote there
            bad.append((row[0], error))
    starved: dict[str, int] = dict((yield Query(STARVED.format(page=page), asked)))
    looked_at = size if end else (yield Query(sql.JOBS_LEFT, after))[0][0]
    return Page(upto if end else None, looked_at, found, starved, bad)


def _stuck(row: Row) -> StuckJob:
    collection, requeues, requeued_ms, state, since_ms, beat_ms, unpublished = row[rows.JOB_WIDTH :]
    job = rows.job(row[: rows.JOB_WIDTH])
    since_ms = max(since_ms, job.progress_ms or 0, (beat_ms or 0) if state == "running" else 0)
    return StuckJob(job, collection, requeues, requeued_ms, state, since_ms, bool(unpublished))


def _requeue(
    sql: Dialect, clock_ms: int | None, stuck: Sequence[StuckJob], skipped: Counter[str], counting: Counting
) -> Steps[list[StuckJob]]:
    now_ms = (yield Query(sql.NOW, (clock_ms,)))[0][0]
    yield from entering.declare_flows(sql, [(s.job.queue, s.job.pipeline, s.job.lane) for s in stuck])
    taken = []
    for each in sorted(stuck, key=lambda s: by_document(s.job)):
        job = each.job
        was = yield Query(sql.COUNT_JOB, (job.org, job.id))
        stood = (each.requeues, each.since_ms, each.state, job.claims, job.generation)
        if (yield Query(REQUEUE, (now_ms, job.org, job.id, *stood))):
            taken.append(each)
            counting.left(was[0])
            counting.job(job.key, job.queue, job.lane, "waiting")
    counts = Counter(("requeued", each.collection) for each in taken)
    counts.update({("skipped_backoff", collection): n for collection, n in skipped.items()})
    yield from _add(counts)
    return taken


def _record(sql: Dialect, clock_ms: int | None, run: Run) -> Steps[None]:
    now_ms = (yield Query(sql.NOW, (clock_ms,)))[0][0]
    last = {"ran_ms": now_ms, "duration_ms": run.duration_ms}
    found = {"last": last}
    if run.status != "failure":  # one that ended early has not seen all of it: what was known before stays
        yield Query(FOUND_FORGET)
        found |= {"stuck": run.stuck, "starved": run.starved}
        if run.stuck_since_ms is not None:
            last["stuck_since_ms"] = run.stuck_since_ms
    for name, part in found.items():
        for label, value in sorted(part.items()):
            yield Query(FOUND_SET, (name, label, value))
    counts = Counter({("errors", kind): n for kind, n in run.errors.items()})
    counts["runs", run.status] += 1
    yield from _add(counts)


# --- verbs -----------------------------------------------------------------------------------


class StuckJobs:
    """See `perdure.store.base.Store` for what each verb promises."""

    driver: Driver
    sql: Any
    clock: Clock
    _write: Callable[..., Any]
    _count: Callable[..., Any]
    _read: Callable[..., Any]

    async def attend(self) -> tuple[int, int]:
        clock_ms = self.clock.now_ms()
        now_ms, ran_ms = await self._write(lambda: _attend(self.sql, clock_ms))
        return now_ms, ran_ms

    async def lead_stuck(self) -> bool:
        return await self.driver.lock("stuck", 0)

    async def leave_stuck(self) -> None:
        await self.driver.unlock("stuck", 0)

    async def stuck(self, after: tuple[str, int], size: int, cutoff_ms: int, now_ms: int) -> Page:
        found: Page = await self._read(lambda: _page(self.sql, after, size, cutoff_ms, now_ms))
        return found

    async def requeue_stuck(self, stuck: Sequence[StuckJob], skipped: Counter[str]) -> list[StuckJob]:
        clock_ms = self.clock.now_ms()
        taken: list[StuckJob] = await self._count(
            lambda counting: _requeue(self.sql, clock_ms, stuck, skipped, counting)
        )
        return taken

    async def jobs_there(self) -> int:
        """How many jobs there are, about."""
        found: list[Row] = await self._read(one(Query("SELECT count(*) FROM job")))
        return int(found[0][0])

    async def record_run(self, run: Run) -> None:
        clock_ms = self.clock.now_ms()
        await self._write(lambda: _record(self.sql, clock_ms, run))

    async def retry_job(self) -> RetryJob:
        def steps() -> Steps[RetryJob]:
            known: dict[str, dict[str, int]] = {}
            for name, label, value in (yield Query(COUNTS)):
                known.setdefault(name, {})[label] = value
            known["failed"] = dict((yield Query(FAILED)))
            exhausted = yield Query(EXHAUSTED_NOW)
            known["exhausted"] = {row[0]: row[1] for row in exhausted}
            burst_ms = None  # with more dead ones it does not matter, and they would all be looked at
            if EXHAUSTED_MAX < sum(known["exhausted"].values()) <= DEAD_MAX:
                burst_ms = (yield Query(BURST, (EXHAUSTED_MAX, HOUR_MS)))[0][0]
            follow_ups = yield Query(FOLLOW_UPS)
            by_collection = {name: _every(COLLECTIONS, known.get(name, {})) for name in BY_COLLECTION}
            last = known.get("last", {})
            return RetryJob(
                **by_collection, runs=_every(STATUSES, known.get("runs", {})), errors=known.get("errors", {}),
                stuck_since_ms=last.get("stuck_since_ms"), ran_ms=last.get("ran_ms"),
                exhausted_since_ms=min((row[2] for row in exhausted), default=None),
                burst_ms=burst_ms, follow_ups={row[0]: row[1] for row in follow_ups},
                follow_ups_since_ms=min((row[2] for row in follow_ups), default=None),
                duration_ms=last.get("duration_ms"),
            )  # fmt: skip

        told: RetryJob = await self._read(steps)
        return told


def _every(labels: Sequence[str], known: dict[str, int]) -> dict[str, int]:
    """With 0 for those that nothing was counted of yet."""
    return dict.fromkeys(labels, 0) | known


def escalated(told: RetryJob, now_ms: int) -> Escalation:
    """Who should look, by what the sweeps found and what is dead."""
    return escalation(
        now_ms, stuck=sum(told.stuck.values()), stuck_since_ms=told.stuck_since_ms, dead=sum(told.failed.values()),
        exhausted=sum(told.exhausted.values()), exhausted_since_ms=told.exhausted_since_ms,
        burst_ms=told.burst_ms, follow_ups=sum(told.follow_ups.values()), follow_ups_since_ms=told.follow_ups_since_ms,
    )  # fmt: skip
