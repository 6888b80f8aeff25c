"""A service with a queue: it works through everything it took in, also for callers who have left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from perdure.operate.simulate.model import Model

#: However slow a service is, so many requests may wait.
QUEUE_LEAST = 10.0
#: A service that refuses takes this many seconds' worth of requests at once.
BURST_S = 0.25

#: "too many requests" says that the service is there.
Said = Literal["answered", "failed", "throttled"]


class Service:
    """Answers at the rate of its capacity, which falls in the fault. Exact, without events of its own."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.queue_max = max(QUEUE_LEAST, model.queue * model.timeout_s * model.capacity)
        self.backlog = 0.0  # requests taken in and not yet worked off
        self.at_s = 0.0

    def ask(self, now_s: float, rand: Callable[[], float]) -> tuple[Said, float]:
        """What the client of one request learns, and when; with the failures and the spread that chance brings."""
        model = self.model
        ok, known_s = self.request(now_s)
        if model.away(now_s):
            return "failed", known_s
        failing, throttling = model.noise + model.flickers(now_s), model.throttles(now_s)
        drawn = rand() if failing or throttling else 1.0
        if model.spread:
            known_s += model.latency_s * model.spread * (2 * rand() - 1)
        if not ok or drawn < failing:
            return "failed", known_s
        return ("throttled" if drawn < failing + throttling else "answered"), known_s

    def request(self, now_s: float) -> tuple[bool, float]:
        """Whether the client gets an answer, and when it knows."""
        model = self.model
        if model.refuse:
            return self._taken(now_s), now_s + model.latency_s
        self.backlog = max(0.0, self.backlog - self._worked(self.at_s, now_s))
        self.at_s = now_s
        if model.away(now_s):
            return False, now_s + (model.latency_s if model.away_s is None else model.away_s)
        if self.backlog + 1 > self.queue_max:
            return False, now_s + model.latency_s
        self.backlog += 1
        answered_s = self._worked_off(now_s, self.backlog) + model.latency_s
        timeout_s = now_s + model.timeout_s
        return (True, answered_s) if answered_s <= timeout_s else (False, timeout_s)

    def _taken(self, now_s: float) -> bool:
        """Whether there is room in a bucket that holds a part of a second's capacity in the fault."""
        model = self.model
        if not model.begin_s <= now_s < model.over_s:
            return True
        capacity = model.share * model.capacity
        if self.at_s < model.begin_s:
            self.backlog = 0.0
        self.backlog = max(0.0, self.backlog - capacity * (now_s - max(self.at_s, model.begin_s)))
        self.at_s = now_s
        taken = self.backlog + 1 <= BURST_S * capacity
        self.backlog += taken
        return taken

    def _worked(self, from_s: float, to_s: float) -> float:
        """Requests that can be worked off between the two."""
        model = self.model
        inside_s = max(0.0, min(to_s, model.over_s) - max(from_s, model.begin_s))
        return model.capacity * (to_s - from_s - inside_s * (1 - model.share))

    def _worked_off(self, now_s: float, work: float) -> float:
        """When so much is worked off."""
        model = self.model
        for until_s, rate in ((model.begin_s, 1.0), (model.over_s, model.share)):
            if now_s < until_s:
                possible = (until_s - now_s) * rate * model.capacity
                if work <= possible:
                    return now_s + work / (rate * model.capacity)
                work -= possible
                now_s = until_s
        return now_s + work / model.capacity
