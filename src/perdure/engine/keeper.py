"""What must go on while stage code runs: renewing leases, signs of life, noticing the death of others, sweeping.

Runs in the supervisor process, or embedded in a thread of its own with a store connection of its own. A worker's death
is noticed by its lock, which the operating system frees: free on two looks at least 0.7 s apart, no sign of life
between, and neither the server nor our link to it just back. Tokens make a wrong guess harmless.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from perdure.core.events import Events, SweepPartial, WorkerLost
from perdure.core.outcome import Orphaned
from perdure.engine.loop_watch import SILENT_MS, LoopWatch
from perdure.engine.recovery import recover
from perdure.engine.slate import Held, Slate
from perdure.engine.sweeper import SERVER_YOUNG_S, Sweeper
from perdure.errors import PerdureError
from perdure.store.base import Store
from perdure.store.operations import Beat

LOOK_S = 0.36
APART_S = 0.7
ALIVE_S = 0.5
SWEEP_S = 1.0
STUCK_S = 5.0
BEAT_S_MAX = 10.0
BEAT_TIMEOUT_S = 5.0
LIVES_S = 2 * BEAT_S_MAX
NEGLECT_MS = 3_000


@dataclass(slots=True)
class Absence:
    """A worker whose lock was found free, or whose beat is the same since."""

    since_s: float
    beat_ms: int


class Keeper:
    """Keeps the leases of one worker and watches over all others."""

    def __init__(
        self,
        store: Store,
        events: Events,
        worker: int,
        slate: Slate,
        sweeper: Sweeper,
        *,
        on_absence: Callable[[], None] = lambda: None,
        stall_ms: int = 0,
        on_stall: Callable[[int], None] = lambda silent_ms: None,
    ) -> None:
        """`stall_ms`: leases of a worker whose event loop stands still for that long are left to other workers, if
        there are any, and `on_stall` hears of it; 0: its supervisor ends it."""
        self.store = store
        self.events = events
        self.worker = worker
        self.slate = slate
        self.sweeper = sweeper
        self._on_absence = on_absence
        self._absent: dict[int, Absence] = {}
        self._signs: dict[int, Absence] = {}
        sweeper.lives = self.lives
        self.loop = LoopWatch(slate.ticks)
        self._stall_ms, self._on_stall = stall_ms, on_stall
        self._silent = self._stalled = False
        self._beat_ms = 0
        self._sweeps = False
        self._failed: tuple[str, ...] = ()

    async def run(self, stopping: asyncio.Event) -> None:
        """Until `stopping` is set; an unreachable store is waited for, whatever else happens goes on."""
        loops = [
            asyncio.create_task(
                self._every(period, step, stopping), name=f"perdure-{step.__name__.strip('_')}"
            )
            for period, step in (
                (LOOK_S, self._look),
                (ALIVE_S, self._keep),
                (ALIVE_S, self._give_up),
                (SWEEP_S, self._sweep),
                (STUCK_S, self._look_for_stuck),
            )
        ]
        try:
            await asyncio.gather(*loops)
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def _every(
        self, period_s: float, step: Callable[[], Awaitable[bool | None]], stopping: asyncio.Event
    ) -> None:
        """A step that answers True has more to do and goes on at once."""
        while not stopping.is_set():
            # the next round tries again, whatever it was: without a keeper every lease of this worker would run out
            try:
                if await step():
                    continue
            except (PerdureError, OSError, TimeoutError):
                pass  # the store is away
            except Exception as error:
                self.events.publish(SweepPartial((f"{step.__name__.strip('_')}: {error!r}",)))
            try:
                await asyncio.wait_for(stopping.wait(), period_s)
            except TimeoutError:
                continue

    # --- leases ----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Renew what is due."""
        held = self.slate.held()
        now_ms = monotonic_ms()
        due = [one for one in held if now_ms - one.renewed_ms >= renew_after_ms(one.lease_ms)]
        if self._stands_still(now_ms):
            due = []
        was_silent, self._silent = self._silent, self.loop.silent_ms >= SILENT_MS
        quiet_ms = ALIVE_S * 1000 if self.store.needs_sign_of_life else BEAT_S_MAX * 1000
        if due or self._silent != was_silent or now_ms - self._beat_ms >= quiet_ms:
            self._beat_ms = now_ms
            await asyncio.wait_for(self._beat(held if due else []), BEAT_TIMEOUT_S)

    def _stands_still(self, now_ms: int) -> bool:
        """Whether others are to have the jobs of this worker when their leases end: nobody ends it, it stands still,
        and there are others. Without any, to go on late is better than to begin again."""
        was_stalled, silent_ms = self._stalled, self.loop.look(now_ms)
        self._stalled = 0 < self._stall_ms <= silent_ms
        if self._stalled and not was_stalled:
            self._on_stall(silent_ms)
        return self._stalled and any(self.lives(worker) for worker in self._signs)

    async def _give_up(self) -> None:
        """Give up, by our own clock, what could not be renewed for two thirds of its lease; no beat delays this."""
        now_ms = monotonic_ms()
        self.slate.kept(now_ms)
        for one in self.slate.held():
            if now_ms - one.renewed_ms > one.lease_ms * 2 // 3:
                self.slate.revoke(one)

    async def _beat(self, held: list[Held]) -> None:
        at_ms = monotonic_ms()
        silent_ms = self.loop.silent_ms if self._silent else None
        pairs = tuple((one.job_id, one.token) for one in held)
        lost = await self.store.beat(Beat(self.worker, pairs, silent_ms=silent_ms))
        for one in held:
            if (one.job_id, one.token) in lost:
                self.slate.revoke(one)
            else:
                self.slate.beaten(one, at_ms)

    # --- the death of others ---------------------------------------------------------------------

    def lives(self, worker: int) -> bool:
        """Whether this worker has beaten within LIVES_S, by our monotonic clock; we do. A worker that had nothing in
        hand beats every BEAT_S_MAX, so after a claim its last beat may be older than a short lease."""
        if worker == self.worker:
            return True
        sign = self._signs.get(worker)
        return sign is not None and worker not in self._absent and time.monotonic() - sign.since_s < LIVES_S

    async def _look(self) -> None:
        await self.store.tend()
        others = {w: beat_ms for w, beat_ms in await self.store.peers() if w != self.worker}
        gone = await self.store.missing(sorted(others))
        now_s = time.monotonic()
        self._signs = {
            w: sign if (sign := self._signs.get(w)) and sign.beat_ms == beat_ms else Absence(now_s, beat_ms)
            for w, beat_ms in others.items()
        }
        self._absent = {w: a for w, a in self._absent.items() if w in gone and others[w] == a.beat_ms}
        for worker in sorted(gone):
            absence = self._absent.get(worker)
            if absence is None:
                self._absent[worker] = Absence(now_s, others[worker])
                self._on_absence()
            elif now_s - absence.since_s >= APART_S and await self.store.up_for_s() >= SERVER_YOUNG_S:
                await self._bury(worker)
                self._absent.pop(worker, None)

    async def _bury(self, worker: int) -> None:
        """Take back what a dead worker had in hand, then forget the worker."""
        jobs = await self.store.in_hand(worker)
        # whoever has a job had its lock before, so this look counts; the one that brought us here may have come
        # while a new worker was between its row and its lock
        if worker not in await self.store.missing([worker]):
            return
        reason = f"worker {worker} died"
        taken = await recover(
            self.store, self.events, [(job, Orphaned(job.stage, reason)) for job in jobs], reason
        )
        self.store.wake_soon()
        self.events.publish(WorkerLost(worker, taken, reason))
        if not await self.store.in_hand(worker):
            await self.store.retire(worker)

    # --- sweeping --------------------------------------------------------------------------------

    async def _sweep(self) -> bool:
        # a frozen leader keeps its lock; every change of a sweep is guarded, so anybody may stand in for it
        self._sweeps = await self.store.lead() or await self.store.neglected_ms() > NEGLECT_MS
        if not self._sweeps:
            return False
        swept = await self.sweeper.sweep(time.monotonic())
        failed = tuple(swept.failed)
        if failed and failed != self._failed:  # what goes on failing is not told every second
            self.events.publish(SweepPartial(failed))
        self._failed = failed
        return swept.more and not failed

    async def _look_for_stuck(self) -> None:
        """Beside the sweep, which must not wait for it."""
        if self._sweeps:
            await self.sweeper.stuck.tick(time.monotonic())


def monotonic_ms() -> int:
    """Milliseconds that never jump, the same in every process of this machine."""
    return time.monotonic_ns() // 1_000_000


def renew_after_ms(lease_ms: int) -> int:
    """A third of a lease, or so early that one more look comes before two thirds of it are over."""
    looks_ms = int(2 * ALIVE_S * 1000)
    return min(lease_ms // 3, max(0, lease_ms * 2 // 3 - looks_ms), int(BEAT_S_MAX * 1000))
