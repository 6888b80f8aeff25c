"""Turns: the virtual times by which claims order jobs. Steps used by `entering`, `holding` and `apply`.

Each organisation has a virtual time per queue and rank; a job's turn is the later of its organisation's next turn and
the queue's *present*. The present is the earliest turn of a ready job (if none is ready, of one that waits for room
under a limit), and never before `queue_time`, which claims move forward at most once a second: jobs with old turns
cannot move it back. In a flow whose first job is before the present, new jobs begin at that one.

A *flow* is a queue, a pipeline and a lane. While its lane is down, or the workers of its queue lack its pipeline
(`handing_out.close_flows`), a flow is closed: its time stands still and its jobs
share it in streams of their own, whatever the queue's present is. `flow.shift` leads from a flow's time to the queue's.
A flow that opens moves its time, not its jobs: its first job has its turn at the present, and the distances between
the others stay. So holding and releasing cost the same however many jobs wait, and a claim adds one number.
A job that is lent (`holding`) has a turn at the present meanwhile. Its own is kept in `home_vt` and still counts as one
of its flow: it gets it back when it is recalled, and no distance has changed.

Large documents have slots of their own, so they have streams and a present of their own as well: else an organisation
whose large documents are served beside its own backlog of small ones would move the present behind that backlog, and
others with it. Their time is written down under the name of the queue and a mark.

A turn of 0 is before all others: raised by an operator, or given back by a worker that could not use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from perdure.core.frozen import frozen
from perdure.core.lane import LARGE, is_large, sized
from perdure.store.base import Query, Steps
from perdure.store.lacking import LACKED

if TYPE_CHECKING:
    from perdure.store.dialect import Dialect

RANK_MAX = 10
#: Retries have a stream of their own: neither behind their organisation's whole backlog nor before everybody else.
RANK_RETRY = 1_000
#: How often a client writes down how far a queue's turns have been handed out.
TIME_WRITTEN_MS = 1_000

Flow = tuple[str, str, str]  # queue, pipeline, lane
NEW_FLOW = {"queue": "text", "pipeline": "text", "lane": "text"}
NEW_TURN = {
    "queue": "text", "org": "text", "pipeline": "text", "lane": "text", "rank": "int", "vt": "double precision",
}  # fmt: skip
#: The turn of a job with {vt} in a flow, in the time of its queue.
TURN = "CASE WHEN {vt} > 0 THEN {vt} + f.shift ELSE {vt} END"
#: The first turn in flow f, in its own time.
HEAD = (
    "SELECT h.vt FROM job h WHERE h.state = 'queued' AND h.queue = f.queue AND h.pipeline = f.pipeline "
    "AND h.lane = f.lane AND h.suspect = FALSE AND h.vt > 0 ORDER BY h.vt LIMIT 1"
)
#: The first turn in flow f of jobs that are lent, in its own time. Only the index of lent ones (by `probe`, which is
#: never '') fits the conditions outside of the CASE.
_LENT = (
    "SELECT min(CASE WHEN h.queue = f.queue AND h.pipeline = f.pipeline AND h.state = 'queued' AND h.suspect = FALSE "
    "AND h.limit_key IS NULL THEN h.home_vt END) FROM job h WHERE h.probe > '' AND h.home = f.lane"
)
#: The mark of flow f where its documents are large.
_MARK = f"CASE WHEN f.lane LIKE '%{LARGE}' THEN '{LARGE}' ELSE '' END"
_OTHER_MARK = f"CASE WHEN f.lane LIKE '%{LARGE}' THEN '' ELSE '{LARGE}' END"
_HANDED_OUT = "coalesce((SELECT q.vt FROM queue_time q WHERE q.queue = f.queue || {mark}), 0)"
_FIRST = (
    "(SELECT min(({head}) + o.shift) FROM flow o JOIN lane p ON p.name = o.lane "
    f"WHERE o.queue = f.queue AND (o.lane LIKE '%{LARGE}') = (f.lane LIKE '%{LARGE}') "
    "AND p.down_ms IS NULL AND NOT o.unserved)"
)
_READY = _FIRST.format(head=HEAD.replace("f.", "o."))
_PARKED = _FIRST.format(
    head="SELECT h.vt FROM job h WHERE h.state = 'parked' AND h.queue = o.queue AND h.pipeline = o.pipeline "
    "AND h.lane = o.lane AND h.vt > 0 ORDER BY h.vt LIMIT 1"
)
_CLOSED = "(l.down_ms IS NOT NULL OR f.unserved)"
#: What is known of {flow}: its shift, whether it is closed, its first turn and the first one that is lent while its
#: lane is down; of the jobs of its size in its queue how far their turns have been handed out, the first turn that is
#: ready (or else waits for room under a limit), and the last one that was promised; how far the other size is.
FLOW_TIMES = (
    f"SELECT f.queue, f.pipeline, f.lane, f.shift, {_CLOSED}, ({HEAD}), "
    f"CASE WHEN l.down_ms IS NOT NULL THEN ({_LENT}) END, "
    f"{_HANDED_OUT.format(mark=_MARK)}, coalesce({_READY}, {_PARKED}), "
    f"(SELECT max(t.vt) FROM turn t WHERE t.queue = f.queue AND t.lane = {_MARK} AND t.pipeline = ''), "
    f"{_HANDED_OUT.format(mark=_OTHER_MARK)} "
    "FROM {flow} JOIN lane l ON l.name = f.lane"
)
#: Jobs x that wait for room under a limit, first those whose turn comes first in the time of their queue; small and
#: large ones, whose times differ, in turn, and chance (the clock) decides which of them is first. {jobs} and {which}
#: give the first of each flow from the turn $4 on. The last columns: whether its turn is before anything that
#: was handed out last, its turn in the time of its queue, and its priority.
PARKED = (
    "SELECT x.org, x.id, x.key, f.queue, f.pipeline, f.lane, x.vt, "
    "coalesce(x.vt > 0 AND x.vt < t.vt - f.shift, FALSE), "
    f"{TURN.format(vt='x.vt')}, x.priority "
    "FROM flow f JOIN queue q ON q.name = f.queue JOIN lane l ON l.name = f.lane "
    f"LEFT JOIN queue_time t ON t.queue = f.queue || {_MARK} "
    "CROSS JOIN {jobs} WHERE NOT q.paused AND l.down_ms IS NULL "
    f"AND (f.queue, f.pipeline) NOT IN ({LACKED.format(now='$3')}) {{which}}"
    f"ORDER BY row_number() OVER (PARTITION BY f.lane LIKE '%{LARGE}' "
    f"ORDER BY {TURN.format(vt='x.vt')}, x.priority DESC, x.id), "
    f"CASE WHEN f.lane LIKE '%{LARGE}' THEN 1 ELSE 0 END = CAST($3 AS bigint) % 2, x.id LIMIT $2"
)
PARKED_FIRST = (
    "FROM job WHERE limit_key = $1 AND finished_ms IS NULL AND state = 'parked' AND queue = f.queue "
    "AND lane = f.lane AND pipeline = f.pipeline AND vt >= $4 - f.shift ORDER BY vt, priority DESC, id LIMIT $2"
)


class FairnessSql:
    """Statements that both databases take as they are."""

    FLOW_ADD = "INSERT INTO flow (queue, pipeline, lane) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
    FLOWS = (
        "SELECT f.queue, f.pipeline, f.lane, f.shift, l.down_ms IS NOT NULL FROM flow f "
        "JOIN lane l ON l.name = f.lane ORDER BY f.queue, f.lane, f.pipeline"
    )
    FLOWS_UNSERVED = (
        "SELECT f.queue, f.pipeline, f.lane, l.down_ms IS NOT NULL FROM flow f JOIN lane l ON l.name = f.lane "
        "WHERE f.unserved"
    )
    FLOW_UNSERVED = "UPDATE flow SET unserved = $4 WHERE queue = $1 AND pipeline = $2 AND lane = $3"
    #: Where another claim has opened it meanwhile, its shift stays.
    FLOW_SERVED = (
        "UPDATE flow SET unserved = FALSE, shift = $4 "
        "WHERE queue = $1 AND pipeline = $2 AND lane = $3 AND unserved"
    )
    FLOW_SHIFT = "UPDATE flow SET shift = $4 WHERE queue = $1 AND pipeline = $2 AND lane = $3"
    JOB_TURN = "UPDATE job SET vt = $3 WHERE org = $1 AND id = $2"
    QUEUE_TIME = (
        "INSERT INTO queue_time (queue, vt) VALUES ($1, $2) ON CONFLICT (queue) DO UPDATE SET vt = excluded.vt "
        "WHERE queue_time.vt < excluded.vt"
    )

    # written per database
    TURNS: str  # all streams of (queue, organisation): queue, organisation, pipeline, lane, rank, virtual time, weight
    TURN_SET: str
    FLOW_TIMES: str


@frozen
class Time:
    """The time of a flow."""

    shift: float
    closed: bool
    present: float  # of its queue, in the time of the queue
    head: float | None  # its first turn, in its own time; lent ones count while its lane is down

    @property
    def earliest(self) -> float:
        """The earliest turn that a job may get: in the flow's own time while it is closed, else in the queue's.

        A flow may be behind the present, where other pipelines have more workers: nobody waits for its whole backlog.
        """
        if not self.closed:
            return self.present if self.head is None else min(self.present, self.head + self.shift)
        return self.head if self.head is not None else self.present - self.shift

    def own(self, turn: float) -> float:
        """A turn that is not before `earliest`, as the flow's jobs keep it."""
        return turn if self.closed else turn - self.shift

    def opened(self, before: float = 0.0) -> float:
        """The shift with which a closed flow opens: its first job is not earlier than `before` the present."""
        if self.head is None or self.head + self.shift >= self.present:
            return self.shift
        return self.present - before - self.head


#: Of a flow that was never declared: a sweep finds its jobs.
BEGINNING = Time(0.0, False, 0.0, None)


def times(sql: Dialect, flows: Iterable[Flow]) -> Steps[dict[Flow, Time]]:
    """The times of declared flows."""
    found = {}
    for *flow, shift, closed, head, lent, handed_out, ready, latest, other in (
        yield Query(sql.FLOW_TIMES, rows=sorted(set(flows)))
    ):
        # where none of its size wait, they begin where the others are: workers without slots for large ones mix them
        present = max(handed_out, ready if ready is not None else max(latest or 0.0, other))
        first = min((vt for vt in (head, lent) if vt is not None), default=None)
        queue, pipeline, lane = flow
        found[queue, pipeline, lane] = Time(shift, bool(closed), present, first)
    return found


def assign(sql: Dialect, wanted: Sequence[tuple[Flow, str, int]]) -> Steps[list[float]]:
    """The turns of jobs in these flows, of these organisations and ranks, in order."""
    if not wanted:
        return []
    pairs = sorted({(flow[0], org) for flow, org, _ in wanted})
    tails: dict[tuple[str, str, str, str], dict[int, float]] = {}
    weights: dict[str, float] = {}
    for queue, org, pipeline, lane, rank, vt, weight in (yield Query(sql.TURNS, rows=pairs)):
        weights[org] = weight
        if rank is not None:
            tails.setdefault((queue, org, pipeline, lane), {})[rank] = vt
    known = yield from times(sql, (flow for flow, _, _ in wanted))
    turns, changed = [], {}
    for flow, org, rank in wanted:
        time = known.get(flow, BEGINNING)
        stream = (flow[0], org, *(flow[1:] if time.closed else ("", sized("", is_large(flow[2])))))
        tail = tails.setdefault(stream, {})
        ahead = (vt for r, vt in tail.items() if r == rank or rank <= r < RANK_RETRY)
        tail[rank] = max(max(ahead, default=0.0) + 1 / weights[org], time.earliest)
        changed[*stream, rank] = tail[rank]
        turns.append(time.own(tail[rank]))
    yield Query(sql.TURN_SET, rows=[(*stream, vt) for stream, vt in sorted(changed.items())])
    return turns


def from_present(sql: Dialect, wanted: Sequence[tuple[Flow, str]]) -> Steps[list[float]]:
    """Turns from the present on for jobs in flows and of organisations, in order. No stream remembers them, and no lock
    is taken: for the few that are lent, or that a limit lets in."""
    if not wanted:
        return []
    known = yield from times(sql, (flow for flow, _ in wanted))
    used: Counter[tuple[str, str]] = Counter()
    turns = []
    for flow, org in wanted:
        time = known.get(flow, BEGINNING)
        # in a queue whose time has not begun: a turn of 0 would be before all others
        turns.append(time.own(time.earliest + used[time_of(flow), org]) or 0.5)
        used[time_of(flow), org] += 1
    return turns


def open_flows(sql: Dialect, lane: str) -> Steps[dict[str, float]]:
    """Move the time of the flows of a lane that is about to open, so that none of its jobs has a turn before the
    present. The presents, by `time_of`, which are to be written down (QUEUE_TIME) before the transaction ends."""
    flows = [(queue, pipeline, of) for queue, pipeline, of, *_ in (yield Query(sql.FLOWS)) if of == lane]
    presents: dict[str, float] = {}
    for flow, time in sorted((yield from times(sql, flows)).items()):
        presents[time_of(flow)] = time.present
        if (shift := time.opened()) != time.shift:
            yield Query(sql.FLOW_SHIFT, (*flow, shift))
    return presents


def time_of(flow: Flow) -> str:
    """The name under which it is written down how far the turns of such jobs have been handed out."""
    return sized(flow[0], is_large(flow[2]))


def rank_of(priority: int) -> int:
    """Priorities rank within an organisation; few ranks, so that they cannot multiply its share without bound."""
    return max(-RANK_MAX, min(RANK_MAX, priority))
