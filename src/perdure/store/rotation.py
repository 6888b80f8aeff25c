"""Queues that share the slots of a worker take turns: each has a time of its own, and times of two do not compare.

A queue that is seldom used is far behind in its turns. If the earliest turn of all queues went first, its backlog would
go before everything in the others. So a claim takes the first job of each queue, then the second of each, and the next
claim begins with another queue. Jobs that an operator raised go before all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import nsmallest
from typing import Any

from perdure.store.base import Row
from perdure.store.operations import Claim


def rotated(claim: Claim, known: Mapping[Any, Any], noted: dict[Any, Any]) -> Claim:
    """The claim with another queue first than the one before it."""
    if len(claim.queues) < 2:
        return claim
    which = (rotated, claim.queues)
    first = known.get(which, 0) % len(claim.queues)
    noted[which] = first + 1
    return replace(claim, queues=claim.queues[first:] + claim.queues[:first])


def first(ready: Iterable[tuple[str, Row]], most: int, queues: tuple[str, ...]) -> list[Row]:
    """The jobs (turn, rank, id, …) that go first of those that are ready, in the order of these queues."""
    by_queue: dict[str, list[Row]] = {}
    raised: list[Row] = []
    for queue, row in ready:
        (by_queue.setdefault(queue, []) if row[0] > 0 else raised).append(row)
    chosen = nsmallest(most, raised)
    if len(by_queue) == 1:
        (only,) = by_queue.values()
        return chosen + nsmallest(most - len(chosen), only)
    placed = [
        (nth, queues.index(queue), row)
        for queue, rows in by_queue.items()
        for nth, row in enumerate(nsmallest(most, rows))
    ]
    return chosen + [row for *_, row in nsmallest(most - len(chosen), placed)]
