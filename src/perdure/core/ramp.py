"""How a dependency that is down is probed, and how the load on it grows again once it answers.

Probes come after 4 s, then a fifth longer each time up to a minute: a short outage is noticed to be over soon after its
end, and an hour of it costs fewer than a hundred. The ramp begins with one document a second, or a tenth of what is
usual, and grows by half each second up to a little more than usual. Whatever was usual before need not be so for ever
(it may have been a quiet night): after five minutes without a failure that bound is lifted little by little. Where
nobody knows what is usual the ramp doubles each second.
"""

from __future__ import annotations

import math

PROBE_MS, PROBE_GROWTH, PROBE_MS_MAX = 4_000, 1.2, 60_000
START_PER_S, START_SHARE = 1.0, 0.1
GROWTH, GROWTH_UNKNOWN = 1.5, 2.0  # per second
OVER = 1.2  # of what is usual
LIFTED_S, LIFT_S = 300.0, 60.0  # when the bound begins to be lifted, and how long it takes to double
EXPONENT_MAX = 40.0


def probe_after_ms(probes: int) -> int:
    """The wait before the next probe, after so many."""
    return round(min(PROBE_MS * PROBE_GROWTH ** min(probes, 100), PROBE_MS_MAX))


def ramp_per_s(elapsed_s: float, nominal_per_s: float | None) -> float:
    """How many documents a second may be lent so long after the ramp began, where `nominal_per_s` are usual."""
    elapsed_s = min(max(0.0, elapsed_s), 10_000.0)
    if nominal_per_s is None:
        return START_PER_S * math.pow(GROWTH_UNKNOWN, min(elapsed_s, EXPONENT_MAX))
    start = max(START_PER_S, START_SHARE * nominal_per_s)
    grown = start * math.pow(GROWTH, min(elapsed_s, EXPONENT_MAX))
    lifted = math.pow(2, min(max(0.0, elapsed_s - LIFTED_S) / LIFT_S, EXPONENT_MAX))
    return min(grown, max(start, OVER * nominal_per_s) * lifted)


def turns(per_s: float, since_ms: int, now_ms: int) -> tuple[int, int]:
    """How many may go now that were paid for until `since_ms`, and until when they are paid for then.

    Never more than a second's worth and one, however long ago the last ones went.
    """
    due_ms = min(max(0.0, now_ms - since_ms), 1_000 + 1_000 / per_s)
    number = int(per_s * due_ms / 1_000 + 1e-6)
    return number, now_ms - int(due_ms - number * 1_000 / per_s + 1e-6)
