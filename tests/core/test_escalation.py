"""Who should look, and by when."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.core.escalation import DAY_MS, HOUR_MS, NAMES, Escalation, business_hours_later, escalation
from perdure.watch.runbooks import runbook


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOW_MS = at("2026-11-18 12:00")  # a Wednesday
WELL: dict[str, Any] = {
    "stuck": 0, "stuck_since_ms": None, "dead": 0, "exhausted": 0, "exhausted_since_ms": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "tier", "why"),
    [
        ({}, 1, "by itself"),
        ({"stuck": 50, "stuck_since_ms": NOW_MS - DAY_MS}, 1, "by itself"),
        ({"dead": 1_000}, 1, "by itself"),
        ({"stuck": 1, "stuck_since_ms": NOW_MS - DAY_MS - 1}, 2, "1 document is stuck, one for 24 hours"),
        ({"stuck": 51, "stuck_since_ms": NOW_MS - HOUR_MS}, 2, "51 documents are stuck"),
        ({"stuck": 1, "stuck_since_ms": NOW_MS - 7 * DAY_MS}, 2, "for 168 hours"),
        (
            {"dead": 2, "exhausted": 1, "exhausted_since_ms": NOW_MS},
            2,
            "1 document is dead with no attempt left",
        ),
        ({"follow_ups": 2, "follow_ups_since_ms": NOW_MS}, 2, "2 follow-up jobs are dead"),
        (
            {"dead": 11, "exhausted": 11, "exhausted_since_ms": NOW_MS, "burst_ms": NOW_MS},
            3,
            "11 documents are dead with no attempt left, more than 10 of them within an hour",
        ),
        ({"stuck": 99, "stuck_since_ms": 0, "dead": 1, "exhausted": 1}, 4, "99 documents are stuck"),
        ({"stuck": 1, "stuck_since_ms": NOW_MS - 7 * DAY_MS - 1}, 4, "one for 7 days"),
        ({"dead": 1_001, "exhausted": 1}, 4, "1,001 documents are dead"),
    ],
)
def test_the_highest_tier_that_something_calls_for(facts: dict[str, Any], tier: int, why: str) -> None:
    found = escalation(NOW_MS, **{**WELL, **facts})
    assert (found.tier, why in found.why) == (tier, True), found


def test_by_when_counts_from_when_it_began() -> None:
    assert escalation(NOW_MS, **WELL).answer_by_ms is None
    critical = escalation(NOW_MS, **{**WELL, "dead": 11, "exhausted": 11, "burst_ms": NOW_MS - 1_000})
    assert critical.answer_by_ms == NOW_MS - 1_000 + HOUR_MS
    old = {"stuck": 1, "stuck_since_ms": NOW_MS - 8 * DAY_MS}
    emergency = escalation(NOW_MS, **{**WELL, **old})
    assert (emergency.answer_by_ms, emergency.settle_by_ms) == (NOW_MS - DAY_MS, NOW_MS)
    warning = escalation(NOW_MS, **{**WELL, "stuck": 1, "stuck_since_ms": NOW_MS - DAY_MS - HOUR_MS})
    assert warning.answer_by_ms == at("2026-11-18 15:00")


@pytest.mark.parametrize(
    ("from_", "by"),
    [
        ("2026-11-18 09:00", "2026-11-18 13:00"),
        ("2026-11-18 13:00", "2026-11-18 17:00"),
        ("2026-11-18 03:00", "2026-11-18 13:00"),
        ("2026-11-18 15:30", "2026-11-19 11:30"),
        ("2026-11-20 16:00", "2026-11-23 12:00"),  # over a weekend
        ("2026-11-21 11:00", "2026-11-23 13:00"),
    ],
)
def test_business_hours(from_: str, by: str) -> None:
    assert business_hours_later(at(from_), 4) == at(by)


@pytest.mark.parametrize("tier", NAMES)
def test_every_tier_has_its_page(tier: int) -> None:
    page = runbook(Escalation(tier, "").runbook)
    assert page.startswith("# ")
    assert "perdure " in page
