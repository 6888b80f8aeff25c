"""Whose turn it is: kept apart from the engine's virtual time, by the order in which jobs became ready.

Judged are jobs that nothing puts before or behind others: never claimed, no priority, no limit, no dependency. Those
that were held for a dependency and are released count as others that are claimed before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.sim.promises import Violation

if TYPE_CHECKING:
    from tests.sim.tables import JobRow, Move

#: How many plain jobs of others may be claimed before one's own: a few turns for each other organisation at twice the
#: weight, and a batch that was taken at once.
PASSED_OVER_MAX = 16


class Fairness:
    """Judges which jobs are claimed before which."""

    def __init__(self) -> None:
        self._ready: dict[
            int, tuple[int, JobRow]
        ] = {}  # plain ready jobs with the transaction that made them so
        self._passed: Counter[tuple[str, str]] = Counter()  # by queue and organisation
        self._transactions = 0

    def moved(self, moved: Sequence[Move], serves: frozenset[str]) -> None:
        """Judge the claims of one transaction by a process that serves these pipelines, then note what became ready
        in it."""
        self._transactions += 1
        taken, released = [], []
        for old, new in moved:
            if old is not None and new is not None and new.state == "running" and _released(old):
                released.append(old)
            id_ = (new or old).id  # type: ignore[union-attr]
            before = self._ready.pop(id_, None)
            if new is None:
                continue
            if before is not None and new.state == "running":
                taken.append(before)
            elif new.state == "queued" and _plain(new):
                kept = before is not None and before[1].vt == new.vt  # another priority is another place
                self._ready[id_] = before if before is not None and kept else (self._transactions, new)
        if taken or released:
            self._judge(taken, released, serves)

    def _judge(self, taken: list[tuple[int, JobRow]], released: list[JobRow], serves: frozenset[str]) -> None:
        ready = [(since, job) for since, job in self._ready.values() if job.pipeline in serves]
        for since, job in taken:
            self._passed[job.queue, job.org] = 0
            for other_since, other in ready:
                if other_since < since and (other.queue, other.org) == (job.queue, job.org):
                    raise Violation(
                        "fair", f"{job.key} was claimed before {other.key}, which was ready earlier"
                    )
        served = [*(job for _, job in taken), *released]
        for job in released:
            self._passed[job.queue, job.org] = 0
        waiting = {(job.queue, job.org) for _, job in self._ready.values()}
        for which in sorted({(job.queue, job.org) for _, job in ready}):
            others = sum((job.queue == which[0]) and (job.org != which[1]) for job in served)
            self._passed[which] += others
            if self._passed[which] > PASSED_OVER_MAX:
                raise Violation("fair", f"{which} was passed over {self._passed[which]} times")
        for which in self._passed.keys() - waiting:
            self._passed[which] = 0


def _plain(job: JobRow) -> bool:
    return _first(job) and job.lane == "" and job.probe is None


def _released(job: JobRow) -> bool:
    """Whether it stood in a lane that is up, and was not lent."""
    return _first(job) and job.lane != "" and job.state == "queued" and job.probe is None


def _first(job: JobRow) -> bool:
    return (
        job.claims == 0
        and job.generation == 1
        and job.priority == 0
        and job.limit_key is None
        and "/" not in job.key
    )
