"""Pipelines that the workers of a queue lack: for a while they asked for jobs of others, and not for those of these.

A job of such a pipeline gets no room under a limit that it shares with others, nor a probe of a service.
"""

from __future__ import annotations

#: A worker writes down that it has a pipeline this often.
SEEN_MS = 10_000
#: A pipeline that no worker asked for in this time is served by none.
SERVED_MS = 60_000

#: A row from the future was written before the clock was set back, and proves nothing: a worker that lives writes it
#: again with its next claim.
_KNOWN = f"seen_ms <= CAST({{now}} AS bigint) + {SEEN_MS}"
#: Queue and pipeline of each.
LACKED = (
    "SELECT f.queue, f.pipeline FROM flow f WHERE EXISTS (SELECT 1 FROM served s WHERE s.queue = f.queue "
    f"AND s.{_KNOWN} AND s.seen_ms > {2 * SEEN_MS} + coalesce((SELECT o.seen_ms FROM served o "
    f"WHERE o.queue = f.queue AND o.pipeline = f.pipeline AND o.{_KNOWN}), -{SERVED_MS}))"
)
LACKING = LACKED.format(now="$1")
#: Of a job: the workers of its queue lack its pipeline.
IS_LACKED = f"(queue, pipeline) IN ({LACKED})"
#: Whether such a job takes room under a limit.
LACKED_READY = (
    "SELECT 1 FROM job WHERE limit_key IS NOT NULL AND finished_ms IS NULL AND state = 'queued' "
    f"AND {IS_LACKED.format(now='$1')} LIMIT 1"
)
