"""A call inside another policy's call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.calls.marks import mark
from perdure.calls.run import Instead, Run
from perdure.calls.scope import Scope
from perdure.core.scope import Work

if TYPE_CHECKING:
    from perdure.calls.policy import Policy


class Inside(Run):
    """A call inside another policy's call, which owns the retries: it runs once, and the real request is its own."""

    def __init__(
        self, policy: Policy, outer: Scope, work: Work | None, began_s: float, deadline_s: float | None
    ) -> None:
        super().__init__(policy, work, began_s, deadline_s)
        self.outer = outer
        outer.nested = True
        if not policy.dependency.nested:
            self._publish("nested", f"inside {outer.operation}, which owns the retries")
        policy.dependency.nested += 1

    def late(self, now_s: float) -> Instead:
        """The call around us had no time left: it decides, and knows that nothing was sent."""
        self._leave(now_s)
        return self._refused(self._shed(now_s, 0.0))

    def failed(self, error: Exception, now_s: float, scope: Scope) -> Instead | None:
        """The outer call decides, unless this one is best-effort or must not be repeated."""
        policy, verdict = self.policy, self.policy.classify(error)
        self.tries += 1
        if not scope.nested:
            self._tell(verdict, now_s)
        self._leave(now_s)
        self._ended(now_s, success=False)
        if policy.best_effort:
            self._publish("best_effort", verdict.reason, None, verdict, error)
            return Instead(None)
        if verdict.passes and callable(policy.on_exhausted):
            return Instead(policy.on_exhausted(error))
        self.outer.final |= scope.final or (
            verdict.processed and not policy.idempotent and policy.key is None and verdict.passes
        )
        mark(error, self.operation, verdict)
        return None
