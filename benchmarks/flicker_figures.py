"""For flicker.py: the figures of an overload, and of an organisation beside another one."""

from __future__ import annotations

import statistics

from benchmarks.flicker_trial import Log, rates

LOOKED_S = 12  # for so long after an overload
RAMPS_S = 8.0  # after the first answer, when the release has grown, the backlog of an outage is measured


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


class Outage:
    """What the log of a service says of an outage, and of the backlog after it."""

    def __init__(self, log: Log, began_s: float, over_s: float, end_s: float, tail_s: float) -> None:
        """`end_s`: when the last document was done; `tail_s`: before that slots were empty."""
        self.asked = sum(began_s <= at_s < over_s for at_s, _ in log)
        self.usual = rates(log, began_s - 5, began_s)[1]
        first_s = next((at_s for at_s, status in log if at_s > over_s and status == 200), end_s)
        self.first_s, self.rest_s = first_s - over_s, end_s - over_s
        from_s, until_s = first_s + RAMPS_S, end_s - tail_s
        long = until_s > from_s + 1
        self.drained = rates(log, from_s, until_s)[1] / self.usual if long else None  # of the usual rate

    def __str__(self) -> str:
        drained = "nothing" if self.drained is None else f"{self.drained:.2f}"
        return (
            f"asked {self.asked:4} times; first answer {self.first_s:.1f} s after its end, from {RAMPS_S:.0f} s on "
            f"{drained} of the usual {self.usual:.0f}/s, back after {self.rest_s:.1f} s"
        )


class Quiet:
    """How long documents of the quiet organisation took, and how many calls a second the other one's made."""

    def __init__(self, waits: list[float], calls_per_s: float) -> None:
        parts = statistics.quantiles(waits, n=20)
        self.median_s, self.p95_s, self.calls_per_s = parts[9], parts[18], calls_per_s

    def __str__(self) -> str:
        return f"({self.calls_per_s:.0f} calls/s) median {self.median_s * 1000:.0f} ms, p95 {self.p95_s * 1000:.0f} ms"
