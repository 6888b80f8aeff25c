"""What each organisation holds of a worker's slots, and how much of them a claim may ask for.

Slots are for small documents or for large ones. Each of both may take as many as the worker has (`slots`), together
as many and `extra`: large ones never starve, and either of them alone uses all. With `extra` 0 they share the slots.

Once several organisations have been seen lately, none of them can hold the worker:

- Large documents hold no more than the `extra` slots, and one if all of these belong to one that has its share.
- An organisation whose documents take long holds at most its share, half of the slots, for large and small ones
  together. For a small one that it holds, quick ones of others have one of the `extra` slots. Where the documents of
  all take long, one slot stays for others.
- If an organisation holds more than its share with quick documents, others have the `extra` slots besides.

If nobody else was seen, a claim first looks for others, and then takes what there is.
"""

from __future__ import annotations

from collections.abc import Collection
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
    """The slots that one organisation may hold for long while there are others."""
    return max(1, slots // 2)


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
        several = self.several(now_ms)
        slow = self._slow_held(now_ms)
        free = min(most, self.slots + self._made_up(slow, now_ms) - self.small.used)
        if not self.extra:
            small, passing = self._free(slow, free, now_ms)
            return Asked(small, None, passing, more=small < free)
        room = min(most, self.slots + self.extra - self.small.used - self.large.used)
        if several and free <= 0 < room and (holding := self._holding()):
            return Asked(room, 0, Passing(holding, fill=False))
        free_large = min(most, self._most_large(slow, several) - self.large.used)
        # small ones first; where none are left, one slot stays for the next
        large = max(0, min(free_large, room - 1)) if self._large_wait else 0
        small = max(0, min(free, room - large))
        large = max(large, min(free_large, room - small))
        small, passing = self._free(slow, small, now_ms)
        large, passing_large = self._free(slow, large, now_ms)
        return Asked(small, large, passing, passing_large, more=small < min(free, room))

    def several(self, now_ms: int) -> bool:
        """Whether documents of two organisations at least were seen lately."""
        return self._others_seen((), now_ms)

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

    def _slow_held(self, now_ms: int) -> dict[str, int]:
        """The slots of both kinds that each organisation holds whose documents take long."""
        if len(self._slow) > ORGS_MAX:
            self._slow.clear()
        held = dict.fromkeys(self._slow, 0)
        for kind in (self.small, self.large):
            for org, jobs in kind.held.items():
                if kind is self.large or org in held or now_ms - next(iter(jobs.values())) >= SLOW_MS:
                    held[org] = len(self.small.held.get(org, ())) + len(self.large.held.get(org, ()))
        return held

    def _made_up(self, slow: dict[str, int], now_ms: int) -> int:
        """The `extra` slots that quick documents may have for those that are held for long."""
        if not slow or not self._others_seen(slow, now_ms):
            return 0
        return min(self.extra, sum(len(self.small.held.get(org, ())) for org in slow))

    def _free(self, slow: dict[str, int], free: int, now_ms: int) -> tuple[int, Passing | None]:
        """The number of the free slots that may be asked for at once, and whom to pass over."""
        if not slow or free <= 0:
            return max(free, 0), None
        bound = self._bound(slow, now_ms)
        at_bound = tuple(sorted(org for org, held in slow.items() if held >= bound))
        if at_bound:
            alone = not self._others_seen(at_bound, now_ms)
            return free, Passing(at_bound, fill=alone)
        if self.several(now_ms):
            free = min(free, bound - max(slow.values()))
        return max(free, 0), None

    def _bound(self, slow: dict[str, int], now_ms: int) -> int:
        """The slots that one of the slow may hold. Where all are slow, nobody keeps quick ones waiting: turns decide,
        and a slot stays for a newcomer. To pass over many organisations would cost more than it gives."""
        quick = self._others_seen(slow, now_ms) or len(slow) == 1
        return share(self.slots) if quick else max(1, self.slots - 1)

    def _holding(self) -> tuple[str, ...]:
        """The organisations that hold more than their share of the slots for small documents."""
        return tuple(sorted(org for org, jobs in self.small.held.items() if len(jobs) > share(self.slots)))

    def _most_large(self, slow: dict[str, int], several: bool) -> int:
        """The slots that large documents may have."""
        if not several:
            return self.slots
        return min(self.slots, self.extra + any(held >= share(self.slots) for held in slow.values()))

    def _others_seen(self, orgs: Collection[str], now_ms: int) -> bool:
        """Whether documents of others than these were seen lately; of two at least, if none is named."""
        missing = 1 if orgs else 2
        for org, at_ms in reversed(self._seen.items()):  # those that were seen last come first
            if now_ms - at_ms >= RECENT_MS:
                return False
            missing -= org not in orgs
            if not missing:
                return True
        return False
