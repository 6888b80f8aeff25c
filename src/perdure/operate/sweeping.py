"""`app.sweep()`: once, here and now, what the workers' leader does all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field

from perdure.core.escalation import Escalation
from perdure.core.events import Events
from perdure.core.frozen import frozen
from perdure.core.stuck import StuckPolicy
from perdure.engine.stuck import StuckRun
from perdure.engine.sweeper import Retention, Sweeper
from perdure.errors import PerdureError
from perdure.operate.desk import Desk
from perdure.operate.retention import Retained, Retaining
from perdure.store.sql_store import SqlStore
from perdure.store.stuck import escalated
from perdure.store.text import reason_kept

#: Between two looks for signs of life; a worker that shows them by beats does so twice a second.
APART_S = 2.0


@frozen
class Sweep:
    """What a sweep found and did; the numbers are by collection. `busy`: another one looked for stuck documents."""

    status: str  # success, partial or failure
    busy: bool = False
    stuck: dict[str, int] = field(default_factory=dict)
    starved: dict[str, int] = field(default_factory=dict)  # they only wait for a free worker, or for room
    requeued: dict[str, int] = field(default_factory=dict)
    skipped_backoff: dict[str, int] = field(default_factory=dict)
    max_retries_exceeded: dict[str, int] = field(default_factory=dict)  # buried by this sweep
    errors: dict[str, int] = field(default_factory=dict)  # by type of error
    problems: tuple[str, ...] = ()
    stuck_since_ms: int | None = None
    looked_at: int = 0
    recovered: int = 0  # leases that had run out
    promoted: int = 0  # that fell due
    lent: int = 0  # to find out whether a dependency is back
    pruned: int = 0  # old queue rows
    purged: int = 0  # documents that were beyond their limit
    archived: tuple[str, ...] = ()  # the files that the dead ones of them are in
    duration_ms: int = 0
    left: int = 0  # leases that had run out and are left to their workers, which live


class Sweeping(Retaining, Desk):
    """The verb of an app; see `app.Perdure`."""

    store: SqlStore
    events: Events
    retention: Retention
    stuck_policy: StuckPolicy

    async def escalation(self) -> Escalation:
        return escalated(await self.store.retry_job(), await self.store.now_ms())

    async def sweep(self, *, reason: str = "", who: str | None = None) -> Sweep:
        return await self.sweeping(lambda _: None, reason=reason, who=who)

    async def sweeping(
        self, told: Callable[[StuckRun], None], *, reason: str = "", who: str | None = None
    ) -> Sweep:
        """As `sweep`; tells on the way how far it is. It is in the trail if somebody gives a reason or a name: a timer
        would fill it."""
        swept = await self._swept(told)
        if reason or who is not None:
            what = (
                f"{swept.status}: {sum(swept.stuck.values())} stuck, {sum(swept.requeued.values())} requeued"
            )
            await self.store.act(self._who(who), "sweep", None, what, reason_kept(reason))
        return swept

    async def _swept(self, told: Callable[[StuckRun], None]) -> Sweep:
        sweeper = Sweeper(self.store, self.events, self.retention, self.stuck_policy)
        living = await self._living()
        sweeper.lives = living.__contains__
        swept = await sweeper.sweep(0.0)
        run = await sweeper.stuck.run(told, swept.problems)
        found = run or StuckRun(problems=swept.failed, errors=swept.errors)
        try:
            retained = await self.retain()
        except (PerdureError, OSError) as error:
            retained = Retained()
            found.failed("retention", error)
        again = await sweeper.sweep(0.0) if found.requeued else None
        return Sweep(
            found.status, run is None, dict(found.stuck), dict(found.starved), dict(found.requeued),
            dict(found.skipped),
            dict(found.buried), dict(found.errors), tuple(found.problems), found.since_ms, found.looked_at,
            swept.recovered, swept.promoted + (again.promoted if again else 0), swept.lent, swept.pruned,
            retained.dead + retained.done, retained.files,
            found.duration_ms, swept.left,
        )  # fmt: skip

    async def _living(self) -> set[int]:
        """The workers that live: they hold their lock, or beat between two looks where a lock may be lost.

        A wrong clock ends leases that are renewed all the time, and one sweep cannot tell those from others.
        """
        store = self.store
        before = dict(await store.peers())
        gone = await store.missing(sorted(before))
        if not gone or not store.needs_sign_of_life or not await store.expired(1):
            return before.keys() - gone
        await asyncio.sleep(APART_S)
        after = dict(await store.peers())
        return {
            worker for worker, beat_ms in after.items() if worker not in gone or beat_ms != before.get(worker)
        }
