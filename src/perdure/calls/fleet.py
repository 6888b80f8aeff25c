"""What all processes of a fleet know of a dependency together, without a round trip per call.

Once a second each process brings what its calls taught it to the store and takes back what the others learned: whether
the dependency is held, how many retries are left, how fast it may be asked. The service runs one of these in each
worker; calls outside a worker know only what they saw themselves.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import perdure.calls.home  # noqa: F401  what cells tell a worker is told to the fleet
from perdure.calls.dependency import DEPENDENCIES, Dependency, begin_recording
from perdure.calls.timing import TIMING, Timing
from perdure.core.fleet import TOKENS_MAX
from perdure.errors import PerdureError
from perdure.store.operations import Report
from perdure.store.records import Shared
from perdure.store.sql_store import SqlStore

EVERY_S, EARLY_S = (
    1.0,
    0.1,
)  # a dependency of which nothing is amiss is told of so often, others twice as often
LATELY_S = 5.0
IDLE_S = 5.0  # of what nobody here calls, the others are asked so often
LATENCY_S_MAX = 2.0
LAST_MS = 1_000  # a burst of failures is not an outage: it must last
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
    stale: tuple[int, int, int] = (0, 0, 0)
    asked_s: float = 0.0  # until when its calls were asked for silence
    in_flight: int = 0
    looking: bool = False


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
        self._told = {name: told(known, timing.clock()) for name, known in dependencies.items()}
        self._shared_s: dict[str, float] = {}  # when each was told of

    async def run(self) -> None:
        """Until cancelled; a store that is away is asked again a second later. After it each process decides alone."""
        self.record()
        try:
            while True:
                await self.exchange()  # first of all: a service may be held or paused
                await asyncio.sleep(EVERY_S / 2)
        finally:
            try:
                await self.exchange()
            finally:
                for dependency in list(self.dependencies.values()):
                    dependency.leave_fleet(self.timing.clock())

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
            except PerdureError:  # the store is unavailable: each process decides alone
                dependency.limiter.led = dependency.breaker.led = dependency.budget.unmetered = False
            except Exception:
                _log.exception("sharing what is known of %s failed", dependency.name)

    async def _share(self, d: Dependency) -> None:
        before, now = self._told.get(d.name) or Told(tokens=d.budget.reserve), told(d, self.timing.clock())
        now_s = self.timing.clock()
        gone_s = now_s - self._shared_s.get(d.name, -math.inf)
        soon = gone_s < IDLE_S if now == before else gone_s < EVERY_S - EARLY_S
        if soon and not d.troubled and now.failures == before.failures:
            return  # nothing happened, or nothing is amiss and there is time
        shared = await self.store.exchange(d.name, report(d, self.worker, before, now, now_s, gone_s))
        self._shared_s[d.name] = now_s
        learn(d, shared, now.tokens, self.timing.clock())
        now.tokens = shared.tokens * d.budget.reserve / TOKENS_MAX
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


def told(d: Dependency, now_s: float = math.inf) -> Told:
    """All that happened so far."""
    stale = (d.stale[0], d.stale[1], d.stale[2])
    return Told(
        d.requests, d.successes, d.failures, d.throttled, d.runs, d.budget.tokens, stale, d.limiter.asked_s,
        d.in_flight, d.breaker.looking(now_s),
    )  # fmt: skip


def report(d: Dependency, worker: int, before: Told, now: Told, now_s: float, gone_s: float) -> Report:
    """What happened between two looks, the last one this long ago."""
    # the store counts in tokens of a full reserve of TOKENS_MAX, however many a dependency may have
    net = (now.tokens - before.tokens) * TOKENS_MAX / d.budget.reserve
    requests = now.requests - before.requests
    asked_ms = round(max(0.0, now.asked_s - now_s) * 1000) if now.asked_s > before.asked_s else 0
    good, failed, throttled = (late - early for late, early in zip(now.stale, before.stale, strict=True))
    return Report(
        worker, requests, now.successes - before.successes, now.failures - before.failures,
        now.throttled - before.throttled, spent=max(0.0, -net), earned=max(0.0, net),
        rate=requests / max(EVERY_S / 2, min(gone_s, LATELY_S)) or None, runs=now.runs - before.runs, epoch=d.epoch,
        stale=(good, failed, throttled), row=d.breaker.row, pause_ms=asked_ms,
        in_flight=now.in_flight, looking=now.looking,
        standing=bool(now.in_flight or now.looking or before.in_flight or before.looking),
    )  # fmt: skip


def learn(dependency: Dependency, shared: Shared, tokens_told: float, now_s: float) -> None:
    """Take over what the fleet knows: a hold, a pause, and what each worker has of tokens and rate."""
    breaker, limiter, budget = dependency.breaker, dependency.limiter, dependency.budget
    limiter.led = breaker.led = True
    if shared.down:
        if dependency.held is None:
            dependency.held_s = now_s
        dependency.held = shared.reason or "held"
    elif dependency.held is not None:
        dependency.held = None
        breaker.reset(now_s)
    dependency.ramping, dependency.looking = shared.ramping, shared.looking
    _keep_pace(dependency, shared, now_s)
    since = budget.tokens - tokens_told  # while the store was asked
    budget.tokens = max(0.0, min(budget.reserve, shared.tokens * budget.reserve / TOKENS_MAX + since))
    if (
        not shared.down
        and shared.row_lasts_ms >= LAST_MS
        and breaker.too_many(shared.pace.row, shared.pace.answers)
    ):
        breaker.trip(now_s)


def _keep_pace(dependency: Dependency, shared: Shared, now_s: float) -> None:
    """Ask as fast as the fleet says, and not before the service wants to be asked."""
    pace, limiter = shared.pace, dependency.limiter
    dependency.expect(pace.share)
    if pace.epoch != dependency.epoch:
        # results count when all workers follow, and when those of earlier requests are back: refusals come faster
        follow_s = EVERY_S / 2 if pace.phase == "test" else 0.0
        dependency.epoch = pace.epoch
        dependency.epoch_s = now_s + follow_s + min(1.5 * dependency.latency_s, LATENCY_S_MAX)
    dependency.budget.unmetered = shared.rate is not None
    limiter.lead(now_s, shared.rate)
    if shared.pause_ms:
        limiter.pause(now_s, shared.pause_ms / 1000, heard=True)
