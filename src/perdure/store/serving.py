"""Which pipelines workers have: claims skip the flows of others, and what no worker has is found.

A worker writes down every `SEEN_MS`, with its claims, what it serves. So releases that run side by side each get the
jobs that they can run.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.limit_key import is_gate
from perdure.store.base import Query, Steps
from perdure.store.dialect import IN_SERVICE, Dialect
from perdure.store.gates import in_use
from perdure.store.lacking import SERVED_MS
from perdure.store.reading import Reading

NEW_SERVED = {"queue": "text", "pipeline": "text", "seen_ms": "bigint"}
SERVED_AGAIN = "ON CONFLICT (queue, pipeline) DO UPDATE SET seen_ms = excluded.seen_ms"
_WAITS = (
    "SELECT j.document_id FROM job j WHERE {state} AND j.queue = f.queue AND j.lane = f.lane "
    "AND j.pipeline = f.pipeline LIMIT 1"
)
_READY = _WAITS.format(state="j.state = 'queued'")
_PARKED = _WAITS.format(state="j.limit_key IS NOT NULL AND j.finished_ms IS NULL AND j.state = 'parked'")
_OPEN = (
    "FROM flow f JOIN queue q ON q.name = f.queue JOIN lane l ON l.name = f.lane "
    "WHERE NOT q.paused AND l.down_ms IS NULL"
)
FLOWS_OPEN = f"SELECT f.queue, f.pipeline, f.lane {_OPEN}"
READY = "SELECT 1 FROM job WHERE state = 'queued' AND queue = $1 AND pipeline = $2 AND lane = $3 LIMIT 1"
PARKED = (
    "SELECT p.limit_key FROM job p WHERE p.limit_key IS NOT NULL AND p.finished_ms IS NULL AND p.state = 'parked' "
    "AND p.queue = $1 AND p.pipeline = $2 AND p.lane = $3 {may} LIMIT 1"
)
#: Not all room under its limit is taken by jobs that other services work on, and by ready ones of some queues.
_MAY_ENTER = (
    "AND coalesce((SELECT concurrency FROM slot WHERE key = p.limit_key) > (SELECT count(*) FROM job "
    "WHERE limit_key = p.limit_key AND finished_ms IS NULL AND (state = 'running' AND worker = 0{ready})), TRUE)"
)
_READY_OF = f" OR state = 'queued' AND queue IN ({{queues}}) AND {IN_SERVICE}"
REMOTE = (
    "SELECT org, coalesce(home, lane), count(*) FROM job WHERE state = 'running' AND worker = 0 "
    "GROUP BY org, coalesce(home, lane)"
)
SEEN = "SELECT queue, pipeline, seen_ms FROM served"
_SEEN = "SELECT 1 FROM served s WHERE s.queue = f.queue AND s.seen_ms > $1"
UNSERVED = (
    f"SELECT f.queue, f.pipeline, min(coalesce(({_READY}), ({_PARKED}))) {_OPEN} "
    f"AND EXISTS ({_SEEN}) AND NOT EXISTS ({_SEEN} AND s.pipeline = f.pipeline) "
    f"AND (EXISTS ({_READY}) OR EXISTS ({_PARKED})) GROUP BY f.queue, f.pipeline ORDER BY f.queue, f.pipeline"
)


def _full(sql: Dialect) -> Steps[list[str]]:
    """Gates whose room is all taken by jobs that other services work on."""
    used = in_use((yield Query(REMOTE)))
    return [row[0] for row in (yield Query(sql.GATES)) if row[1] is not None and used[row[0]] >= row[1]]


class Serving(Reading):
    """See the module."""

    async def claimable(self, queues: Sequence[str], pipelines: Sequence[str], parked: bool = False) -> bool:
        """Whether a worker of these queues and pipelines could claim a job now, or, if `parked`, when there is room:
        unless only other services, or jobs of other queues, at which nobody works, could make some."""
        since_ms = await self.now_ms() - SERVED_MS

        def steps() -> Steps[bool]:
            flows = yield Query(FLOWS_OPEN)
            ours = [flow for flow in flows if flow[0] in queues and flow[1] in pipelines]
            for flow in ours:
                if (yield Query(READY, flow)):
                    return True
            if not parked:
                return False
            served = {queue for queue, _, seen_ms in (yield Query(SEEN)) if seen_ms > since_ms}
            idle = sorted({queue for queue, *_ in flows} - served - set(queues))
            places = ", ".join(f"${n}" for n in range(4, 4 + len(idle)))
            may = _MAY_ENTER.format(ready=_READY_OF.format(queues=places) if idle else "")
            full: list[str] | None = None  # gates, where a job waits at one
            for flow in ours:
                found = yield Query(PARKED.format(may=may), (*flow, *idle))
                if found and is_gate(found[0][0]):
                    full = (yield from _full(self.sql)) if full is None else full
                    others = ", ".join(f"${n}" for n in range(4 + len(idle), 4 + len(idle) + len(full)))
                    but = f"{may} AND p.limit_key NOT IN ({others})" if full else may
                    found = yield Query(PARKED.format(may=but), (*flow, *idle, *full))
                if found:
                    return True
            return False

        return await self._read(steps)

    async def unserved(self) -> list[tuple[str, str, str]]:
        """Queues and pipelines of waiting jobs where no worker of the queue has the pipeline, and one document each."""
        found = await self._rows(UNSERVED, await self.now_ms() - SERVED_MS)
        return [(queue, pipeline, id_) for queue, pipeline, id_ in found]
