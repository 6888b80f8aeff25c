"""What claims write down beside the jobs that they take: how far turns were handed out, and which pipelines are served.

Steps used by `apply`. Flows are opened before any job is locked; all else is written after all claims of a flush, so
that rows which others write too are locked in one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.store import rows
from perdure.store.base import Query, Row, Steps
from perdure.store.dialect import Dialect
from perdure.store.fairness import TIME_WRITTEN_MS, to_present
from perdure.store.lacking import LACKING, SEEN_MS
from perdure.store.operations import Claim

#: When a client last wrote down how far a queue's turns were handed out, or that it serves a pipeline of a queue.
Written = dict[Any, int]


def close_flows(sql: Dialect, now_ms: int) -> Steps[None]:
    """Let the time of flows stand still whose pipeline the workers of their queue lack; to be done now and then."""
    lacking = set((yield Query(LACKING, (now_ms,))))
    if not lacking:
        return
    closed = {row[:3] for row in (yield Query(sql.FLOWS_UNSERVED))}
    for flow in sorted({row[:3] for row in (yield Query(sql.FLOWS))} - closed):
        if flow[:2] in lacking:
            yield Query(sql.FLOW_UNSERVED, (*flow, True))


def open_flows(
    sql: Dialect, claims: Sequence[Claim], now_ms: int, written: Written
) -> Steps[dict[str, float]]:
    """Bring flows to the present that were unserved until these claims, before they take from them. The presents of
    their queues, which are to be written down."""
    pairs = set(_late(claims, now_ms, written))
    if not pairs:
        return {}
    unserved = sorted(row for row in (yield Query(sql.FLOWS_UNSERVED)) if (row[0], row[1]) in pairs)
    presents = yield from to_present(sql, [flow[:3] for flow in unserved if not flow[3]])
    for *flow, _ in unserved:
        yield Query(sql.FLOW_UNSERVED, (*flow, False))
    return presents


def note(
    sql: Dialect, claims: Sequence[Claim], found: Sequence[Row], presents: Mapping[str, float], now_ms: int,
    written: Written,
) -> Steps[Written]:  # fmt: skip
    """Write down, now and then, how far turns have been handed out and which pipelines are served: others may be
    writing to the same rows. What was written."""
    latest = dict(presents)
    for row in found:
        if row[-1] > latest.get(row[rows.JOB_QUEUE], 0.0):
            latest[row[rows.JOB_QUEUE]] = row[-1]
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
    pairs = {(queue, pipeline) for op in claims for queue in op.queues for pipeline in op.pipelines or ()}
    return [pair for pair in sorted(pairs) if abs(now_ms - written.get(pair, -SEEN_MS)) >= SEEN_MS]
