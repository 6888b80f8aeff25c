"""What claims write down beside the jobs that they take: how far turns were handed out, and which pipelines are served.

Steps used by `apply`, after all claims of a flush: rows that others write too are locked in one order, and last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.store import rows
from perdure.store.base import Query, Row, Steps
from perdure.store.dialect import Dialect
from perdure.store.fairness import TIME_WRITTEN_MS
from perdure.store.lacking import SEEN_MS
from perdure.store.operations import Claim


def times(sql: Dialect, found: Sequence[Row], now_ms: int, written: dict[Any, int]) -> Steps[None]:
    """Write down how far turns have been handed out, now and then: others may be writing to the same row."""
    latest: dict[str, float] = {}
    for row in found:
        if row[-1] > latest.get(row[rows.JOB_QUEUE], 0.0):
            latest[row[rows.JOB_QUEUE]] = row[-1]
    for queue, turn in sorted(latest.items()):
        if abs(now_ms - written.get(queue, -TIME_WRITTEN_MS)) >= TIME_WRITTEN_MS:
            yield Query(sql.QUEUE_TIME, (queue, turn))
            written[queue] = now_ms


def served(sql: Dialect, claims: Sequence[Claim], now_ms: int, written: dict[Any, int]) -> Steps[None]:
    """Write down which pipelines are served, now and then."""
    pairs = {(queue, pipeline) for op in claims for queue in op.queues for pipeline in op.pipelines or ()}
    late = [pair for pair in sorted(pairs) if abs(now_ms - written.get(pair, -SEEN_MS)) >= SEEN_MS]
    if late:
        yield Query(sql.SERVED_SET, rows=[(*pair, now_ms) for pair in late])
        written.update(dict.fromkeys(late, now_ms))
