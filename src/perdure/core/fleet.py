"""What many workers know of a service together: what is usual, how fast it may be asked, how many retries are left."""

from __future__ import annotations

import math
from collections.abc import Iterable

TOKENS_MAX = 10.0
HALF_LIFE_S = 30.0
WINDOW_MS, WINDOW_MS_MAX = 1_000, 5_000


def fleet_rate(rates: Iterable[float | None]) -> float | None:
    """Requests a second that all workers may make together, given what each of them holds itself to (None: no bound).

    The lowest of them, for each that has one: who was throttled hardest knows best, and who was not throttled at all
    has no more to spend than those who were. None where nobody was.
    """
    bound = [rate for rate in rates if rate is not None]
    return min(bound) * len(bound) if bound else None


def tokens_left(tokens: float, spent: float, earned: float) -> float:
    """What is left for retries; never less than none, never more than the reserve."""
    return min(TOKENS_MAX, max(0.0, tokens - spent + earned))


def usual(nominal_per_s: float | None, counted: int, since_ms: int, now_ms: int) -> float | None:
    """What is usual, after `counted` more requests since then.

    Idle times say nothing about it: what is reported after a long silence happened in the second before.
    """
    if not counted:
        return nominal_per_s
    gone_ms = now_ms - since_ms
    window_s = (gone_ms if WINDOW_MS <= gone_ms <= WINDOW_MS_MAX else WINDOW_MS) / 1_000
    per_s = counted / window_s
    if nominal_per_s is None:
        return per_s
    return per_s + (nominal_per_s - per_s) * math.pow(2, -window_s / HALF_LIFE_S)
