"""What this process knows of one service: may a request go out, and what came of the last ones.

All policies of one name share one dependency, whatever functions they guard: it is the service that is down or busy.
"""

from __future__ import annotations

import math

from perdure.calls.breaker import Breaker
from perdure.calls.budget import Budget
from perdure.calls.limiter import Limiter
from perdure.calls.timing import TIMING, Timing
from perdure.core.frozen import frozen
from perdure.core.scope import MESSENGERS, Work

WRITTEN_S = 2.0  # after which what one worker found out is in the store for certain
QUIET_S = 60.0  # a service that answered within this time is not away
ROWS_MAX = 10_000  # of operations that wait to be recorded; more are only counted


@frozen
class Operation:
    """One operation that ended, as the metrics keep it."""

    api_name: str
    retry_count: int
    success: bool
    latency_ms: int
    added_ms: int  # of these, by retries
    timestamp_ms: int


class Dependency:
    """The state of a service: retry budget, limiter, breaker, and counts of what happened."""

    def __init__(
        self, name: str, budget: Budget | None = None, limiter: Limiter | None = None, breaker: Breaker | None = None
    ) -> None:  # fmt: skip
        self.name = name
        self.budget = budget or Budget()
        self.limiter = limiter or Limiter()
        self.breaker = breaker or Breaker()
        self.held: str | None = None  # why the fleet or an operator holds it
        self.held_s = -math.inf  # when that was heard of
        self.success_s = -math.inf
        self.requests = self.successes = self.failures = self.throttled = 0
        self.runs = 0  # of stages that asked it
        self.operations = self.retried = self.recovered = self.retries = self.failed = self.nested = 0
        self.rows: list[Operation] | None = None  # None: nobody records them
        self.dropped = 0

    @property
    def troubled(self) -> bool:
        """Whether a request must ask before it goes out; False as long as all is well."""
        return self.breaker.troubled or self.limiter.rate is not None or self.held is not None

    def answered(self, now_s: float) -> None:
        """A request came back well."""
        self.successes += 1
        self.success_s = now_s
        self.budget.earn()
        self.limiter.succeeded(now_s)
        self.breaker.succeeded(now_s)

    def passed(self, began_s: float, now_s: float, timing: Timing) -> None:
        """An operation came back well at once, as most do: `answered` and `ended` in one, because it is so frequent."""
        self.successes += 1
        self.operations += 1
        self.success_s = now_s
        budget = self.budget
        if budget.tokens < budget.reserve:
            budget.earn()
        self.limiter.succeeded(now_s)
        self.breaker.succeeded(now_s)
        if self.rows is not None:
            self._record(0, True, now_s - began_s, 0.0, timing)

    def trust(self, work: Work, now_s: float) -> None:
        """The store let this work run well after we took the service for away: the fleet knows that it is back."""
        away_s = max(self.held_s if self.held is not None else -math.inf, self.breaker.down_s)
        if self.name in work.needs and work.allowed_s > away_s + WRITTEN_S:
            self.held = None
            self.breaker.reset(now_s)

    def silent(self, now_s: float) -> bool:
        """Whether nothing has come back well for a while."""
        return now_s - self.success_s > QUIET_S

    def ended(self, retries: int, success: bool, latency_s: float, added_s: float, timing: Timing) -> None:
        """An operation is over."""
        self.operations += 1
        if retries:
            self.retried += 1
            self.retries += retries
            self.recovered += success
        if not success:
            self.failed += 1
        if self.rows is not None:
            self._record(retries, success, latency_s, added_s, timing)

    def _record(self, retries: int, success: bool, latency_s: float, added_s: float, timing: Timing) -> None:
        if self.rows is None or len(self.rows) >= ROWS_MAX:
            self.dropped += 1
            return
        ms = (int(latency_s * 1000), int(added_s * 1000), int(timing.wall() * 1000))
        self.rows.append(Operation(self.name, retries, success, *ms))


DEPENDENCIES: dict[str, Dependency] = {}


def dependency(name: str) -> Dependency:
    """The one of that name, made where there is none."""
    found = DEPENDENCIES.get(name)
    return found if found is not None else DEPENDENCIES.setdefault(name, Dependency(name))


class Home:
    """Brings what calls in a cell learned of their dependencies to the worker, whose state outlives the cell."""

    def report(self) -> list[tuple[str, int, int, int, int]] | None:
        """Of each dependency that was asked: requests, successes, outages, throttles."""
        told = [
            (d.name, d.requests, d.successes, d.failures, d.throttled)
            for d in DEPENDENCIES.values()
            if d.requests
        ]
        return told or None

    def learn(self, report: list[tuple[str, int, int, int, int]]) -> None:
        """As if the calls had been made here, just now."""
        now_s = TIMING.clock()
        for name, requests, successes, failures, throttled in report:
            state = dependency(name)
            state.requests += requests
            state.runs += 1
            state.failures += failures
            state.throttled += throttled
            for _ in range(failures):
                state.breaker.failed(now_s)
                state.limiter.failed(now_s)
            for _ in range(throttled):
                state.limiter.throttled(now_s)
            for _ in range(successes):
                state.answered(now_s)


MESSENGERS["calls"] = Home()
