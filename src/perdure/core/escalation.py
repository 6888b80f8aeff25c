"""Who should look, and by when: pure, from what is stuck and what is dead.

tier 1  automatic   nothing that the engine does not see to itself
tier 2  warning     stuck for more than 24 hours, or more than 50 of them; a few documents used up their attempts; a
                    follow-up job is dead: answer within 4 business hours
tier 3  critical    more than 10 documents of a collection used up their attempts within an hour: answer within an hour
tier 4  emergency   more than 1,000 dead, or stuck for more than 7 days: answer at once, put right within 24 hours
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from perdure.core.frozen import frozen

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STUCK_MAX = 50
DEAD_MAX = 1_000
#: Documents of a collection that may use up their attempts within an hour before it is critical.
EXHAUSTED_MAX = 10
WARNING_MS, EMERGENCY_MS = DAY_MS, 7 * DAY_MS
#: Business hours: Monday to Friday, in UTC.
OPENS, CLOSES = 9, 17
NAMES = {1: "automatic", 2: "warning", 3: "critical", 4: "emergency"}


@frozen
class Escalation:
    """The highest tier that something calls for, why, and until when it wants an answer and a remedy."""

    tier: int
    why: str
    answer_by_ms: int | None = None
    settle_by_ms: int | None = None

    @property
    def name(self) -> str:
        return NAMES[self.tier]

    @property
    def runbook(self) -> str:
        """Its name, for `perdure runbook`."""
        return f"escalation-tier-{self.tier}"


def escalation(
    now_ms: int, *, stuck: int, stuck_since_ms: int | None, dead: int, exhausted: int, exhausted_since_ms: int | None,
    burst_ms: int | None = None, follow_ups: int = 0, follow_ups_since_ms: int | None = None,
) -> Escalation:  # fmt: skip
    """What the numbers call for; `since` are the times of the one that is stuck, or used up its attempts, longest, and
    `burst_ms` is when a collection first had too many of these within an hour that are still dead."""
    age_ms = 0 if stuck_since_ms is None else now_ms - stuck_since_ms
    if dead > DEAD_MAX:
        return Escalation(4, f"{dead:,} documents are dead", now_ms, now_ms + DAY_MS)
    if age_ms > EMERGENCY_MS:
        began_ms = now_ms - age_ms + EMERGENCY_MS
        why = f"{_documents(stuck)} stuck, one for {age_ms // DAY_MS} days"
        return Escalation(4, why, began_ms, began_ms + DAY_MS)
    if burst_ms is not None:
        why = f"{_documents(exhausted)} dead with no attempt left, more than {EXHAUSTED_MAX} of them within an hour"
        return Escalation(3, why, burst_ms + HOUR_MS)
    if age_ms > WARNING_MS or stuck > STUCK_MAX:
        began_ms = now_ms - max(0, age_ms - WARNING_MS)
        why = f"{_documents(stuck)} stuck, one for {age_ms // HOUR_MS} hours"
        return Escalation(2, why, business_hours_later(began_ms, 4))
    if exhausted or follow_ups:
        why = f"{_documents(exhausted)} dead with no attempt left" if exhausted else _follow_ups(follow_ups)
        began_ms = min(
            (at for at in (exhausted_since_ms, follow_ups_since_ms) if at is not None), default=now_ms
        )
        return Escalation(2, why, business_hours_later(began_ms, 4))
    return Escalation(1, "all is seen to by itself")


def business_hours_later(from_ms: int, hours: int) -> int:
    """The time after so many business hours."""
    at, left = datetime.fromtimestamp(from_ms / 1000, UTC), timedelta(hours=hours)
    while True:
        opens = at.replace(hour=OPENS, minute=0, second=0, microsecond=0)
        closes = opens.replace(hour=CLOSES)
        if at.weekday() < 5 and at < closes:
            at = max(at, opens)
            if closes - at >= left:
                return round((at + left).timestamp() * 1000)
            left -= closes - at
        at = opens + timedelta(days=1)


def _follow_ups(count: int) -> str:
    return f"{count:,} follow-up job is dead" if count == 1 else f"{count:,} follow-up jobs are dead"


def _documents(count: int) -> str:
    return f"{count:,} document is" if count == 1 else f"{count:,} documents are"
