"""What explains a document and tells what operators did: reads for `why`, the timeline, `show` and the trail of acts.

Every read is bounded: it costs the same however many documents there are.
"""

from __future__ import annotations

from dataclasses import replace

from perdure.core.frozen import frozen
from perdure.core.lane import is_large
from perdure.core.limit_key import is_gate
from perdure.store.base import Query, Steps
from perdure.store.dialect import ORGS
from perdure.store.gates import in_use
from perdure.store.reading import Reading
from perdure.store.records import Act, LimitRecord

#: How many jobs before one are counted; more than that is "very many".
AHEAD_MAX = 10_000
_ACT = "SELECT id, at_ms, who, verb, org, target, reason FROM act WHERE"
_ACTS_WHERE = (
    "(CAST($2 AS text) IS NULL OR who = $2) AND (CAST($3 AS text) IS NULL OR verb = $3) "
    "AND (CAST($4 AS bigint) IS NULL OR at_ms >= $4) AND (CAST($5 AS bigint) IS NULL OR id < $5)"
)
ACTS = f"{_ACT} {_ACTS_WHERE} ORDER BY id DESC LIMIT $1"
ACTS_ON = f"{_ACT} target = $6 AND {_ACTS_WHERE} ORDER BY id DESC LIMIT $1"
ACTED_ON_LIKE = "SELECT DISTINCT target FROM act WHERE substr(target, 1, $2) = $1 ORDER BY target LIMIT $3"
LIMITS = (
    "SELECT s.key, s.concurrency, s.rate_per_s, "
    "(SELECT count(*) FROM job j WHERE j.limit_key = s.key AND j.finished_ms IS NULL "
    "AND j.state IN ('queued', 'running')), "
    "(SELECT count(*) FROM job j WHERE j.limit_key = s.key AND j.finished_ms IS NULL AND j.state = 'parked') "
    "FROM slot s WHERE CAST($1 AS text) IS NULL OR s.key = $1 ORDER BY s.key LIMIT $2"
)
JOBS = (
    "SELECT id, key, pipeline, queue, CASE WHEN home IS NULL THEN lane ELSE home END, stage, state, suspect, priority, "
    "vt, run_at_ms, worker, claimed_ms, lease_until_ms, beat_ms, progress_ms, generation, attempts, attempts_max, "
    "claims, postpones, holds, limit_key, probe, remote, created_ms, finished_ms "
    "FROM job WHERE org = $1 AND document_id = $2 ORDER BY id"
)
#: Not by the key, which would go through all jobs of the organisation.
RUNNING_OF = (
    "SELECT count(*) FROM job WHERE state = 'running' AND worker > 0 AND org || '' = $1 AND queue = $2"
)
#: Jobs of a flow that are before the turn of another one.
AHEAD = (
    "SELECT count(*) FROM (SELECT 1 FROM job WHERE state = 'queued' AND queue = $1 AND pipeline = $2 AND lane = $3 "
    "AND suspect = $4 AND vt <= $5 AND (vt < $5 OR priority > $6 OR (priority = $6 AND id < $7)) LIMIT $8) AS t"
)
#: Of the jobs that are due next those that workers gave back time and again, by pipeline, and one of each.
GIVEN_BACK = (
    "SELECT pipeline, count(*), min(document_id) FROM (SELECT pipeline, document_id, aside_ms, holds FROM job "
    "WHERE state = 'waiting' ORDER BY run_at_ms, id LIMIT 500) AS t WHERE aside_ms IS NOT NULL AND holds > 1 "
    "GROUP BY pipeline ORDER BY pipeline"
)
PAUSED = "SELECT paused FROM queue WHERE name = $1"
CHILDREN = (
    "SELECT pipeline, state, count(*), min(created_ms), max(created_ms), max(finished_ms) FROM document "
    "WHERE org = $1 AND parent_id = $2 GROUP BY pipeline, state ORDER BY pipeline, state"
)
OUTBOX_OF = (
    "SELECT name, created_ms, tries, error, token IS NOT NULL FROM outbox WHERE org = $1 AND document_id = $2 "
    "ORDER BY id LIMIT 100"
)
ITEMS_OF = (
    "SELECT pipeline, stage, generation, count(*) FROM item WHERE org = $1 AND document_id = $2 "
    "GROUP BY pipeline, stage, generation"
)
SAVED_ALL = (
    "SELECT pipeline, stage, generation, version, model, saved_ms, duration_ms, size, degraded FROM saved "
    "WHERE org = $1 AND document_id = $2 ORDER BY saved_ms, generation"
)
EMITTED_NAMES = (
    "SELECT name, count(*) FROM emitted WHERE org = $1 AND document_id = $2 GROUP BY name ORDER BY name"
)


@frozen
class JobRecord:
    """A job of a document as it stands."""

    id: int
    key: str
    pipeline: str
    queue: str
    lane: str
    stage: str
    state: str
    suspect: bool
    priority: int
    vt: float
    run_at_ms: int
    worker: int | None
    claimed_ms: int | None
    lease_until_ms: int | None
    beat_ms: int | None
    progress_ms: int | None
    generation: int
    attempts: int
    attempts_max: int
    claims: int
    postpones: int
    holds: int
    limit_key: str | None
    probe: str | None
    remote: str | None
    created_ms: int
    finished_ms: int | None

    @property
    def name(self) -> str:
        """That of a follow-up job; empty for the document's main job."""
        return self.key.partition("/")[2]


@frozen
class ChildRecord:
    """The documents of one pipeline and state that a document spawned."""

    pipeline: str
    state: str
    count: int
    first_ms: int
    last_ms: int
    finished_ms: int | None


@frozen
class PendingEvent:
    """An event about the document that is not published yet. `hands_over`: a stage waits for it."""

    name: str
    created_ms: int
    tries: int
    error: str | None
    hands_over: bool


@frozen
class SaveRecord:
    """A saved stage of any of a document's pipelines, without what it saved."""

    pipeline: str
    stage: str
    generation: int
    version: int
    model: str | None
    saved_ms: int
    duration_ms: int
    size: int
    degraded: bool


class Inspecting(Reading):
    """Reads for those who want to know why."""

    async def acts(
        self, limit: int = 100, *, who: str | None = None, verb: str | None = None, target: str | None = None,
        since_ms: int | None = None, after: int | None = None,
    ) -> list[Act]:  # fmt: skip
        """What operators did, newest first; `after` is the id of the last one of the page before."""
        asked = (limit, who, verb, since_ms, after)
        found = await (self._rows(ACTS, *asked) if target is None else self._rows(ACTS_ON, *asked, target))
        return [Act(*row) for row in found]

    async def acted_on_like(self, beginning: str, limit: int) -> list[str]:
        """The first targets of acts that begin so. It looks at all acts."""
        return [row[0] for row in await self._rows(ACTED_ON_LIKE, beginning, len(beginning), limit)]

    async def limits(self, key: str | None = None, limit: int = 1_000) -> list[LimitRecord]:
        """Limits per key, by key."""
        found = [LimitRecord(*row) for row in await self._rows(LIMITS, key, limit)]
        if not any(is_gate(one.key) for one in found):
            return found
        used = in_use(await self._rows(self.sql.IN_USE))
        return [replace(one, used=used[one.key]) if is_gate(one.key) else one for one in found]

    async def orgs(self) -> list[str]:
        """Organisations that have documents."""
        return [row[0] for row in await self._rows(ORGS)]

    async def limit_keys(self) -> list[str]:
        """Keys that have a limit, or that open documents have."""
        found = await self._rows(
            "SELECT key FROM slot UNION SELECT DISTINCT limit_key FROM job WHERE limit_key IS NOT NULL "
            "AND finished_ms IS NULL"
        )
        return [row[0] for row in found]

    async def jobs(self, org: str, document_id: str) -> list[JobRecord]:
        """The document's jobs that are still in their queues' tables, in the order in which they were made."""
        found = await self._rows(JOBS, org, document_id)
        return [JobRecord(*(*row[:7], bool(row[7]), *row[8:])) for row in found]

    async def paused(self, queue: str) -> bool:
        """Whether the queue is paused; one that is not known is not."""
        found = await self._rows(PAUSED, queue)
        return bool(found and found[0][0])

    async def ahead(self, job: JobRecord) -> int:
        """How many jobs of its size have their turn before a queued one, AHEAD_MAX at most."""

        def steps() -> Steps[int]:
            counted = 0
            flows = [row for row in (yield Query(self.sql.FLOWS)) if row[0] == job.queue]
            ours = next((s for _, p, lane, s, _ in flows if (p, lane) == (job.pipeline, job.lane)), 0.0)
            for *flow, shift, closed in flows:
                room = AHEAD_MAX - counted
                if not closed and room > 0 and (job.suspect or is_large(flow[2]) == is_large(job.lane)):
                    vt = job.vt + ours - shift if job.vt > 0 else job.vt
                    asked = (*flow, job.suspect, vt, job.priority, job.id, room)
                    counted += (yield Query(AHEAD, asked))[0][0]
            return counted

        return await self._read(steps)

    async def running_of(self, org: str, queue: str) -> int:
        """How many jobs of an organisation workers have in hand."""
        found = await self._rows(RUNNING_OF, org, queue)
        return int(found[0][0])

    async def given_back(self) -> list[tuple[str, int, str]]:
        """Pipelines whose jobs every worker gives back, how many of those that are due next, and one document."""
        return [(pipeline, number, id_) for pipeline, number, id_ in await self._rows(GIVEN_BACK)]

    async def children(self, org: str, document_id: str) -> list[ChildRecord]:
        """What the document spawned, by pipeline and state (open, done, dead, cancelled)."""
        return [ChildRecord(*row) for row in await self._rows(CHILDREN, org, document_id)]

    async def outbox_of(self, org: str, document_id: str) -> list[PendingEvent]:
        """Events about the document that nobody has published yet."""
        found = await self._rows(OUTBOX_OF, org, document_id)
        return [PendingEvent(*(*row[:4], bool(row[4]))) for row in found]

    async def items_of(self, org: str, document_id: str) -> dict[tuple[str, str, int], int]:
        """How many items are saved, by pipeline, stage and generation."""
        return {(p, s, g): n for p, s, g, n in await self._rows(ITEMS_OF, org, document_id)}

    async def saved_of(self, org: str, document_id: str) -> list[SaveRecord]:
        """Every saved stage, those of follow-up jobs too, in order of time."""
        return [
            SaveRecord(*(*row[:-1], bool(row[-1]))) for row in await self._rows(SAVED_ALL, org, document_id)
        ]

    async def row_names(self, org: str, document_id: str) -> dict[str, int]:
        """How many rows its stages emitted, by name."""
        return dict(await self._rows(EMITTED_NAMES, org, document_id))
