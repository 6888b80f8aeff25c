"""What this process knows of one service: may a request go out, and what came of the last ones.

All policies of one name share one dependency, whatever functions they guard: it is the service that is down or busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock

from perdure.calls.breaker import Breaker
from perdure.calls.budget import Budget
from perdure.calls.limiter import EPOCH_S, PAUSE_S_MAX, Limiter
from perdure.calls.timing import Timing
from perdure.core.fleet import BreakerWord, breaker_word
from perdure.core.frozen import frozen
from perdure.core.knobs import Knobs, give, knobs_of
from perdure.core.scope import WORK, Work

RECENT_S = 15.0  # what came back in this time, and up to as long before, tells how a service answers
SURE = 1 - 1e-9  # less than 1, which says that nobody was answered
DOUBT = 8  # failures that are added to what was seen: a few successes do not prove that a service never fails
NEVER = (-math.inf, 0, 0)
REFUSALS = 3  # in a row that say for how long to wait: then it is not one call that is to wait, but all; ...
REFUSED_CHANCE = 0.01  # ... more of them where refusals are usual
WRITTEN_S = 2.0  # after which what one worker found out is in the store for certain
ROWS_MAX = 10_000  # of operations that wait to be recorded; more are only counted
STRANGE_MAX = 100


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
    job_id: str | None = None  # for whom; None outside of jobs


Listener = Callable[[Operation], None]
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener` when an operation of a worker has ended, until what this returns is called."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


class Dependency:
    """The state of a service: retry budget, limiter, breaker, and counts of what happened."""

    def __init__(
        self,
        name: str,
        budget: Budget | None = None,
        limiter: Limiter | None = None,
        breaker: Breaker | None = None,
        *,
        knobs: Knobs | None = None,
    ) -> None:
        self.name = name
        self.tuned = knobs is not None  # in code
        if knobs is not None:
            give(name, knobs)
        self._given = (budget is not None, limiter is not None, breaker is not None)
        self.knobs = found = knobs_of(name)
        self.budget = budget or Budget(found.tokens, found.earned)
        self.limiter = limiter or Limiter(floor_per_s=found.floor_per_s)
        self.breaker = breaker or Breaker(
            round(found.failures), found.failing_share, round(found.failing_least), found.failing_window_s,
            open_s=found.probe_s, open_max_s=found.probe_max_s,
        )  # fmt: skip
        self.rows: list[Operation] | None = [] if recording else None  # None: nobody records them
        self._begin()

    def _begin(self) -> None:
        self.held: str | None = None  # why the fleet or an operator holds it
        self.held_s = -math.inf  # when that was heard of
        self.ramping = False  # held, but its documents come back little by little
        self.looking = False  # in a fleet: the breaker of some worker looks
        self.share = 1.0  # of requests that it answers when nobody presses it, as the fleet found out
        self.epoch, self.epoch_s = 0, -math.inf  # of the fleet's finding, and from when results belong to it
        self.stale = [0, 0, 0]  # successes, failures, refusals that came before
        self.latency_s = 0.2  # of answers of late, while something is amiss
        self.refusals, self._refused_at = 0, -1  # in a row, with a wait; successes before the last one
        self._asked_s = -math.inf  # the longest wait that these asked for
        self._older = self._newer = NEVER  # when a failure was counted, successes and failures before
        self.others = (0, 0)  # in a cell: successes and failures of late that its worker knew of
        self.success_s = -math.inf
        self._calls: dict[str, int] = {}  # by stage: the most that a run made without saving
        self.requests = self.successes = self.failures = self.throttled = 0
        self.runs = 0  # of stages that asked it
        #: Requests that were sent and are not back. Threads may add and discard at once: no lock is needed for that.
        self.flying: set[object] = set()
        self.nested = 0  # calls that ran inside another policy's
        self.dropped = 0  # operations that nobody wrote down in time

    def forget(self) -> None:
        """Begin again, as if the service had never been called."""
        self._begin()
        self.tune()
        self.limiter.led = self.breaker.led = False
        self.expect(1.0)
        self.budget.unmetered = False
        self.budget.tokens = self.budget.reserve
        self.limiter.reset()
        self.breaker.reset(-math.inf)
        self.breaker.strained = False
        if self.rows is not None:
            self.rows.clear()

    def tune(self) -> None:
        """Take over its numbers as code and environment want them now; parts that were given whole keep theirs."""
        self.knobs = found = knobs_of(self.name)
        budget_given, limiter_given, breaker_given = self._given
        if not budget_given:
            self.budget.reserve, self.budget.ratio = found.tokens, found.earned
            self.budget.tokens = min(self.budget.tokens, found.tokens)
        if not limiter_given:
            self.limiter.floor_per_s = found.floor_per_s
        if not breaker_given:
            breaker = self.breaker
            breaker.consecutive, breaker.share = round(found.failures), found.failing_share
            breaker.least, breaker.window_s = round(found.failing_least), found.failing_window_s
            breaker.open_s, breaker.open_max_s = found.probe_s, found.probe_max_s

    def leave_fleet(self, now_s: float) -> None:
        """There is no fleet any more: what it held or limited is free again, and this process judges by itself."""
        self.limiter.led = self.breaker.led = self.budget.unmetered = False
        self.ramping = self.looking = False
        self.limiter.lead(now_s, None)
        self.expect(1.0)
        if self.held is not None:
            self.held = None
            self.breaker.reset(now_s)

    @property
    def in_flight(self) -> int:
        """Requests that were sent and are not back."""
        return len(self.flying)

    @property
    def troubled(self) -> bool:
        """Whether a request must ask before it goes out; False as long as all is well."""
        return self.breaker.troubled or self.limiter.on or self.held is not None

    def breaker_word(self, now_s: float) -> BreakerWord:
        """The state of its breaker: in a fleet that of all workers, as `perdure dependencies` shows it."""
        breaker = self.breaker
        if self.held is not None:
            return breaker_word(True, self.ramping, False)
        probing = breaker.troubled and breaker.state == "half_open"
        looking = self.looking if breaker.led else breaker.looking(now_s)
        return breaker_word(breaker.troubled, probing, looking)

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

    def asked_to_wait(self, now_s: float, hint_s: float) -> None:
        """A request was refused for this long. That is its own wait, unless nobody is answered meanwhile: then the
        service asks all for silence, for as long as it asked any of them."""
        first = self._refused_at != self.successes
        self.refusals = 1 if first else self.refusals + 1
        self._asked_s = max(-math.inf if first else self._asked_s, now_s + min(hint_s, PAUSE_S_MAX))
        self._refused_at = self.successes
        by_chance = math.log(REFUSED_CHANCE) / math.log(1 - self.share) if self.share < 1 else 0.0
        if self.refusals >= max(REFUSALS, by_chance):
            self.limiter.pause(now_s, self._asked_s - now_s)

    def refused_last(self, now_s: float) -> tuple[int, float]:
        """Refusals since the last success, and the longest wait that they asked for and that is left."""
        if self._refused_at != self.successes or not self.refusals:
            return 0, 0.0
        return self.refusals, max(0.0, self._asked_s - now_s)

    def begin_in_cell(self, others: tuple[int, int], success_s: float, epoch: int, epoch_s: float) -> None:
        """What the worker knew; nothing was asked here yet."""
        self.others, self._older, self._newer = others, NEVER, NEVER
        self.refusals, self._refused_at, self._asked_s = 0, -1, -math.inf
        self.success_s, self.epoch, self.epoch_s, self.stale = success_s, epoch, epoch_s, [0, 0, 0]

    @property
    def fared(self) -> tuple[int, int]:
        """Successes and failures of late, for as long as there are failures."""
        _, successes, failures = self._older
        more = (self.successes - successes, self.failures + self.throttled - failures)
        return self.others[0] + more[0], self.others[1] + more[1]

    def chance(self, tries: int, calls: int = 1) -> float:
        """How likely all requests of one of these calls fail by chance, given how others fared of late;
        1 where nobody else was answered, because the service may be away."""
        good, bad = self.fared
        if not good:
            return 1.0
        bad = max(0, bad - tries)
        share = min(good / (good + bad + DOUBT), 1.2 * self.share)
        of_one = math.pow(1 - share, tries)
        return min(SURE, 1 - math.pow(1 - of_one, max(1, calls)))

    def calls_of(self, work: Work) -> int:
        """How many calls a run of this stage makes without saving, as far as runs that failed have shown."""
        stage = f"{work.pipeline} {work.stage}"
        if stage in self._calls or len(self._calls) < STRANGE_MAX:
            self._calls[stage] = max(self._calls.get(stage, 0), work.unsaved(self.name) + 1)
        return self._calls.get(stage, 1)

    def answers(self, now_s: float, within_s: float) -> bool:
        """Whether anybody was answered of late."""
        return self.fared[0] > 0 or now_s - self.success_s <= within_s

    def answered(self, now_s: float) -> None:
        """A request came back well."""
        self.successes += 1
        self.success_s = now_s
        self.budget.earn()
        self.limiter.succeeded(now_s)
        self.breaker.succeeded(now_s)

    def count(self, work: Work) -> None:
        """A request went out for this work; its stage may make several at once, from threads."""
        requests, name = work.requests, self.name
        with _counting:
            made = requests.get(name)
            if made is None:
                self.runs += 1
                requests[name] = 1
            else:
                requests[name] = made + 1

    def passed(self, began_s: float, now_s: float, timing: Timing) -> None:
        """An operation came back well at once, as most do: `answered` and `ended` in one, because it is so frequent."""
        self.successes += 1
        self.success_s = now_s
        if now_s < self.epoch_s:
            self.stale[0] += 1
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
