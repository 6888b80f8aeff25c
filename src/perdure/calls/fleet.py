"""What all processes of a fleet know of a dependency together, without a round trip per call.

Once a second each process brings what its calls taught it to the store and takes back what the others learned: whether
the dependency is held, how many retries are left, how fast it may be asked. The service runs one of these in each
worker; calls outside a worker know only what they saw themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from perdure.calls.dependency import DEPENDENCIES, Dependency, begin_recording
from perdure.calls.limiter import VERDICT_S
from perdure.calls.timing import TIMING, Timing
from perdure.core.pace import SLOWER, Pace
from perdure.errors import PerdureError
from perdure.store.operations import Report
from perdure.store.records import Shared
from perdure.store.sql_store import SqlStore

EVERY_S = 1.0
LATELY_S = 5.0
MIXED = -1
_log = logging.getLogger("perdure.calls")


@dataclass(slots=True)
class Told:
    """What was reported of a dependency so far."""

    requests: int = 0
    successes: int = 0
    failures: int = 0
    throttled: int = 0
    runs: int = 0
    tokens: float = 0.0
    epoch: int = 0  # of the fleet's finding under which this was seen


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
        self._told = {name: told(known) for name, known in dependencies.items()}
        self._shared_s: dict[str, float] = {}  # when each was told of

    async def run(self) -> None:
        """Until cancelled; a store that is away is asked again a second later."""
        self.record()
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                await self.exchange()
        finally:
            await self.exchange()

    def record(self) -> None:
        """Keep operations from now on, to be written down."""
        begin_recording()
        for dependency in self.dependencies.values():
            dependency.rows = [] if dependency.rows is None else dependency.rows

    async def exchange(self) -> None:
        """Tell and learn, once. Whatever goes wrong with one dependency, the others are seen to."""
        for dependency in list(self.dependencies.values()):
            try:
                await self._record(dependency)
                await self._share(dependency)
            except PerdureError:
                continue  # the store is away
            except Exception:
                _log.exception("sharing what is known of %s failed", dependency.name)

    async def _share(self, d: Dependency) -> None:
        d.limiter.verdict_s = VERDICT_S
        before, now = self._told.get(d.name) or Told(tokens=d.budget.reserve), told(d)
        if now == before and not d.troubled:
            return  # nothing happened and nothing is amiss
        # what came back in the first second of a finding was asked before it
        epoch = d.epoch if before.epoch == d.epoch else MIXED
        net = now.tokens - before.tokens
        report = Report(
            self.worker, now.requests - before.requests, now.successes - before.successes,
            now.failures - before.failures, now.throttled - before.throttled, spent=max(0.0, -net),
            earned=max(0.0, net), rate=d.limiter.found(self.timing.clock()), runs=now.runs - before.runs, epoch=epoch,
        )  # fmt: skip
        now_s = self.timing.clock()
        asked_per_s = report.requests / max(EVERY_S, min(now_s - self._shared_s.get(d.name, now_s), LATELY_S))
        self._shared_s[d.name] = now_s
        shared = await self.store.exchange(d.name, report)
        learn(d, shared, now.tokens, self.timing.clock(), asked_per_s)
        now.tokens = shared.tokens
        self._told[d.name] = now

    async def _record(self, dependency: Dependency) -> None:
        if dependency.dropped:
            _log.warning("%d operations of %s were not recorded", dependency.dropped, dependency.name)
            dependency.dropped = 0
        rows, dependency.rows = dependency.rows, []
        if not rows:
            return
        try:
            await self.store.record_calls(
                [
                    (r.api_name, r.retry_count, r.success, r.latency_ms, r.timestamp_ms, r.added_ms)
                    for r in rows
                ]
            )
        except PerdureError:
            dependency.keep(*rows)
            raise


def told(d: Dependency) -> Told:
    """All that happened so far."""
    return Told(d.requests, d.successes, d.failures, d.throttled, d.runs, d.budget.tokens, d.epoch)


def learn(
    dependency: Dependency, shared: Shared, tokens_told: float, now_s: float, asked_per_s: float = 0.0
) -> None:
    """Take over what the fleet knows: a hold, and what each worker has of tokens and rate. `asked_per_s`: so many
    requests went out from here of late."""
    if shared.down:
        if dependency.held is None:
            dependency.held_s = now_s
        dependency.held = shared.reason or "held"
    elif dependency.held is not None:
        dependency.held = None
        dependency.breaker.reset(now_s)
    dependency.ramping = shared.ramping
    _keep_pace(dependency, shared.pace, now_s, asked_per_s)
    budget = dependency.budget
    since = budget.tokens - tokens_told  # while the store was asked
    budget.tokens = max(0.0, min(budget.reserve, shared.tokens + since))
    if shared.rate is not None and (shared.pace.phase == "pressed" or shared.pace.word == "up"):
        dependency.limiter.adopt(now_s, shared.rate)


def _keep_pace(dependency: Dependency, pace: Pace, now_s: float, asked_per_s: float) -> None:
    """Do as the fleet does: ask less while it finds out, adapt while the service is pressed, go on at full speed where
    that changes nothing."""
    limiter = dependency.limiter
    dependency.expect(pace.share)
    if pace.epoch == dependency.epoch:
        return
    dependency.epoch = pace.epoch
    if pace.phase == "test":
        limiter.slow(now_s, SLOWER * asked_per_s)
    elif pace.phase == "pressed":
        limiter.steady = False
    else:
        limiter.reset()
