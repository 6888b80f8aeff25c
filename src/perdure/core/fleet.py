"""What many workers know of a service together: what is usual, how fast it may be asked, how many retries are left."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

TOKENS_MAX = 10.0  # of each worker
HALF_LIFE_S = 30.0
WINDOW_MS, WINDOW_MS_MAX = 1_000, 5_000


def fleet_rate(rates: Sequence[float | None]) -> float | None:
    """Requests a second that each worker may make, given what each of them found out for itself (None: no bound).

    The middle of what was found, once half of them were slowed down: one that had bad luck must not slow the others,
    and an overload that is real shows at most of them within a second. In simulations of a brown-out the lowest rate
    for all never let the fleet recover.
    """
    found = [rate for rate in rates if rate is not None]
    return statistics.median(found) if found and 2 * len(found) >= len(rates) else None


def tokens_left(tokens: float, spent: float, earned: float, workers: int) -> float:
    """What each worker has left for retries, after one of them spent and earned; between none and the reserve."""
    return min(TOKENS_MAX, max(0.0, tokens + (earned - spent) / max(1, workers)))


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
