"""What stages need and can reach: dependencies that are down, limits, and what lent documents find out."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from perdure.core.lane import lane_of, uses_of
from perdure.core.outcome import LaneDown, Outgrown
from perdure.core.scope import MESSENGERS
from perdure.core.services import CONFIGURATION
from perdure.engine import fallback
from perdure.engine.journey import Journey
from perdure.engine.keeper import monotonic_ms
from perdure.engine.pipeline import AnyStage
from perdure.errors import DependencyDown, StoreError
from perdure.store.base import BREAKER, Store

LOOK_AGAIN_MS = 100  # what is down may have come back after this time


class Availability:
    """What a worker knows of the dependencies of its stages."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.down: frozenset[str] | None = None  # dependencies; None: not asked yet
        self.looked_ms = -LOOK_AGAIN_MS
        self._holding = asyncio.Lock()

    async def look(self) -> frozenset[str]:
        """Ask the store which dependencies are down."""
        asked_ms = monotonic_ms()
        down = self.down = await self._store.down()
        self.looked_ms = asked_ms
        return down

    async def probed(self, journey: Journey, saved: bool, down: str | None = None) -> None:
        """Tell what a lent document found out: what its calls say, or, if it made none, how its stage ended."""
        probe, journey.probe = journey.probe, None
        if probe is None or journey.work is None:
            return
        ok, guessed = journey.work.probed, journey.work.probed is None
        if guessed and probe not in journey.requests:
            ok = True if saved else False if down == probe else None
        if ok is not None:
            with suppress(StoreError):  # it is found out again
                await self._store.probed(probe, ok, guessed)

    async def out_of_reach(
        self, journey: Journey, stage: AnyStage
    ) -> DependencyDown | LaneDown | Outgrown | None:
        """Why the document must wait, or its fallback stand in, for what the stage needs."""
        if journey.outgrown:
            return Outgrown(stage.name)
        if journey.probe not in stage.needs and await self._away(stage):
            if not fallback.falls_back(stage, journey.job):
                return LaneDown(stage.name, journey.lane)
            return DependencyDown(stage.needs[0], f"{', '.join(stage.needs)} is down", heard=True)
        if self._store.limited and self._limited(journey):
            return LaneDown(stage.name, journey.lane, limited=True)
        return None

    def _limited(self, journey: Journey) -> bool:
        """Whether the next stage needs a dependency with a limit under which the job has no room. A claim in
        the lane of that stage finds some."""
        return not uses_of(journey.lane) & self._store.limited <= journey.passed

    async def _away(self, stage: AnyStage) -> bool:
        """Whether a dependency of the stage is down; a new worker asks first, and "down" is asked again, because it
        may be up by now."""
        if self.down is not None and self.down.isdisjoint(stage.needs):
            return False
        async with self._holding:
            down = self.down
            if down is None or monotonic_ms() - self.looked_ms > LOOK_AGAIN_MS:
                down = await self.look()
        return not down.isdisjoint(stage.needs)

    async def held(self, journey: Journey, stage: AnyStage | None, error: DependencyDown) -> bool:
        """Whether the document is to wait for the dependency: it is down, or the error knows that it is."""
        needs = {*(stage.needs if stage is not None else ()), error.name}
        # a cell ends before it has seen enough; its worker has seen what all of them did
        error.confirmed = error.confirmed or any(m.away(error.name) for m in MESSENGERS.values())
        journey.lane = lane_of(needs)
        async with self._holding:  # hundreds may find out at the same time
            if error.confirmed and not error.heard and error.name not in (self.down or ()):
                by = CONFIGURATION if error.unnamed else BREAKER
                await self._store.hold(error.name, str(error), by)
            down = await self.look()
        return not down.isdisjoint(needs)
