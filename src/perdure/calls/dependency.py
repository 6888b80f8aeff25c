"""What this process knows of one service: may a request go out, and what came of the last ones.

All policies of one name share one dependency, whatever functions they guard: it is the service that is down or busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock

from perdure.calls.breaker import Breaker
from perdure.calls.budget import Budget
from perdure.calls.limiter import EPOCH_S, Limiter
from perdure.calls.timing import TIMING, Timing
from perdure.core.frozen import frozen
from perdure.core.scope import MESSENGERS, WORK, Work

RECENT_S = 15.0  # what came back in this time, and up to as long before, tells how a service answers
DOUBT = 8  # failures that are added to what was seen: a few successes do not prove that a service never fails
NEVER = (-math.inf, 0, 0)
WRITTEN_S = 2.0  # after which what one worker found out is in the store for certain
ROWS_MAX = 10_000  # of operations that wait to be recorded; more are only counted


_counting = Lock()
recording = False  # whether operations are kept for somebody who writes them down


@frozen
class Operation:
    """One operation that ended, as the metrics keep it."""

    api_name: str
    retry_count: int
    success: bool
    latency_ms: int
    added_ms: int  # of these, by retries
    timestamp_ms: int
    job_id: int | None = None  # for whom; None outside of jobs


Listener = Callable[[Operation], None]
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener` when an operation of a worker has ended, until what this returns is called."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


class Dependency:
    """The state of a service: retry budget, limiter, breaker, and counts of what happened."""

    def __init__(
        self, name: str, budget: Budget | None = None, limiter: Limiter | None = None, breaker: Breaker | None = None
    ) -> None:  # fmt: skip
        self.name = name
        self.budget = budget or Budget()
        self.limiter = limiter or Limiter()
        self.breaker = breaker or Breaker()
        self.rows: list[Operation] | None = [] if recording else None  # None: nobody records them
        self._begin()

    def _begin(self) -> None:
        self.held: str | None = None  # why the fleet or an operator holds it
        self.held_s = -math.inf  # when that was heard of
        self.ramping = False  # held, but its documents come back little by little
        self.share = (
            1.0  # of requests that the service answers when nobody presses it, as the fleet found out
        )
        self.epoch = 0  # of the fleet's finding
        self._older = self._newer = NEVER  # when a failure was counted, successes and failures before
        self.others = (0, 0)  # in a cell: successes and failures of late that its worker knew of
        self.success_s = -math.inf
        self.requests = self.successes = self.failures = self.throttled = 0
        self.runs = 0  # of stages that asked it
        self.nested = 0  # calls that ran inside another policy's
        self.dropped = 0  # operations that nobody wrote down in time

    def forget(self) -> None:
        """Begin again, as if the service had never been called."""
        self._begin()
        self.expect(1.0)
        self.budget.tokens = self.budget.reserve
        self.limiter.reset()
        self.breaker.reset(-math.inf)
        self.breaker.strained = False
        if self.rows is not None:
            self.rows.clear()

    @property
    def troubled(self) -> bool:
        """Whether a request must ask before it goes out; False as long as all is well."""
        return self.breaker.troubled or self.limiter.rate is not None or self.held is not None

    def expect(self, share: float) -> None:
        """The fleet found out that the service answers this share of its requests, however few these are."""
        self.share = self.budget.share = self.limiter.share = self.breaker.expected = share

    def missed(self, now_s: float, throttled: bool = False) -> None:
        """A request failed, or was refused because there were too many."""
        if now_s - self._newer[0] > RECENT_S:
            mark = (now_s, self.successes, self.failures + self.throttled)
            # after a quiet time what came before says nothing
            self._older = self._newer if now_s - self._newer[0] < 2 * RECENT_S else mark
            self._newer = mark
        if throttled:
            self.throttled += 1
        else:
            self.failures += 1

    @property
    def fared(self) -> tuple[int, int]:
        """Successes and failures of late, for as long as there are failures."""
        _, successes, failures = self._older
        more = (self.successes - successes, self.failures + self.throttled - failures)
        return self.others[0] + more[0], self.others[1] + more[1]

    def chance(self, tries: int) -> float:
        """How likely it is that so many requests of one call failed by chance, as others fared of late; 1 where nobody
        else was answered, because the service may be away."""
        good, bad = self.fared
        bad = max(0, bad - tries)
        share = min(good / (good + bad + DOUBT), 1.2 * self.share)
        return math.pow(1 - share, tries) if good else 1.0

    def answered(self, now_s: float) -> None:
        """A request came back well."""
        self.successes += 1
        self.success_s = now_s
        self.budget.earn()
        self.limiter.succeeded(now_s)
        self.breaker.succeeded(now_s)

    def count(self, work: Work) -> None:
        """A request went out for this work; its stage may make several at once, from threads."""
        with _counting:
            self.runs += work.count(self.name) == 1

    def passed(self, began_s: float, now_s: float, timing: Timing) -> None:
        """An operation came back well at once, as most do: `answered` and `ended` in one, because it is so frequent."""
        self.successes += 1
        self.success_s = now_s
        budget = self.budget
        if budget.tokens < budget.reserve:
            budget.earn()
        limiter = self.limiter
        if limiter.rate is None and now_s - limiter.epoch_s < EPOCH_S:
            limiter.good += 1
        else:
            limiter.succeeded(now_s)
        if self.breaker.strained:
            self.breaker.succeeded(now_s)
        if self.rows is not None:
            self._record(0, True, now_s - began_s, 0.0, timing)

    def trust(self, work: Work, now_s: float) -> None:
        """The store let this work run well after we heard that the service is held: the fleet knows that it is back."""
        if self.name in work.needs and work.allowed_s > self.held_s + WRITTEN_S:
            self.held = None
            self.breaker.reset(now_s)

    def ended(self, retries: int, success: bool, latency_s: float, added_s: float, timing: Timing) -> None:
        """An operation is over."""
        if self.rows is not None:
            self._record(retries, success, latency_s, added_s, timing)

    def _record(self, retries: int, success: bool, latency_s: float, added_s: float, timing: Timing) -> None:
        ms = (int(latency_s * 1000), int(added_s * 1000), int(timing.wall() * 1000))
        work = WORK.get()
        self.record(Operation(self.name, retries, success, *ms, None if work is None else work.job_id))

    def record(self, operation: Operation) -> None:
        """Keep it and tell those who listen; one that raises never harms the call."""
        if self.rows is None:
            return
        self.keep(operation)
        for listener in _listeners:
            try:
                listener(operation)
            except Exception:
                continue

    def keep(self, *operations: Operation) -> None:
        """Keep them for whoever writes them down; beyond a bound they are only counted."""
        if self.rows is None:
            return
        room = max(0, ROWS_MAX - len(self.rows))
        self.rows += operations[:room]
        self.dropped += len(operations[room:])


DEPENDENCIES: dict[str, Dependency] = {}


def begin_recording() -> None:
    """Dependencies that are made from now on keep their operations."""
    global recording  # noqa: PLW0603
    recording = True


def dependency(name: str) -> Dependency:
    """The one of that name, made where there is none."""
    found = DEPENDENCIES.get(name)
    return found if found is not None else DEPENDENCIES.setdefault(name, Dependency(name))


def forget_all() -> None:
    """Forget what the calls of this process learned of every service: the next test begins without it."""
    for state in list(DEPENDENCIES.values()):
        state.forget()


@frozen
class Known:
    """What is known of a dependency, for a cell; or what a cell learned, for its worker."""

    name: str
    held: str | None = None
    open_: bool = False
    tokens: float = 0.0
    share: float = 1.0
    ramping: bool = False
    fared: tuple[int, int] = (0, 0)
    success_s: float = -math.inf
    requests: int = 0
    successes: int = 0
    failures: int = 0
    throttled: int = 0
    rows: tuple[Operation, ...] = ()


class Home:
    """A worker's state goes with a stage into its cell, and what the calls there learned comes home."""

    def pack(self) -> list[Known]:
        """All that has a name here."""
        return [
            Known(
                d.name,
                d.held,
                d.breaker.state == "open",
                d.budget.tokens,
                d.share,
                d.ramping,
                d.fared,
                d.success_s,
            )
            for d in DEPENDENCIES.values()
        ]

    def unpack(self, packed: list[Known]) -> None:
        """A cell begins with what its worker knew; it records its operations for the worker."""
        begin_recording()
        now_s = TIMING.clock()
        for known in packed:
            state = dependency(known.name)
            state.held, state.success_s, state.rows = known.held, known.success_s, []
            state.budget.tokens, state.ramping = known.tokens, known.ramping
            state.expect(known.share)
            state.others, state._older, state._newer = known.fared, NEVER, NEVER
            # what an earlier stage met in this cell is its worker's business by now
            state.breaker.reset(now_s)
            if known.open_:
                state.breaker.trip(now_s)

    def away(self, name: str) -> bool:
        """Whether the breaker is open."""
        return name in DEPENDENCIES and DEPENDENCIES[name].breaker.state == "open"

    def report(self) -> list[Known] | None:
        """Of each dependency that was asked."""
        told = [
            Known(
                d.name, requests=d.requests, successes=d.successes, failures=d.failures, throttled=d.throttled,
                tokens=d.budget.tokens, rows=tuple(d.rows or ()),
            )
            for d in DEPENDENCIES.values()
            if d.requests
        ]  # fmt: skip
        for state in DEPENDENCIES.values():  # this cell may serve another stage, and tells nothing twice
            state.requests = state.successes = state.failures = state.throttled = 0
            state.rows = []
        return told or None

    def learn(self, report: list[Known]) -> None:
        """As if the calls had been made here, just now."""
        now_s = TIMING.clock()
        for told in report:
            state = dependency(told.name)
            state.requests += told.requests
            state.runs += 1
            for _ in range(told.failures):
                state.missed(now_s)
                state.breaker.failed(now_s)
                state.limiter.failed(now_s)
            for _ in range(told.throttled):
                state.missed(now_s, throttled=True)
                state.limiter.throttled(now_s)
            for _ in range(told.successes):  # last, so that these failures are none in a row
                state.answered(now_s)
            state.budget.tokens = min(state.budget.tokens, told.tokens)
            for row in told.rows:
                state.record(row)


MESSENGERS["calls"] = Home()
