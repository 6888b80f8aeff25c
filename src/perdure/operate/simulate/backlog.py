"""A backlog of documents and a service that is pressed or fails now and then: workers of a fleet beside a plain loop.

The loop has as many slots and repeats each call with full jitter until it succeeds.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from statistics import median_high

from perdure.calls.jitter import FullJitter
from perdure.core.frozen import frozen
from perdure.operate.simulate.model import Model
from perdure.operate.simulate.policy import POLICIES
from perdure.operate.simulate.service import Service
from perdure.operate.simulate.world import World

#: The service is back where it answers this share of what was usual.
BACK = 0.9


@frozen
class Drained:
    """What became of a backlog."""

    took_s: float | None  # None: some documents never ended
    loop_s: float  # the plain loop
    requests: int
    loop_requests: int
    charged: int  # attempts
    dead: int
    put_off_s: float  # the longest time
    asked: float | None  # in the fault, of the capacity that was left; None: all were done before it
    answered: float | None
    loop_asked: float | None
    back_s: float | None  # after its end, until as much as before is answered; None: never
    first_s: float | None  # after its end, until the first answer
    rest_s: (
        float | None
    )  # after its end, or from the beginning of a fault without end, until the last document is done


def flickering(
    documents: int,
    calls: int,
    failing: float,
    workers: int = 2,
    throttling: float = 0.0,
    after_s: float = 0.0,
) -> Model:
    """Documents that wait for workers, and a service that fails this share of their calls, however few these are, and
    refuses another share with "too many requests", which may ask for a wait."""
    return Model(
        clients=workers, capacity=1e6, timeout_s=2.0, latency_s=0.2, spread=0.5, retries=3, base_s=0.2, cap_s=2.0,
        documents=documents, calls=calls, begin_s=0.0, fault_s=1e9, end_s=3_000.0, share=1.0, flicker=failing,
        throttle=throttling, after_s=after_s,
    )  # fmt: skip


def pressed(documents: int, calls: int, capacity: float, fault_s: float, workers: int = 2) -> Model:
    """The same with a service that refuses what is beyond its capacity, from the eighth second on."""
    calm = flickering(documents, calls, 0.0, workers)
    return replace(calm, capacity=capacity, refuse=True, begin_s=8.0, fault_s=fault_s)


def away(documents: int, calls: int, outage_s: float, workers: int = 2, fails_s: float = 0.01) -> Model:
    """The same with a service that answers no request from the eighth second on; requests fail after `fails_s`."""
    calm = flickering(documents, calls, 0.0, workers)
    return replace(calm, share=0.0, begin_s=8.0, fault_s=outage_s, away_s=fails_s)


def median(runs: Sequence[Drained]) -> dict[str, float | None]:
    """The median of each number; None where half of the runs have none."""
    found: dict[str, float | None] = {}
    for name in Drained.__dataclass_fields__:
        values = (getattr(run, name) for run in runs)
        ordered = [math.inf if value is None else value for value in values]
        middle = median_high(ordered)
        found[name] = None if middle == math.inf else middle
    return found


def drain(model: Model, seed: int) -> Drained:
    """Play one backlog twice."""
    world = World(model, POLICIES["ours"], seed, jobs=True).run()
    loop = Loop(model, seed)
    sent, answers = sorted(world.sent), sorted(world.answers)
    over_s = min(model.over_s, answers[-1]) if answers else model.over_s
    most = model.share * model.capacity * (over_s - model.begin_s)

    def part(times_s: list[float]) -> float | None:
        return _within(times_s, model.begin_s, over_s) / most if most > 0 else None

    took_s = None if world.live else answers[-1]
    first_s = next((at_s - model.over_s for at_s in answers if at_s > model.over_s), None)
    ended_s = model.over_s if took_s is not None and took_s >= model.over_s else 0.0
    return Drained(
        took_s, loop.now_s, len(sent), len(loop.sent), world.charged, world.killed,
        world.put_off_s, part(sent), part(answers), part(loop.sent), _back_s(model, answers),
        first_s, None if took_s is None else took_s - ended_s,
    )  # fmt: skip


def _within(ordered: list[float], from_s: float, to_s: float) -> int:
    return bisect_left(ordered, to_s) - bisect_left(ordered, from_s)


def _back_s(model: Model, answers: list[float]) -> float | None:
    if not answers or answers[-1] < model.over_s:
        return None
    usual = _within(answers, model.begin_s - 5, model.begin_s) / 5
    for half in range(60):
        at_s = model.over_s + half / 2
        if _within(answers, at_s, at_s + 1) >= BACK * usual:
            return half / 2
    return None


class Loop:
    """Slots that repeat each call until it succeeds."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.rand = model, random.Random(seed).random
        self.service, self.jitter = Service(model), FullJitter(model.base_s, model.cap_s)
        self.sent: list[float] = []
        self.left, self.now_s = model.documents, 0.0
        slots = [(0.0, number, 0, 0) for number in range(model.clients * model.slots)]
        while slots:
            self.now_s, slot, calls, tried = heappop(slots)
            if not calls:
                if not self.left:
                    continue
                self.left, calls = self.left - 1, model.calls
            self.sent.append(self.now_s)
            said, known_s = self.service.ask(self.now_s, self.rand)
            if ok := said == "answered":
                wait_s = 0.0
            else:
                least_s = model.after_s if said == "throttled" else 0.0
                wait_s = max(least_s, self.jitter.delay_s(tried, self.rand))
            heappush(slots, (known_s + wait_s, slot, calls - ok, 0 if ok else tried + 1))
