"""What workers tell each other about a service through the store, once a second and off the path of a call. Steps."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.fleet import TOKENS_MAX, WINDOW_MS, rate_of_each, tokens_left, usual
from perdure.core.pace import Pace, Seen, held, observe
from perdure.store.base import Query, Steps
from perdure.store.dialect import Dialect
from perdure.store.operations import Report
from perdure.store.records import Kpi, Reporter, Shared

RECENT_MS = 5_000
#: What a worker said of its requests in flight and its breaker holds for this long: it reports more often than that.
STANDING_MS = 12_000


def exchange(sql: Dialect, clock_ms: int | None, name: str, report: Report) -> Steps[Shared]:
    """Add what one worker saw; what all of them know."""
    now_ms = (yield Query(sql.NOW, (clock_ms,)))[0][0]
    yield Query(sql.DEPENDENCY_ADD, (name, now_ms - WINDOW_MS))  # a report is about the time before it
    found = yield Query(sql.DEPENDENCY_SHARED, (name,))
    down_ms, reason, tokens, nominal_per_s, counted, since_ms, paced, ramp_ms = found[0]
    counted, since_ms = (
        counted + (report.requests if report.runs is None else report.runs),
        since_ms or now_ms,
    )
    if down_ms is not None:  # while it is down or ramps nothing is usual
        counted, since_ms = 0, now_ms
    elif not WINDOW_MS > now_ms - since_ms >= 0:
        nominal_per_s = usual(nominal_per_s, counted, since_ms, now_ms)
        counted, since_ms = 0, now_ms
    seen = (name, report.worker, now_ms, report.rate, report.in_flight, report.looking)
    yield Query(sql.REPORTER_SEEN, seen)
    reporters = yield from _reporters(sql, name, now_ms)
    rates = rates_of(reporters, now_ms)
    tokens = tokens_left(tokens, report.spent, report.earned, len(rates))
    before = Pace.from_text(paced)
    if down_ms is not None and ramp_ms is None:
        pace = held(before, now_ms, report.pause_ms)
    else:
        pace = observe(before, seen_of(report, tokens, rates), now_ms)
    if pace.phase != before.phase:
        tokens = TOKENS_MAX
    yield Query(sql.DEPENDENCY_TOLD, (name, tokens, nominal_per_s, counted, since_ms, pace.to_text()))
    return shared_of(now_ms, down_ms, reason, tokens, pace, ramp_ms, rates, looking_of(reporters))


def _reporters(sql: Dialect, name: str, now_ms: int) -> Steps[list[Reporter]]:
    return [Reporter(*row) for row in (yield Query(sql.REPORTERS, (name, now_ms - STANDING_MS)))]


def rates_of(reporters: Sequence[Reporter], now_ms: int) -> list[float | None]:
    """How fast each worker asks that reported just now."""
    return [one.rate for one in reporters if one.seen_ms > now_ms - RECENT_MS]


def looking_of(reporters: Sequence[Reporter]) -> bool:
    """Whether the breaker of some worker looks."""
    return any(one.looking for one in reporters)


def seen_of(report: Report, tokens: float, rates: Sequence[float | None]) -> Seen:
    """A report as the pace reads it."""
    good, failed, throttled = (
        max(0, total - stale)
        for total, stale in zip(
            (report.successes, report.failures, report.throttled), report.stale, strict=True
        )
    )
    asked_per_s = sum(rate or 0.0 for rate in rates)
    return Seen(good, failed, throttled, report.epoch, tokens, asked_per_s, report.row, report.pause_ms)


def shared(sql: Dialect, clock_ms: int | None, name: str) -> Steps[Shared]:
    """What all of them know, for one that has nothing to tell."""
    now_ms = (yield Query(sql.NOW, (clock_ms,)))[0][0]
    found = yield Query(sql.DEPENDENCY_KNOWN, (name,))
    down_ms, reason, tokens, paced, ramp_ms = found[0] if found else (None, None, TOKENS_MAX, None, None)
    reporters = yield from _reporters(sql, name, now_ms)
    pace, rates = Pace.from_text(paced).at(now_ms), rates_of(reporters, now_ms)
    return shared_of(now_ms, down_ms, reason, tokens, pace, ramp_ms, rates, looking_of(reporters))


def shared_of(
    now_ms: int, down_ms: int | None, reason: str | None, tokens: float, pace: Pace, ramp_ms: int | None,
    rates: Sequence[float | None], looking: bool = False,
) -> Shared:  # fmt: skip
    return Shared(
        down_ms is not None, reason, tokens, rate_of_each(pace.rate, rates), len(rates), pace, ramp_ms is not None,
        max(0, pace.pause_ms - now_ms), max(0, now_ms - pace.row_ms) if pace.row else 0,
        looking,
    )  # fmt: skip


def forget(sql: Dialect, clock_ms: int | None, age_ms: int, limit: int) -> Steps[int]:
    """Delete what is older; how many operations."""
    now_ms = (yield Query(sql.NOW, (clock_ms,)))[0][0]
    yield Query(sql.REPORTERS_FORGET, (now_ms - 12 * RECENT_MS,))
    return len((yield Query(sql.CALLS_FORGET, (now_ms - age_ms, limit))))


def kpis(sql: Dialect, since_ms: int) -> Steps[list[Kpi]]:
    """One for each service that was called since then, by name."""
    found: list[Kpi] = []
    for name, operations, retried, recovered, retries, failed in (yield Query(sql.CALLS_COUNT, (since_ms,))):
        added = []
        if retried:
            added = yield Query(sql.CALLS_ADDED, (name, since_ms, retried * 5 // 100))
        found.append(
            Kpi(
                name, operations, retried / operations, recovered / retried if retried else None,
                retries / retried if retried else None, added[0][0] if added else None, failed / operations,
            )
        )  # fmt: skip
    return found
