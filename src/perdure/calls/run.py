"""One operation that did not go through at once: whether, when and how often to ask again, and how it ends.

Nothing here waits or calls; the loops in policy.py do, so that plain and awaited calls share every decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.calls import events
from perdure.calls.breaker import Ticket
from perdure.calls.dependency import SURE
from perdure.calls.marks import mark, maybe_done, note
from perdure.calls.scope import Scope
from perdure.calls.verdict import Verdict
from perdure.core.knobs import DEFAULT
from perdure.core.scope import Work
from perdure.errors import (
    DependencyDown,
    Flickering,
    PerdureError,
    Permanent,
    RateLimited,
    Rescheduled,
    RetryLater,
)

if TYPE_CHECKING:
    from perdure.calls.events import Happening
    from perdure.calls.policy import Policy

SPREAD = 0.1  # of a wait that the service asked for, so that not everybody comes back at once
SPREAD_S_MAX = 1.0
THROTTLE_COST = 0.5  # a service that asks for patience is alive: its retries cost less
PATIENCE_S = DEFAULT.patience_outside_s
LOOK_S = 0.25  # a call of a job that waits in its slot looks for a turn this often
THROTTLED_S = 5.0  # while a service refuses everybody without saying for how long
SOON_S = 2.0  # a document whose call was refused comes back after about so long
LOOKS_PER_S = 10  # for a turn at most, so that a clock that stands still does not make it wait without end
LATENCY_WEIGHT = 0.2  # of the last answer
LATELY_S = 30.0  # a service that answered so long ago answers others
LATER_S_MAX = 86_400.0  # whatever a service asks for, it is asked again after a day


class Instead:
    """What a policy answers although the call failed."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Patience:
    """There is no turn yet: ask again after so many seconds."""

    __slots__ = ("wait_s",)

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s


class Run:
    """The requests of one operation, the waits between them, and what they cost."""

    def __init__(self, policy: Policy, work: Work | None, began_s: float, deadline_s: float | None) -> None:
        self.policy, self.work = policy, work
        self.operation = policy.operation
        self.began_s = self.sent_s = began_s  # the whole; the last request
        self.deadline_s = deadline_s
        self.tries = 0
        self.waiting_s: float | None = None  # since when, for a turn
        self.looks = 0  # for one, since then
        self.turned = False  # whether the limiter let it wait
        self.ticket: Ticket | None = None
        self.probe = work is not None and work.probe == policy.name

    # --- before a request ------------------------------------------------------------------------

    def admit(self, now_s: float) -> float | Instead | Patience:
        """Seconds to wait before the next request, an answer instead of it, or when to ask again.

        DependencyDown or RateLimited where none may go out.
        """
        state, wait_s = self.policy.dependency, 0.0
        if self.deadline_s is not None and now_s >= self.deadline_s:
            return self.late(now_s)
        self.turned &= self.waiting_s is not None
        if not self.probe and (state.held is not None or state.breaker.troubled):
            if self.work is not None and state.held is not None:
                state.trust(self.work, now_s)
            if state.held is not None:
                return self._refused(self._down(state.held, heard=True))
            self.ticket = state.breaker.admit(now_s)
            if self.ticket is None:
                return self._refused(self._down("its breaker is open"))
        if state.limiter.on:
            longest_s = self._patience(now_s)
            near_s = min(longest_s, LOOK_S) if state.limiter.led and self.work is not None else longest_s
            wait_s = state.limiter.ask(now_s, near_s)
            if wait_s > near_s:
                self._leave(now_s)
                if (
                    near_s < longest_s
                    and state.limiter.pause_s(now_s) <= longest_s
                    and self.looks < LOOKS_PER_S * max(state.knobs.patience_s, longest_s)
                ):
                    self.looks, self.turned = self.looks + 1, True
                    return Patience(self._in_time(now_s, LOOK_S * (0.5 + self.policy.timing.rand())))
                return self._refused(self._shed(now_s, wait_s))
        self.waiting_s, self.looks = None, 0
        self.turned |= wait_s > 0
        self.sent_s = now_s + wait_s
        return wait_s

    def _patience(self, now_s: float) -> float:
        """Seconds that this call may wait for its turn. The rate that the fleet leads changes: a job takes only a turn
        that is near and looks again, for as long as its slot may wait."""
        limiter = self.policy.dependency.limiter
        if limiter.led and self.work is not None:
            self.waiting_s = now_s if self.waiting_s is None else self.waiting_s
            longest_s = max(0.0, self.waiting_s + self.policy.dependency.knobs.patience_s - now_s)
        elif self.work is None or self.tries:
            longest_s = self.policy.dependency.knobs.patience_outside_s + limiter.pause_s(now_s)
        else:
            longest_s = limiter.max_wait_s
        if self._stays(now_s, pause_s := limiter.pause_s(now_s)):
            longest_s = max(longest_s, pause_s)
        return self._in_time(now_s, longest_s)

    def _in_time(self, now_s: float, wait_s: float) -> float:
        """The wait, but not beyond the deadline."""
        return wait_s if self.deadline_s is None else min(wait_s, max(0.0, self.deadline_s - now_s))

    def _stays(self, now_s: float, wait_s: float) -> bool:
        """Whether to keep the slot for this long: otherwise the calls that its stage made are made again, and those of
        a service that refuses some of them may never all succeed in one run."""
        made = 0 if self.work is None else self.work.unsaved(self.policy.name)
        state = self.policy.dependency
        return made > 0 and wait_s <= state.knobs.slot_s and state.answers(now_s, LATELY_S)

    def _shed(self, now_s: float, wait_s: float) -> RateLimited:
        self._publish("shed", "limiter", delay_s=wait_s)
        name, rand = self.policy.name, self.policy.timing.rand()
        if self.policy.dependency.limiter.pause_s(now_s) > 0:
            message = f"{name} refuses all requests and asked to wait {wait_s:.1f} s"
            return RateLimited(message, delay_s=wait_s + SPREAD_S_MAX * rand, ours=True, paused=True)
        message = f"{name} takes no more requests for now; the next turn is in {wait_s:.1f} s"
        return RateLimited(message, delay_s=wait_s + SOON_S * rand, ours=True)

    def _down(self, why: str, heard: bool = False) -> DependencyDown:
        self._publish("held", why)
        message = f"{self.policy.name} is down: {why}"
        return DependencyDown(self.policy.name, message, confirmed=True, heard=heard)

    def _refused(self, error: PerdureError) -> Instead:
        """No request goes out: whoever can do without it does, for everybody else the error tells why."""
        if self.policy.best_effort:
            self._publish("best_effort", str(error))
            return Instead(None)
        if callable(self.policy.on_exhausted):
            return Instead(self.policy.on_exhausted(error))
        raise error

    def wait(self, wait_s: float) -> None:
        """Wait for our turn."""
        try:
            self.policy.timing.sleep(wait_s)
        except BaseException:
            self.left(self.policy.timing.clock())
            raise

    async def await_(self, wait_s: float) -> None:
        """Wait for our turn, awaited."""
        try:
            await self.policy.timing.asleep(wait_s)
        except BaseException:
            self.left(self.policy.timing.clock())
            raise

    def late(self, now_s: float) -> Instead:
        """The deadline passed before our turn came: nothing is sent, and no service is blamed. Nor is the job, where
        the limiter let it wait."""
        policy = self.policy
        self._leave(now_s)
        self._ended(now_s, success=False)
        if self.turned and self.work is not None:
            return self._refused(self._shed(now_s, policy.dependency.limiter.pause_s(now_s)))
        error = TimeoutError(
            f"{self.operation}: no time was left when its turn came; the request was not sent"
        )
        self._publish("best_effort" if policy.best_effort else "exhausted", "deadline", error=error)
        if policy.best_effort:
            return Instead(None)
        if callable(policy.on_exhausted):
            return Instead(policy.on_exhausted(error))
        if self.work is None or policy.on_exhausted == "raise":
            raise error
        delay_s = min(policy.reschedule_s * (0.5 + policy.timing.rand()), LATER_S_MAX)
        self._publish("reschedule", "deadline", delay_s, error=error)
        raise Rescheduled(f"{error}; rescheduled in {delay_s:.0f} s", retry_after_s=delay_s)

    # --- after a request -------------------------------------------------------------------------

    def answered(self, now_s: float) -> None:
        """It came back well."""
        state = self.policy.dependency
        state.answered(now_s)
        state.stale[0] += now_s < state.epoch_s
        state.latency_s += LATENCY_WEIGHT * (now_s - self.sent_s - state.latency_s)
        if self.ticket is not None and self.ticket.probe:
            state.breaker.succeeded(now_s, probe=True)
        self.ticket = None
        if self.probe and self.work is not None:
            state.breaker.reset(now_s)
            self.work.probed = True
        self._ended(now_s, success=True)

    def left(self, now_s: float) -> None:
        """It was cancelled: that says nothing about the service."""
        self._leave(now_s)

    def failed(self, error: Exception, now_s: float, scope: Scope) -> float | Instead | None:
        """Seconds to wait before the next request, an answer instead, or None: raise what was raised.

        Raises what tells the job layer more than the error itself does.
        """
        verdict = self.policy.classify(error)
        self.tries += 1
        if not scope.nested:  # or it was another service that failed
            self._tell(verdict, now_s)
        stop, wait_s = self._next(verdict, now_s, scope)
        if stop is None:
            if self.work is not None:
                self.work.repeats(self.policy.name)
            self._publish("retry", verdict.reason, wait_s, verdict, error)
            return wait_s
        self._leave(now_s)
        self._ended(now_s, success=False)
        return self._end(stop, wait_s, verdict, error, now_s)

    def _tell(self, verdict: Verdict, now_s: float) -> None:
        """Let the dependency's state learn from it; what is our own fault teaches it nothing."""
        state = self.policy.dependency
        probing = self.ticket is not None and self.ticket.probe
        there = verdict.kind == "rate_limited" or (verdict.status is not None and not verdict.outage)
        if verdict.outage:
            state.missed(now_s)
            state.stale[1] += now_s < state.epoch_s
            state.breaker.failed(now_s, probe=probing)
            state.limiter.failed(now_s)
            self.ticket = None
        elif probing and there:  # whatever it said, it answers
            state.breaker.succeeded(now_s, probe=True)
            self.ticket = None
        if verdict.kind == "rate_limited":
            state.missed(now_s, throttled=True)
            state.stale[2] += now_s < state.epoch_s
            state.limiter.throttled(now_s)
        if verdict.hint_s is not None:
            state.asked_to_wait(now_s, verdict.hint_s)
        if self.probe and self.work is not None and (verdict.outage or there):
            self.work.probed = there

    def _next(self, verdict: Verdict, now_s: float, scope: Scope) -> tuple[str | None, float]:
        """Why there is no further request (None: there is one), and the wait before it."""
        policy, state = self.policy, self.policy.dependency
        if not verdict.passes:
            return verdict.kind, 0.0
        if scope.final or (verdict.processed and not policy.idempotent and policy.key is None):
            return "not_idempotent", 0.0
        wait_s = policy.backoff.delay_s(self.tries - 1, policy.timing.rand)
        if (hint_s := verdict.hint_s) is not None:
            # a job that would ask again gives its slot back meanwhile
            slot = self.work is not None and self.tries <= policy.retries
            keeps_s = state.knobs.slot_s if self._stays(now_s, hint_s) else 0.0
            cap_s = (
                min(policy.hint_cap_s, max(keeps_s, state.knobs.patience_s)) if slot else policy.hint_cap_s
            )
            if hint_s > cap_s or self._late(now_s + hint_s):
                return "hint", self._spread(hint_s, now_s)
            wait_s = max(wait_s, self._spread(hint_s, now_s))
        if self.probe and not state.ramping and state.share == 1:
            return "probe", 0.0  # one request tells whether a service is back that answers all or nothing
        if verdict.unwanted:  # of this call; the next attempt of the document is another one
            return "told_not_to_retry", 0.0
        if self.tries > policy.retries:
            return "exhausted", 0.0
        if self._late(now_s + wait_s):
            return "deadline", 0.0
        if not self.probe and (state.held is not None or state.breaker.state == "open"):
            return "breaker", 0.0
        if not state.budget.spend(THROTTLE_COST if verdict.kind == "rate_limited" else 1.0):
            return "budget", 0.0
        return None, wait_s

    def _spread(self, hint_s: float, now_s: float) -> float:
        """What the service asked for and a little more, so that not everybody comes at once."""
        spread_s = min(SPREAD_S_MAX, SPREAD * hint_s) * self.policy.timing.rand()
        if self.deadline_s is not None and not self._late(now_s + hint_s):
            spread_s = min(spread_s, self.deadline_s - now_s - hint_s)
        return hint_s + spread_s

    def _late(self, then_s: float) -> bool:
        return self.deadline_s is not None and then_s > self.deadline_s

    def _chance(self) -> float:
        """How likely it is that a run of this stage fails so by accident."""
        state, work = self.policy.dependency, self.work
        return state.chance(self.tries, 1 if work is None else state.calls_of(work))

    # --- endings ---------------------------------------------------------------------------------

    def _end(
        self, stop: str, wait_s: float, verdict: Verdict, error: Exception, now_s: float
    ) -> Instead | None:
        policy = self.policy
        took_s = now_s - self.began_s
        note(
            error, f"perdure: {self.operation} gave up after {self.tries} requests in {took_s:.1f} s: {stop}"
        )
        if policy.best_effort:
            self._publish("best_effort", stop, None, verdict, error)
            return Instead(None)
        if not verdict.passes or stop == "not_idempotent":
            self._publish("fast_fail", stop if verdict.passes else verdict.reason, None, verdict, error)
            if verdict.passes and self.work is not None:
                raise Permanent("maybe_done", maybe_done(self.operation, verdict)) from error
            mark(error, self.operation, verdict)
            return None
        if callable(policy.on_exhausted):
            self._publish("exhausted", stop, None, verdict, error)
            return Instead(policy.on_exhausted(error))
        if stop == "hint":
            self._publish("reschedule", stop, wait_s, verdict, error)
            raise self._later(wait_s, verdict, now_s) from error
        lost = (
            self.probe and verdict.outage and not policy.dependency.ramping
        )  # it did not find the service back
        if stop == "probe" or lost or (stop == "breaker" and self.work is not None):
            raise self._down(verdict.reason) from error
        self._publish("exhausted", stop, None, verdict, error)
        if self.work is not None and policy.on_exhausted == "reschedule":
            raise self._rescheduled(stop, verdict, error, now_s) from error
        return None

    def _later(self, wait_s: float, verdict: Verdict, now_s: float) -> RetryLater:
        """What the service asked for: of this call alone if it answers others meanwhile."""
        name, chance = self.policy.name, None
        if self.work is not None and self.policy.dependency.answers(now_s, LATELY_S + 2 * wait_s):
            chance = min(self._chance(), SURE)
        message = f"{name} asked to wait {wait_s:.0f} s ({verdict.reason})"
        kind = RateLimited if verdict.kind == "rate_limited" else RetryLater
        return kind(message, delay_s=min(wait_s, LATER_S_MAX), chance=chance)

    def _rescheduled(self, stop: str, verdict: Verdict, error: Exception, now_s: float) -> PerdureError:
        """The document is put off: for seconds and for nothing as long as chance explains it, because the service fails
        others as well or may be away; otherwise it is this call that fails."""
        policy = self.policy
        delay_s = policy.reschedule_s * (0.5 + policy.timing.rand())
        if verdict.hint_s is not None:
            delay_s = max(delay_s, self._spread(verdict.hint_s, now_s))
        delay_s = min(delay_s, LATER_S_MAX)
        failed = f"{self.operation} failed {self.tries} times ({verdict.reason})"
        asked_s = 0.0 if verdict.hint_s is None else self._spread(verdict.hint_s, now_s)
        soon_s = max(SOON_S * (0.5 + policy.timing.rand()), asked_s)
        chance = self._chance()
        self._publish("reschedule", stop, soon_s, verdict, error)
        if verdict.kind == "rate_limited" and chance == 1:  # it answers nobody, and asks for less
            return RateLimited(f"{failed}; {policy.name} asks for less", delay_s=max(THROTTLED_S, soon_s))
        failed = f"{failed}; {policy.name} does not answer all requests"
        return Flickering(failed, retry_after_s=delay_s, soon_s=soon_s, asked_s=asked_s, chance=chance)

    def _leave(self, now_s: float) -> None:
        if self.ticket is not None:
            self.policy.dependency.breaker.left(now_s, self.ticket)
            self.ticket = None

    def _ended(self, now_s: float, success: bool) -> None:
        retries = self.tries if success else max(0, self.tries - 1)
        added_s = self.sent_s - self.began_s if retries else 0.0
        self.policy.dependency.ended(retries, success, now_s - self.began_s, added_s, self.policy.timing)

    def _publish(
        self,
        happening: Happening,
        reason: str,
        delay_s: float | None = None,
        verdict: Verdict | None = None,
        error: Exception | None = None,
    ) -> None:
        delay_ms = None if delay_s is None else round(delay_s * 1000)
        error_type, message = ("", "") if error is None else events.told(error)
        events.publish(
            events.CallEvent(
                happening, self.policy.name, self.operation, self.tries, self.policy.retries + 1, reason, delay_ms,
                verdict, message, error_type,
            )
        )  # fmt: skip
