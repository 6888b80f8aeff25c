"""What each organisation holds of a worker's slots, and how much of them a claim may ask for.

Slots are for small documents or for large ones. Each of both may take as many as the worker has (`slots`), together
as many and `extra`: small ones never wait for large ones, large ones never starve, and either of them alone uses all.
With `extra` 0 they share the slots.

An organisation whose documents take long holds at most its share of either, two thirds, once others have been
seen lately: a slot that it does not hold is free for theirs. If nobody else was seen, a claim first looks for others,
and then takes what there is. Quick documents hold nobody up: they end sooner than it matters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.core.frozen import frozen
from perdure.core.lane import is_large
from perdure.core.model import Job
from perdure.store.operations import Passing

SLOW_MS = 2_000  # a document that holds a slot for this long keeps others waiting
RECENT_MS = 60_000  # for this long after its last document a slot is kept for an organisation
ORGS_MAX = 1_000  # that are remembered
#: A job and its token: one that was taken back may be claimed again while its first run has not ended here.
Claim = tuple[int, int]


def share(slots: int) -> int:
    """The slots that one organisation may hold for long while there are others: never all, if there are several."""
    return max(1, min(slots - 1, -(-slots * 2 // 3)))


@frozen
class Asked:
    """Slots to ask for, and whom to pass over."""

    small: int
    large: int | None  # None: large documents are among the others
    passing: Passing | None = None
    passing_large: Passing | None = None
    more: bool = False  # other small ones could be asked for, if it finds all of these

    @property
    def total(self) -> int:
        return self.small + (self.large or 0)


NOTHING = Asked(0, 0)


@dataclass(slots=True)
class Kind:
    """The slots of one kind."""

    reserved: int = 0  # asked for and not answered yet
    taken: int = 0
    held: dict[str, dict[Claim, int]] = field(default_factory=dict)  # organisation → claim → since when

    @property
    def used(self) -> int:
        return self.taken + self.reserved


class Shares:
    """See the module. Times are monotonic milliseconds."""

    def __init__(self, slots: int, extra: int) -> None:
        self.slots, self.extra = slots, extra
        self.small, self.large = Kind(), Kind()
        self._seen: dict[str, int] = {}  # when a document of an organisation was taken last
        self._slow: set[str] = set()  # organisations whose last document took long
        self._large_wait = (
            False  # the last claim found no more small ones, and all large ones that it asked for
        )

    def take(self, job: Job, now_ms: int) -> None:
        """The job has a slot from now on."""
        kind = self.large if self.extra and is_large(job.lane) else self.small
        kind.held.setdefault(job.org, {})[job.id, job.token] = now_ms
        kind.taken += 1
        self._seen.pop(job.org, None)
        self._seen[job.org] = now_ms
        if len(self._seen) > ORGS_MAX:
            del self._seen[next(iter(self._seen))]

    def leave(self, job: Job, now_ms: int) -> None:
        """Its slot is free."""
        claim = (job.id, job.token)
        kind = self.small if claim in self.small.held.get(job.org, ()) else self.large
        kind.taken -= 1
        began_ms = kind.held[job.org].pop(claim)
        if not kind.held[job.org]:
            del kind.held[job.org]
        if now_ms - began_ms >= SLOW_MS:
            self._slow.add(job.org)
        else:
            self._slow.discard(job.org)

    def ask(self, most: int, now_ms: int) -> Asked:
        """What to ask for now, at most `most` jobs."""
        free = min(most, self.slots - self.small.used)
        if not self.extra:
            small, passing = self._free(self.small, free, now_ms)
            return Asked(small, None, passing, more=small < free)
        room = min(most, self.slots + self.extra - self.small.used - self.large.used)
        free_large = min(most, self.slots - self.large.used)
        # small ones first; where none are left, one slot stays for the next
        large = max(0, min(free_large, room - 1)) if self._large_wait else 0
        small = max(0, min(free, room - large))
        large = max(large, min(free_large, room - small))
        small, passing = self._free(self.small, small, now_ms)
        large, passing_large = self._free(self.large, large, now_ms)
        return Asked(small, large, passing, passing_large, more=small < min(free, room))

    @property
    def reserved(self) -> int:
        """Slots that are asked for and not answered yet."""
        return self.small.reserved + self.large.reserved

    def reserve(self, asked: Asked, sign: int) -> None:
        """Slots that are asked for (1), or were answered (-1)."""
        self.small.reserved += sign * asked.small
        self.large.reserved += sign * (asked.large or 0)

    def answered(self, asked: Asked, jobs: list[Job]) -> bool:
        """Hear what a claim found; whether another one is worth while at once."""
        large = sum(is_large(job.lane) for job in jobs) if asked.large is not None else 0
        small = len(jobs) - large
        waited, self._large_wait = self._large_wait, small < asked.small and large == asked.large
        if self._large_wait:
            return not waited or large > 0
        return asked.more and small == asked.small

    def _free(self, kind: Kind, free: int, now_ms: int) -> tuple[int, Passing | None]:
        """The number of the free slots that may be asked for at once, and whom to pass over."""
        bound = share(self.slots)
        slow = {org: len(jobs) for org, jobs in kind.held.items() if self._is_slow(org, jobs, now_ms)}
        at_bound = tuple(sorted(org for org, held in slow.items() if held >= bound))
        if at_bound and free > 0:
            alone = not self._others_seen(at_bound, now_ms)
            return free, Passing(at_bound, fill=alone)
        if len(self._slow) > ORGS_MAX:
            self._slow.clear()
        slow |= {org: 0 for org in self._slow if org not in slow}
        if free > 0 and slow and self._others_seen((), now_ms):
            free = min(free, bound - max(slow.values()))
        return max(free, 0), None

    def _is_slow(self, org: str, jobs: dict[Claim, int], now_ms: int) -> bool:
        return org in self._slow or now_ms - next(iter(jobs.values())) >= SLOW_MS

    def _others_seen(self, orgs: tuple[str, ...], now_ms: int) -> bool:
        """Whether documents of others than these were seen lately; of two at least, if none is named."""
        lately = (org for org, at_ms in self._seen.items() if now_ms - at_ms < RECENT_MS)
        return sum(org not in orgs for org in lately) > (0 if orgs else 1)
