"""How a dependency that is down is probed, and how the load on it grows again once it answers.

Probes come after 4 s, then a fifth longer each time up to a minute: a short outage is noticed to be over soon after its
end, and an hour of it costs fewer than a hundred. The ramp begins with one document a second, or a tenth of what is
usual, and grows by half each second while the service answers, up to a little more than usual; while more come in than
go out it grows beyond. It is halved while the service fails more than it does usually, and ends where nothing is
answered. Whatever was usual before need not be so now (it may have been a quiet night): after half a minute that bound
is lifted little by little. Where nobody knows what is usual the ramp doubles each second.
"""

from __future__ import annotations

import math

from perdure.core.frozen import frozen
from perdure.core.knobs import DEFAULT, Knobs

PROBE_GROWTH = 1.2
START_PER_S, START_SHARE = 1.0, 0.1
GROWTH, GROWTH_UNKNOWN = 1.5, 2.0  # per second
OVER = 1.2  # of what is usual
LIFTED_S, LIFT_S = 30.0, 20.0  # when the bound begins to be lifted, and how long it takes to double
BEHIND = 1.05  # per second, beyond that while more come in than go out
AGAIN_S = 5.0  # a service that answered for so long and is lost again is probed soon
BACK = 0.5  # per second, while it does not answer well
WELL_SHARE = 0.5  # of what it answers usually
LOST, LOST_CHANCE = 3, 0.01  # failures, and no success, end a ramp; more of them where they are usual
EXPONENT_MAX = 40.0
PER_S_MAX = 1e6


def probe_after_ms(probes: int, knobs: Knobs = DEFAULT) -> int:
    """The wait before the next probe, after so many."""
    return round(1_000 * min(knobs.probe_s * PROBE_GROWTH ** min(probes, 100), knobs.probe_max_s))


def ramp_start(nominal_per_s: float | None) -> float:
    """How many documents a second may be lent at first, where so many are usual."""
    return START_PER_S if nominal_per_s is None else max(START_PER_S, START_SHARE * nominal_per_s)


@frozen
class Ramp:
    """How a ramp stands: what may be lent each second, and what came of what was lent."""

    per_s: float
    elapsed_s: float  # since it began
    good: int = 0  # requests since the last step
    bad: int = 0
    arriving_per_s: float = 0.0  # documents that came to wait since the last step

    def lost(self, share: float = 1.0) -> bool:
        """Whether the service is away again, if it answers this share usually."""
        usual = math.log(LOST_CHANCE) / math.log(1 - 0.7 * share) if share < 1 else LOST
        return not self.good and self.bad >= max(LOST, usual)

    def probes(self, probes: int) -> int:
        """After so many, what counts when it is lost: few, if it answered for a while."""
        return 0 if self.elapsed_s >= AGAIN_S else probes + 1

    def step(self, gone_s: float, nominal_per_s: float | None, share: float = 1.0) -> float:
        """What may be lent each second from now on, so long after the last step; `share`: what it answers usually."""
        gone_s = min(max(0.0, gone_s), 2.0)
        if self.good < WELL_SHARE * share * (self.good + self.bad):
            return max(START_PER_S, self.per_s * math.pow(BACK, gone_s))
        growth = GROWTH_UNKNOWN if nominal_per_s is None else GROWTH
        grown = min(self.per_s * math.pow(growth, gone_s), PER_S_MAX)
        if nominal_per_s is None:
            return grown
        late_s = self.elapsed_s - LIFTED_S if self.good else 0.0
        lifted = math.pow(2, min(max(0.0, late_s) / LIFT_S, EXPONENT_MAX))
        behind = self.good and self.arriving_per_s > self.per_s
        beyond = self.per_s * math.pow(BEHIND, gone_s) if behind else self.per_s
        return min(grown, max(beyond, START_PER_S, OVER * nominal_per_s * lifted))


def turns(per_s: float, since_ms: int, now_ms: int) -> tuple[int, int]:
    """How many may go now that were paid for until `since_ms`, and until when they are paid for then.

    Never more than a second's worth and one, however long ago the last ones went.
    """
    due_ms = min(max(0.0, now_ms - since_ms), 1_000 + 1_000 / per_s)
    number = int(per_s * due_ms / 1_000 + 1e-6)
    return number, now_ms - int(due_ms - number * 1_000 / per_s + 1e-6)
