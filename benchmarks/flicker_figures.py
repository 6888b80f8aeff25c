"""For flicker.py: the figures of an overload, and of an organisation beside another one."""

from __future__ import annotations

import statistics

from benchmarks.flicker_trial import Log, rates

LOOKED_S = 12  # for so long after an overload


class Overloaded:
    """What the log of a service says of an overload, in parts of its capacity."""

    def __init__(self, log: Log, capacity: float, began_s: float, over_s: float) -> None:
        self.usual = rates(log, began_s - 5, began_s)[1]
        self.asked, self.answered = (rate / capacity for rate in rates(log, began_s, over_s))
        halves = (n / 2 for n in range(2 * LOOKED_S - 1))
        self.back_s = next(
            (s for s in halves if rates(log, over_s + s, over_s + s + 1)[1] >= 0.9 * self.usual), None
        )

    def __str__(self) -> str:
        back = "never" if self.back_s is None else f"after {self.back_s} s"
        return (
            f"asked {self.asked:.2f}, answered {self.answered:.2f}, back at 0.9 of {self.usual:.0f}/s {back}"
        )


class Quiet:
    """How long documents of the quiet organisation took, and how many calls a second the other one's made."""

    def __init__(self, waits: list[float], calls_per_s: float) -> None:
        parts = statistics.quantiles(waits, n=20)
        self.median_s, self.p95_s, self.calls_per_s = parts[9], parts[18], calls_per_s

    def __str__(self) -> str:
        return f"({self.calls_per_s:.0f} calls/s) median {self.median_s * 1000:.0f} ms, p95 {self.p95_s * 1000:.0f} ms"
