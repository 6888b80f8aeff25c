"""What nobody finished: expired leases, due jobs, dependencies that may be back, room under limits, old rows.

One leader at a time: whoever holds the leader's lock; when it dies the lock is free and the next keeper takes over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from perdure.core.events import Events
from perdure.core.frozen import frozen
from perdure.core.model import Job
from perdure.core.outcome import Orphaned, Result
from perdure.core.stuck import StuckPolicy
from perdure.engine.recovery import recover, unanswered
from perdure.engine.stuck import StuckSweep
from perdure.store.base import Store
from perdure.store.operations import Promote

PROMOTE_BATCH, PROMOTE_ROUNDS = 500, 10
RECOVER_BATCH = 1_000  # what one flush takes
RECOVER_ROUNDS = 10
PRUNE_ROUNDS = 10
FORGET_BATCH = 10_000
SERVER_YOUNG_S = 10.0
#: A lease that ended longer ago than this and was not taken back yet: the worker lives on, or a clock is wrong.
LATE_MS = 5_000
RENEWAL_S_MAX = 20.0
#: The store's time went ahead of our monotonic clock by more than that: its clock was set.
JUMP_MS = 2_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@frozen
class Retention:
    """How long queue rows of finished jobs and records of calls stay; documents and their history are not touched."""

    age_ms: int = 3_600_000
    count: int = 1_000
    every_s: float = 60.0
    calls_age_ms: int = 30 * DAY_MS
    feed_age_ms: int = 7 * DAY_MS
    once_age_ms: int = DAY_MS


@dataclass(slots=True)
class Swept:
    """What one sweep did; `problems` has the parts and jobs that failed, the others were done all the same."""

    recovered: int = 0
    promoted: int = 0
    lent: int = 0
    pruned: int = 0
    left: int = 0  # leases that have expired and may be renewed still, because their worker lives
    more: bool = False  # leases have expired that it did not come to
    problems: list[tuple[str, Exception]] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        return [f"{where}: {type(error).__name__}: {error}" for where, error in self.problems]

    @property
    def errors(self) -> Counter[str]:
        return Counter(type(error).__name__ for _, error in self.problems)


class Sweeper:
    """Sweeps the whole store, whoever its documents belong to."""

    def __init__(
        self,
        store: Store,
        events: Events,
        retention: Retention | None = None,
        stuck: StuckPolicy | None = None,
        server_young_s: float = SERVER_YOUNG_S,
    ) -> None:
        self.store = store
        self.events = events
        self.retention = retention or Retention()
        self.server_young_s = server_young_s
        self.stuck = StuckSweep(store, events, stuck)
        self._pruned_s = self._looked_s = -1e9
        self._now_s = 0.0
        #: Our monotonic time, and how far the store's time was ahead of it then, of the last RENEWAL_S_MAX.
        self._ahead: list[tuple[float, float]] = []
        self._watched_s = 0.0  # since when it was compared without a gap
        self._jumped = True
        self._doubts: dict[tuple[int, int, int], float] = {}  # (job, token, end of lease) → since when
        #: Whether this worker showed a sign of life lately; a keeper knows, by its monotonic clock.
        self.lives: Callable[[int], bool] = lambda worker: False

    async def sweep(self, monotonic_s: float) -> Swept:
        """One round; a part that fails does not keep the others from running."""
        swept = Swept()
        self._now_s = monotonic_s
        await self._do(swept, (self._recover, self._gather, self._promote, self._lend, self._refill))
        if monotonic_s - self._pruned_s >= self.retention.every_s:
            self._pruned_s = monotonic_s
            await self._do(swept, (self._prune,))
        if monotonic_s - self._looked_s >= self.retention.every_s:
            self._looked_s = monotonic_s
            await self._do(swept, (self._look, self._forget))
        return swept

    async def _do(self, swept: Swept, parts: Iterable[Callable[[Swept], Awaitable[None]]]) -> None:
        for part in parts:
            try:
                await part(swept)
            except Exception as error:
                swept.problems.append((part.__name__.strip("_"), error))

    async def _recover(self, swept: Swept) -> None:
        for _ in range(RECOVER_ROUNDS):  # the rest has its turn in the next sweep, which comes at once
            recovered = await self._recover_some(swept)
            swept.recovered += recovered
            if recovered:
                self.store.wake_soon()
            if recovered < RECOVER_BATCH:
                return
        swept.more = True

    async def _recover_some(self, swept: Swept) -> int:
        """One batch; how many were taken back."""
        bad: list[tuple[int, Exception]] = []
        expired = await self.store.expired(RECOVER_BATCH, bad)
        swept.problems += [(f"recover: job {id_}", error) for id_, error in bad]
        # after the look, so that no jump is before it and unseen
        self._compare_clocks(await self.store.now_ms())
        if not expired or await self.store.up_for_s() < self.server_young_s:
            return 0  # right after a restart the workers themselves are only coming back
        found = len(expired)
        expired = await self._lost(expired)
        swept.left = found - len(expired)
        gone = await self.store.missing(sorted({job.worker for job in expired if not job.handed_over}))
        results: list[tuple[Job, Result]] = []
        for job in expired:
            # a worker that lives but lost its lease was cut off or frozen; that says little about its documents
            lost = Orphaned(job.stage, "lease expired", job.worker in gone or job.postpones > 0)
            try:
                results.append((job, unanswered(job) or lost))
            except Exception as error:  # whatever it is that somebody else wrote there
                swept.problems.append((f"recover: job {job.id}", error))
        return await recover(self.store, self.events, results, "lease expired", expired_only=True)

    def _compare_clocks(self, now_ms: int) -> None:
        """Notice that the store's clock was set ahead within RENEWAL_S_MAX, or that we cannot know. A look that took
        long makes the store's time seem ahead; the smallest difference shows a jump that comes after it."""
        recent = [one for one in self._ahead if self._now_s - one[0] < RENEWAL_S_MAX]
        if not recent:
            self._watched_s = self._now_s
        self._ahead = [*recent, (self._now_s, now_ms - self._now_s * 1000)]
        least_ms = min(ahead_ms for _, ahead_ms in self._ahead)
        unwatched = self._now_s - self._watched_s < RENEWAL_S_MAX
        self._jumped = unwatched or self._ahead[-1][1] - least_ms > JUMP_MS

    async def _lost(self, expired: list[Job]) -> list[Job]:
        """Those whose worker does not renew them; where a clock is wrong, leases end that are renewed all the time."""
        living = [j for j in expired if not j.handed_over and self.lives(j.worker)]
        if not living:
            self._doubts = {}
            return expired
        since = await self.store.expired_since(RECOVER_BATCH)
        doubts: dict[tuple[int, int, int], float] = {}
        kept: set[tuple[int, int]] = set()
        for job in living:
            ended_ms, late_ms = since.get((job.id, job.token), (0, 0))
            # we sweep every second, so a lease that ends is found sooner than that
            if self._jumped or late_ms > LATE_MS:
                doubt = (job.id, job.token, ended_ms)
                doubts[doubt] = self._doubts.get(doubt, self._now_s)
                if self._now_s - doubts[doubt] < _renewal_s(job):
                    kept.add((job.id, job.token))
        self._doubts = doubts
        return [job for job in expired if (job.id, job.token) not in kept]

    async def _prune(self, swept: Swept) -> None:
        for _ in range(PRUNE_ROUNDS):
            pruned = await self.store.prune(self.retention.age_ms, self.retention.count, PROMOTE_BATCH)
            swept.pruned += pruned
            if pruned < PROMOTE_BATCH:
                return
        self._pruned_s = -1e9  # there is more: go on in the next sweep, others want their turn now

    async def _look(self, _: Swept) -> None:
        await self.store.look()

    async def _forget(self, __: Swept) -> None:
        store, ages = self.store, self.retention
        await store.forget_clients(DAY_MS)
        for forget, age_ms in (
            (store.forget_calls, ages.calls_age_ms), (store.forget_feed, ages.feed_age_ms),
            (store.forget_onces, ages.once_age_ms), (store.forget_deliveries, ages.feed_age_ms),
            (store.forget_staged, HOUR_MS),
        ):  # fmt: skip
            for _ in range(PRUNE_ROUNDS):
                if await forget(age_ms, FORGET_BATCH) < FORGET_BATCH:
                    break

    async def _gather(self, _: Swept) -> None:
        await self.store.gather(PROMOTE_BATCH)

    async def _promote(self, swept: Swept) -> None:
        for _ in range(PROMOTE_ROUNDS):
            moved = await self.store.promote(Promote(PROMOTE_BATCH))
            swept.promoted += moved
            if moved < PROMOTE_BATCH:
                return
        swept.more = True

    async def _lend(self, swept: Swept) -> None:
        swept.lent = await self.store.lend()

    async def _refill(self, _: Swept) -> None:
        await self.store.refill()


def _renewal_s(job: Job) -> float:
    """How long a worker that lives may take to renew this lease, with a margin: it does so after a third, or 10 s."""
    return min(RENEWAL_S_MAX, job.lease_ms / 1000 * 2 / 3)
