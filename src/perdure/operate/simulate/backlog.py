"""A backlog of documents and a service that is pressed or fails now and then: workers of a fleet beside a plain loop.

The loop has as many slots and repeats each call with full jitter until it succeeds.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from heapq import heappop, heappush

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

    took_s: float
    loop_s: float  # the plain loop
    requests: int
    loop_requests: int
    charged: int  # attempts
    dead: int
    put_off_s: float  # the longest time
    asked: float  # in the fault, of the capacity that was left
    answered: float
    loop_asked: float
    back_s: float | None  # after its end, until as much as before is answered; None: never


def drain(model: Model, seed: int) -> Drained:
    """Play one backlog twice."""
    world = World(model, POLICIES["ours"], seed, jobs=True).run()
    loop = Loop(model, seed)
    over_s = min(model.over_s, world.answers[-1])
    most = model.share * model.capacity * (over_s - model.begin_s)
    return Drained(
        max(world.answers), loop.now_s, len(world.sent), len(loop.sent), world.charged, world.killed,
        world.put_off_s, _within(world.sent, model.begin_s, over_s) / most,
        _within(world.answers, model.begin_s, over_s) / most, _within(loop.sent, model.begin_s, over_s) / most,
        _back_s(model, sorted(world.answers)),
    )  # fmt: skip


def _within(times_s: list[float], from_s: float, to_s: float) -> int:
    ordered = sorted(times_s)
    return bisect_left(ordered, to_s) - bisect_left(ordered, from_s)


def _back_s(model: Model, answers: list[float]) -> float | None:
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
            ok, known_s = self._ask(self.now_s)
            wait_s = 0.0 if ok else self.jitter.delay_s(tried, self.rand)
            heappush(slots, (known_s + wait_s, slot, calls - ok, 0 if ok else tried + 1))

    def _ask(self, now_s: float) -> tuple[bool, float]:
        model = self.model
        self.sent.append(now_s)
        ok, known_s = self.service.request(now_s)
        known_s += model.latency_s * model.spread * (2 * self.rand() - 1)
        return ok and self.rand() >= model.noise + model.flickers(now_s), known_s
