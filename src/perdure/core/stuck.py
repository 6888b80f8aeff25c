"""When a job is stuck, and what is done about it: pure, for the stuck sweep (`engine/stuck.py`)."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perdure.core.backoff import Backoff
from perdure.core.frozen import frozen

HOUR_MS = 3_600_000
Verdict = Literal["requeue", "skip", "bury"]


def attempts_by_collection() -> dict[str, int]:
    """The attempts of the collections that have their own number of them."""
    return {"archives": 3, "messages": 3, "chunks": 5, "threads": 5}


@frozen
class StuckPolicy:
    """How often stuck jobs are looked for, when a job is one, and how patient we are with it."""

    interval_s: float = 900
    threshold_ms: int = 24 * HOUR_MS
    base_ms: int = 300_000
    cap_ms: int = HOUR_MS
    attempts: dict[str, int] = field(default_factory=attempts_by_collection)

    def due(self, ran_ms: int, now_ms: int) -> bool:
        """Whether the last sweep is long enough ago; one of the future was made by a clock that has been put right."""
        return not 0 <= now_ms - ran_ms < self.interval_s * 1000

    def attempts_of(self, collection: str, attempts_max: int) -> int:
        """How many attempts a job may make: what it was given, and no more than its collection has now."""
        return min(attempts_max, self.attempts.get(collection, attempts_max))

    def verdict(self, made: int, attempts_max: int, requeues: int, last_ms: int, now_ms: int) -> Verdict:
        """What becomes of a stuck job that made so many attempts and was requeued so often, the last time then.

        A requeue is not an attempt: what never ran is not buried, however often it was requeued in vain.
        """
        if made >= attempts_max:
            return "bury"
        tried = made + requeues
        if tried and now_ms < last_ms + Backoff(self.base_ms, self.cap_ms).delay_ms(tried):
            return "skip"
        return "requeue"
