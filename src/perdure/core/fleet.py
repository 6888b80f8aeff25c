"""What many workers know of a service together: what is usual, how fast it may be asked, how many retries are left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

TOKENS_MAX = 10.0  # of each worker
HALF_LIFE_S = 30.0
WINDOW_MS, WINDOW_MS_MAX = 1_000, 5_000

BreakerWord = Literal["closed", "half_open", "open"]


def breaker_word(down: bool, ramping: bool, looking: bool) -> BreakerWord:
    """The state of a breaker for people and metrics, the same at every door.

    `down`: nothing is sent, whoever decided that; `ramping`: but a few documents at a time; `looking`: many requests
    failed of late, and each one is a probe.
    """
    if down:
        return "half_open" if ramping else "open"
    return "half_open" if looking else "closed"


def rate_of_each(rate: float, asking: Sequence[float | None]) -> float | None:
    """Requests a second that each worker may make, of `rate` for all; 0: no limit. Workers that asked for nothing of
    late take no part of it."""
    return rate / max(1, sum(bool(per_s) for per_s in asking)) if rate else None


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
