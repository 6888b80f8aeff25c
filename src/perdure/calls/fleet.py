"""What all processes of a fleet know of a dependency together, without a round trip per call.

Once a second each process brings what its calls taught it to the store and takes back what the others learned: whether
the dependency is held, how many retries are left, how fast it may be asked. The service runs one of these in each
worker; calls outside a worker know only what they saw themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from perdure.calls.dependency import DEPENDENCIES, Dependency
from perdure.calls.timing import TIMING, Timing
from perdure.errors import PerdureError
from perdure.store.operations import Report
from perdure.store.records import Shared
from perdure.store.sql_store import SqlStore

EVERY_S = 1.0


@dataclass(slots=True)
class Told:
    """What was reported of a dependency so far."""

    requests: int
    successes: int
    failures: int
    throttled: int
    runs: int
    tokens: float


class Fleet:
    """This process's share in what the fleet knows."""

    def __init__(
        self,
        store: SqlStore,
        worker: int,
        dependencies: Mapping[str, Dependency] = DEPENDENCIES,
        timing: Timing = TIMING,
    ) -> None:
        self.store = store
        self.timing = timing
        self.worker = worker
        self.dependencies = dependencies
        self._told: dict[str, Told] = {}

    async def run(self) -> None:
        """Until cancelled; a store that is away is asked again a second later."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                await self.exchange()
        finally:
            with suppress(PerdureError):
                await self.exchange()

    async def exchange(self) -> None:
        """Tell and learn, once."""
        for dependency in list(self.dependencies.values()):
            with suppress(PerdureError):
                await self._record(dependency)
                report, told = self._report(dependency)
                if report is not None:
                    shared = await self.store.exchange(dependency.name, report)
                    self._told[dependency.name] = told
                    learn(dependency, shared, self.timing.clock())
                    told.tokens = dependency.budget.tokens

    async def _record(self, dependency: Dependency) -> None:
        rows, dependency.rows = dependency.rows, []
        if rows:
            await self.store.record_calls(
                [
                    (r.api_name, r.retry_count, r.success, r.latency_ms, r.timestamp_ms, r.added_ms)
                    for r in rows
                ]
            )

    def _report(self, d: Dependency) -> tuple[Report | None, Told]:
        """What is new since the last time; None where nothing happened and nothing is amiss."""
        before = self._told.get(d.name) or Told(0, 0, 0, 0, 0, d.budget.reserve)
        now = Told(d.requests, d.successes, d.failures, d.throttled, d.runs, d.budget.tokens)
        if now == before and not d.troubled:
            return None, now
        net = now.tokens - before.tokens
        report = Report(
            self.worker, now.requests - before.requests, now.successes - before.successes,
            now.failures - before.failures, now.throttled - before.throttled, spent=max(0.0, -net),
            earned=max(0.0, net), rate=d.limiter.found(self.timing.clock()), runs=(now.runs - before.runs) or None,
        )  # fmt: skip
        return report, now


def learn(dependency: Dependency, shared: Shared, now_s: float) -> None:
    """Take over what the fleet knows: a hold, and what each worker has of tokens and rate."""
    if shared.down:
        if dependency.held is None:
            dependency.held_s = now_s
        dependency.held = shared.reason or "held"
    elif dependency.held is not None:
        dependency.held = None
        dependency.breaker.reset(now_s)
    dependency.budget.tokens = min(dependency.budget.reserve, shared.tokens)
    if shared.rate is not None:
        dependency.limiter.adopt(now_s, shared.rate)
