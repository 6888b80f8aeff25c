"""What claims write down beside the jobs that they take: how far turns were handed out, and which pipelines are served.

Steps used by `apply`. Flows are opened before any job is locked; all else is written after all claims of a flush, so
that rows which others write too are locked in one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.core.lane import is_large, sized
from perdure.store import rows
from perdure.store.base import Query, Row, Steps
from perdure.store.dialect import Dialect
from perdure.store.fairness import TIME_WRITTEN_MS, time_of, times
from perdure.store.lacking import LACKING, SEEN_MS
from perdure.store.operations import Claim

#: When a client last wrote down how far a queue's turns were handed out, or that it serves a pipeline of a queue.
Written = dict[Any, int]


#: How far the first job of a flow that opens is before the jobs at the present. Else those of a higher priority come
#: before it each time a worker with its pipeline, which is busy for minutes in between, asks for one job.
BEFORE = 0.001


def close_flows(sql: Dialect, now_ms: int) -> Steps[None]:
    """Let the time of flows stand still whose pipeline the workers of their queue lack; to be done now and then."""
    lacking = set((yield Query(LACKING, (now_ms,))))
    if not lacking:
        return
    closed = {row[:3] for row in (yield Query(sql.FLOWS_UNSERVED))}
    for flow in sorted({row[:3] for row in (yield Query(sql.FLOWS))} - closed, key=_by_lane):
        if flow[:2] in lacking:
            yield Query(sql.FLOW_UNSERVED, (*flow, True))


def open_flows(
    sql: Dialect, claims: Sequence[Claim], now_ms: int, written: Written
) -> Steps[dict[str, float]]:
    """Open flows whose pipelines these claims serve again, and move their first jobs to the present. Return the
    presents, by `time_of`, which are to be written down."""
    pairs = set(_late(claims, now_ms, written))
    if not pairs:
        return {}
    unserved = [row for row in (yield Query(sql.FLOWS_UNSERVED)) if (row[0], row[1]) in pairs]
    known = (yield from times(sql, [row[:3] for row in unserved])) if unserved else {}
    presents: dict[str, float] = {}
    for queue, pipeline, lane, down in sorted(unserved, key=_by_lane):
        flow = (queue, pipeline, lane)
        if down:  # its time is moved when its lane opens
            yield Query(sql.FLOW_UNSERVED, (*flow, False))
        else:
            presents[time_of(flow)] = known[flow].present
            yield Query(sql.FLOW_SERVED, (*flow, known[flow].opened(BEFORE)))
    return presents


def _by_lane(flow: Row) -> Row:
    """The order in which flows are locked: that of a release, which opens one lane after the other."""
    return flow[2], flow[0], flow[1]


def note(
    sql: Dialect, claims: Sequence[Claim], found: Sequence[Row], presents: Mapping[str, float], now_ms: int,
    written: Written,
) -> Steps[Written]:  # fmt: skip
    """Write down, now and then, how far turns have been handed out and which pipelines are served: others may be
    writing to the same rows. What was written."""
    latest = dict(presents)
    for row in found:
        which = sized(row[rows.JOB_QUEUE], is_large(row[rows.JOB_LANE]))
        if row[-1] > latest.get(which, 0.0):
            latest[which] = row[-1]
    noted: Written = {}
    for queue, turn in sorted(latest.items()):
        if queue in presents or abs(now_ms - written.get(queue, -TIME_WRITTEN_MS)) >= TIME_WRITTEN_MS:
            yield Query(sql.QUEUE_TIME, (queue, turn))
            noted[queue] = now_ms
    if late := _late(claims, now_ms, written):
        yield Query(sql.SERVED_SET, rows=[(*pair, now_ms) for pair in late])
        noted.update(dict.fromkeys(late, now_ms))
    return noted


def _late(claims: Sequence[Claim], now_ms: int, written: Written) -> list[tuple[str, str]]:
    """Queues and pipelines of which it is to be written down that they are served."""
    if not claims:
        return []
    pairs = {(queue, pipeline) for op in claims for queue in op.queues for pipeline in op.pipelines or ()}
    return [pair for pair in sorted(pairs) if abs(now_ms - written.get(pair, -SEEN_MS)) >= SEEN_MS]
