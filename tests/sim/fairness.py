"""Whose turn it is: kept apart from the engine's virtual time, by the order in which jobs became ready.

Judged are jobs that nothing puts before or behind others: never claimed, no priority, no limit, no dependency. Those
that were held for a dependency and are released count as others that are claimed before them.

A flow (queue and pipeline) that no worker serves is closed: jobs that enter it have an order of their own. When it
opens, its backlog shares the turns with all others, of the same organisation too. So first come, first served is
promised to jobs that entered the same closed flow, and to jobs that entered open flows which did not close and open
since, unless both moved with the same flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from perdure.core.lane import plain
from tests.sim.promises import Violation

if TYPE_CHECKING:
    from tests.sim.tables import JobRow, Move

#: How many plain jobs of others may be claimed before one's own: a few turns for each other organisation at twice the
#: weight, and a batch that was taken at once.
PASSED_OVER_MAX = 16
Flow = tuple[str, str]  # queue and pipeline


class Ready(NamedTuple):
    """A plain job that became ready in a transaction, and its flow then."""

    since: int
    job: JobRow
    closed: bool
    opened: int  # how often it had been opened

    @property
    def flow(self) -> Flow:
        return self.job.queue, self.job.pipeline


class Fairness:
    """Judges which jobs are claimed before which."""

    def __init__(self) -> None:
        self._ready: dict[int, Ready] = {}
        self._closed: Set[Flow] = frozenset()
        self._opened: Counter[Flow] = Counter()
        self._passed: Counter[tuple[str, str]] = Counter()  # by queue and organisation
        self._transactions = 0
        self._in_hand: dict[int, tuple[int | None, str]] = {}  # running jobs: their worker and organisation

    def moved(
        self,
        moved: Sequence[Move],
        serves: frozenset[str],
        closed: Set[Flow],
        limited: Set[str] = frozenset(),
    ) -> None:
        """Judge the claims of one transaction by a process that serves these pipelines, then note the jobs that became
        ready in it. It left these flows closed. Organisations that ever had a limit are not judged."""
        self._ready = {id_: one for id_, one in self._ready.items() if one.job.org not in limited}
        self._transactions += 1
        self._opened.update(self._closed - closed)
        self._closed = closed
        taken, released = [], []
        holding = set(self._in_hand.values())  # before this transaction
        for old, new in moved:
            self._in_hand.pop((new or old).id, None)  # type: ignore[union-attr]
            if new is not None and new.state == "running":
                self._in_hand[new.id] = (new.worker, new.org)
            if old is not None and new is not None and new.state == "running" and _released(old):
                released.append(old)
            id_ = (new or old).id  # type: ignore[union-attr]
            before = self._ready.pop(id_, None)
            if new is None:
                continue
            if before is not None and new.state == "running":
                taken.append(before)
            elif new.state == "queued" and _plain(new) and new.org not in limited:
                kept = before is not None and before.job.vt == new.vt  # another priority is another place
                self._ready[id_] = before if before is not None and kept else self._entered(new)
        if taken or released:
            self._judge(taken, released, serves, holding)

    def _entered(self, job: JobRow) -> Ready:
        flow = (job.queue, job.pipeline)
        return Ready(self._transactions, job, flow in self._closed, self._opened[flow])

    def _judge(
        self,
        taken: list[Ready],
        released: list[JobRow],
        serves: frozenset[str],
        holding: set[tuple[int | None, str]],
    ) -> None:
        ready = [one for one in self._ready.values() if one.job.pipeline in serves]
        for one in taken:
            self._passed[one.job.queue, one.job.org] = 0
            for other in ready:
                if other.since < one.since and self._in_order(one, other):
                    raise Violation(
                        "fair", f"{one.job.key} was claimed before {other.job.key}, which was ready earlier"
                    )
        served = [*(one.job for one in taken), *released]
        for job in released:
            self._passed[job.queue, job.org] = 0
        waiting = {(one.job.queue, one.job.org) for one in self._ready.values()}
        for which in sorted({(one.job.queue, one.job.org) for one in ready}):
            # a worker that has a document of the organisation in hand may leave the next slot to others
            others = sum(
                (job.queue == which[0])
                and (job.org != which[1])
                and (self._in_hand[job.id][0], which[1]) not in holding
                for job in served
            )
            self._passed[which] += others
            if self._passed[which] > PASSED_OVER_MAX:
                raise Violation("fair", f"{which} was passed over {self._passed[which]} times")
        for which in self._passed.keys() - waiting:
            self._passed[which] = 0

    def _in_order(self, one: Ready, other: Ready) -> bool:
        """Whether the one that was ready earlier is to be claimed earlier, see the module."""
        if (one.job.queue, one.job.org, one.closed) != (other.job.queue, other.job.org, other.closed):
            return False
        if one.closed:
            return one.flow == other.flow
        together = (one.flow, one.opened) == (other.flow, other.opened)
        return together or all(each.opened == self._opened[each.flow] for each in (one, other))


def _plain(job: JobRow) -> bool:
    return _first(job) and job.lane == "" and job.probe is None


def _released(job: JobRow) -> bool:
    """Whether it stood in a lane that is up, and was not lent."""
    return _first(job) and plain(job.lane) != "" and job.state == "queued" and job.probe is None


def _first(job: JobRow) -> bool:
    return (
        job.claims == 0
        and job.generation == 1
        and job.priority == 0
        and job.limit_key is None
        and "/" not in job.key
    )
