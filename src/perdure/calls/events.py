"""What happens to calls, for logs and metrics: one event for each retry, fast failure, exhaustion, reschedule."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

from perdure.calls.scope import correlation_id
from perdure.calls.verdict import Verdict
from perdure.core.frozen import frozen
from perdure.core.scope import WORK

Happening = Literal["retry", "fast_fail", "exhausted", "reschedule", "best_effort", "shed", "held", "nested"]

_log = logging.getLogger("perdure.calls")
_log.addHandler(logging.NullHandler())  # silent where nobody has set up logging
_MESSAGE_MAX = 500
_LEVELS: dict[str, int] = {"exhausted": logging.ERROR, "fast_fail": logging.ERROR, "nested": logging.DEBUG}


@frozen
class CallEvent:
    """Something happened to an operation of a dependency."""

    happening: Happening
    dependency: str
    operation: str
    tries: int  # requests so far
    tries_max: int
    reason: str
    delay_ms: int | None = None
    verdict: Verdict | None = None
    error: str = ""
    error_type: str = ""

    def facts(self) -> dict[str, Any]:
        """The fields of its log line."""
        work = WORK.get()
        return {
            "dependency": self.dependency,
            "operation": self.operation,
            "retry_attempt": self.tries,
            "max_retries": self.tries_max,
            "delay_ms": self.delay_ms,
            "reason": self.reason,
            "error_type": self.error_type or None,
            "error_status": self.verdict.status if self.verdict else None,
            "error_message": self.error or None,
            "is_retryable": self.verdict.again if self.verdict else None,
            "correlation_id": correlation_id() or (f"{work.document_id}/{work.attempt}" if work else None),
            "job_id": work.job_id if work else None,
            "document_id": work.document_id if work else None,
        }


Listener = Callable[[CallEvent], None]
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener` at each event, until what this returns is called."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def publish(event: CallEvent) -> None:
    """Log it and tell those who listen; a listener that raises never harms the call."""
    level = _LEVELS.get(event.happening, logging.WARNING)
    if _log.isEnabledFor(level):
        words = event.happening.replace("_", " ")
        _log.log(level, f"call {words}: {event.operation}", extra={"facts": event.facts()})
    for listener in _listeners:
        try:
            listener(event)
        except Exception:
            continue


def told(error: BaseException) -> tuple[str, str]:
    """Type and message of an error as they are logged."""
    try:
        return type(error).__name__, str(error)[:_MESSAGE_MAX]
    except Exception:
        return type(error).__name__, ""
