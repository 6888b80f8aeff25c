"""One operation that did not go through at once: whether, when and how often to ask again, and how it ends.

Nothing here waits or calls; the loops in policy.py do, so that plain and awaited calls share every decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.calls import events
from perdure.calls.breaker import Ticket
from perdure.calls.scope import Scope
from perdure.calls.verdict import Verdict
from perdure.core.scope import WORK
from perdure.errors import DependencyDown, PerdureError, RateLimited, Rescheduled, RetryLater

if TYPE_CHECKING:
    from perdure.calls.events import Happening
    from perdure.calls.policy import Policy

SPREAD = 0.1  # of a wait that the service asked for, so that not everybody comes back at once
SPREAD_S_MAX = 1.0
THROTTLE_COST = 0.5  # a service that asks for patience is alive: its retries cost less


class Instead:
    """What a policy answers although the call failed."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Run:
    """The requests of one operation, the waits between them, and what they cost."""

    def __init__(self, policy: Policy, began_s: float, deadline_s: float | None) -> None:
        self.policy = policy
        self.operation = policy.operation
        self.began_s = began_s
        self.deadline_s = deadline_s
        self.tries = 0
        self.waited_s = 0.0
        self.ticket: Ticket | None = None
        work = WORK.get()
        self.work = work
        self.probe = work is not None and work.probe == policy.name

    # --- before a request ------------------------------------------------------------------------

    def admit(self, now_s: float) -> float:
        """Seconds to wait before the next request; DependencyDown or RateLimited where none may go out."""
        state = self.policy.dependency
        if not self.probe:
            if self.work is not None and (state.held is not None or state.breaker.troubled):
                state.trust(self.work, now_s)
            if state.held is not None:
                raise self._down(state.held, heard=True)
            if state.breaker.troubled:
                self.ticket = state.breaker.admit(now_s)
                if self.ticket is None:
                    raise self._down("its breaker is open")
        wait_s = state.limiter.ask(now_s) if state.limiter.rate is not None else 0.0
        if wait_s > state.limiter.max_wait_s and self.tries == 0:  # what has begun may finish
            self._leave(now_s)
            self._publish("shed", "limiter", delay_s=wait_s)
            message = f"{self.policy.name} takes no more requests for now; the next turn is in {wait_s:.1f} s"
            raise RateLimited(message, delay_s=wait_s, ours=True)
        return wait_s

    def _down(self, why: str, heard: bool = False) -> DependencyDown:
        self._publish("held", why)
        message = f"{self.policy.name} is down: {why}"
        return DependencyDown(self.policy.name, message, confirmed=True, heard=heard)

    # --- after a request -------------------------------------------------------------------------

    def answered(self, now_s: float) -> None:
        """It came back well."""
        state = self.policy.dependency
        state.answered(now_s)
        if self.ticket is not None:
            state.breaker.succeeded(now_s, probe=self.ticket.probe)
            self.ticket = None
        if self.probe and self.work is not None:
            state.breaker.reset(now_s)
            self.work.probed = True
        self._ended(now_s, success=True)

    def left(self, now_s: float) -> None:
        """It was cancelled: that says nothing about the service."""
        self._leave(now_s)

    def failed(self, error: Exception, now_s: float) -> float | Instead | None:
        """Seconds to wait before the next request, an answer instead, or None: raise what was raised.

        Raises what tells the job layer more than the error itself does.
        """
        verdict = self.policy.classify(error)
        self.tries += 1
        self._tell(verdict, now_s)
        stop, wait_s = self._next(verdict, now_s)
        if stop is None:
            self._publish("retry", verdict.reason, wait_s, verdict, error)
            self.waited_s += wait_s
            return wait_s
        self._ended(now_s, success=False)
        return self._end(stop, wait_s, verdict, error)

    def _tell(self, verdict: Verdict, now_s: float) -> None:
        """Let the dependency's state learn from it; what is our own fault teaches it nothing."""
        state = self.policy.dependency
        if verdict.outage:
            state.failures += 1
            state.breaker.failed(now_s, probe=self.ticket is not None and self.ticket.probe)
            state.limiter.failed(now_s)
            self.ticket = None
        else:
            if self.ticket is not None and self.ticket.probe and verdict.status is not None:
                state.breaker.succeeded(now_s, probe=True)  # whatever it said, it is there
                self.ticket = None
            self._leave(now_s)
            if verdict.kind == "rate_limited":
                state.throttled += 1
                state.limiter.throttled(now_s, verdict.hint_s)
        if self.probe and self.work is not None and verdict.kind != "unknown":
            self.work.probed = not verdict.outage

    def _next(self, verdict: Verdict, now_s: float) -> tuple[str | None, float]:
        """Why there is no further request (None: there is one), and the wait before it."""
        policy, state = self.policy, self.policy.dependency
        if not verdict.again:
            return verdict.kind, 0.0
        wait_s = policy.backoff.delay_s(self.tries - 1, policy.timing.rand)
        if verdict.hint_s is not None:
            spread_s = min(SPREAD_S_MAX, SPREAD * verdict.hint_s) * policy.timing.rand()
            wait_s = max(wait_s, verdict.hint_s + spread_s)
            if verdict.hint_s > policy.hint_cap_s or self._late(now_s + verdict.hint_s):
                return "hint", wait_s
        if verdict.processed and not policy.idempotent and policy.key is None:
            return "not_idempotent", 0.0
        if self.probe:
            return "probe", 0.0
        if self.tries > policy.retries:
            return "exhausted", 0.0
        if self._late(now_s + wait_s):
            return "deadline", 0.0
        if state.held is not None or state.breaker.state == "open":
            return "breaker", 0.0
        if not state.budget.spend(THROTTLE_COST if verdict.kind == "rate_limited" else 1.0):
            return "budget", 0.0
        return None, wait_s

    def _late(self, then_s: float) -> bool:
        return self.deadline_s is not None and then_s > self.deadline_s

    # --- endings ---------------------------------------------------------------------------------

    def _end(self, stop: str, wait_s: float, verdict: Verdict, error: Exception) -> Instead | None:
        policy = self.policy
        _note(
            error,
            f"perdure: {self.operation} gave up after {self.tries} requests in {self.waited_s:.1f} s: {stop}",
        )
        if policy.best_effort:
            self._publish("best_effort", stop, None, verdict, error)
            return Instead(None)
        if not verdict.again or stop == "not_idempotent":
            self._publish("fast_fail", verdict.reason if not verdict.again else stop, None, verdict, error)
            return None
        if stop == "hint":
            self._publish("reschedule", stop, wait_s, verdict, error)
            raise _later(policy.name, wait_s, verdict) from error
        if stop == "probe" or (stop == "breaker" and self.work is not None):
            raise self._down(verdict.reason) from error
        self._publish("exhausted", stop, None, verdict, error)
        if callable(policy.on_exhausted):
            return Instead(policy.on_exhausted(error))
        if self.work is not None and policy.on_exhausted == "reschedule":
            raise self._rescheduled(stop, verdict, error) from error
        return None

    def _rescheduled(self, stop: str, verdict: Verdict, error: Exception) -> PerdureError:
        """The document is put off; where nothing was heard of the service for a while it is taken for away."""
        policy = self.policy
        if verdict.outage and policy.dependency.silent(policy.timing.clock()):
            return DependencyDown(policy.name, f"{policy.name} does not answer: {verdict.reason}")
        delay_s = policy.reschedule_s * (0.5 + policy.timing.rand())
        self._publish("reschedule", stop, delay_s, verdict, error)
        message = (
            f"{self.operation} failed {self.tries} times ({verdict.reason}); rescheduled in {delay_s:.0f} s"
        )
        return Rescheduled(message, retry_after_s=delay_s)

    def _leave(self, now_s: float) -> None:
        if self.ticket is not None:
            self.policy.dependency.breaker.left(now_s, self.ticket)
            self.ticket = None

    def _ended(self, now_s: float, success: bool) -> None:
        retries = self.tries if success else max(0, self.tries - 1)
        added_s = self.waited_s if retries else 0.0
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


class Inside(Run):
    """A call inside another policy's call, which owns the retries: it runs once, and the real request is its own."""

    def __init__(self, policy: Policy, outer: Scope, began_s: float, deadline_s: float | None) -> None:
        super().__init__(policy, began_s, deadline_s)
        outer.nested = True
        if not policy.dependency.nested:
            self._publish("nested", f"inside {outer.operation}, which owns the retries")
        policy.dependency.nested += 1

    def failed(self, error: Exception, now_s: float) -> None:
        """Raise what was raised; whoever is outside decides. The state learns from it all the same."""
        self.tries += 1
        self._tell(self.policy.classify(error), now_s)


def _later(name: str, wait_s: float, verdict: Verdict) -> RetryLater:
    message = f"{name} asked to wait {wait_s:.0f} s ({verdict.reason})"
    kind = RateLimited if verdict.kind == "rate_limited" else RetryLater
    return kind(message, delay_s=wait_s)


def _note(error: BaseException, text: str) -> None:
    """A note on somebody else's error, which may refuse it."""
    try:
        error.add_note(text)
    except Exception:
        return
