"""The events of one run, in virtual time. The seed decides everything."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import log

from perdure.calls.breaker import Ticket
from perdure.calls.dependency import WRITTEN_S
from perdure.calls.jitter import FullJitter
from perdure.calls.run import (
    LATENCY_WEIGHT,
    LOOK_S,
    PATIENCE_S,
    SOON_S,
    SPREAD,
    SPREAD_S_MAX,
    THROTTLE_COST,
    THROTTLED_S,
)  # fmt: skip
from perdure.core.knobs import DEFAULT
from perdure.core.outcome import LATER_MS_MIN, flicker_delay_ms, too_often
from perdure.operate.simulate.fleet import Fleet
from perdure.operate.simulate.model import Model
from perdure.operate.simulate.policy import Client, Policy
from perdure.operate.simulate.service import Service

#: Workers tell each other what they learned, and the store lends what it holds, this often.
EVERY_S = 1.0
#: Jobs that cannot end stop the run after so many times as long as all their tries may take.
ROUNDS = 2
LATER_S_LEAST = LATER_MS_MIN / 1000


class Call:
    """One operation; with jobs, one job and the call it makes."""

    __slots__ = (
        "arrived_s", "client", "given_back", "left", "lent", "measured", "placed", "placed_s", "probed", "requests",
        "retries", "sent_s", "ticket", "tries", "waiting_s",
    )  # fmt: skip

    def __init__(self, client: Client, now_s: float, measured: bool, calls: int = 1) -> None:
        self.client = client
        self.left = calls  # to be made
        self.arrived_s = now_s
        self.measured = measured
        self.retries = 0  # of this try
        self.requests = 0
        self.sent_s = 0.0  # the last of these
        self.tries = 0  # that were charged
        self.ticket: Ticket | None = None
        self.given_back = 0  # times, without a charge
        self.lent = False  # it may go although the service is held
        self.probed: bool | None = None  # lent: whether its last request was answered
        self.waiting_s = 0.0  # since when, for a turn; 0: not
        self.placed = False  # it has a slot
        self.placed_s = 0.0  # since when


Step = Callable[[Call, float], None]


class World:
    """Clients of one policy, one service, one fault; alone, or with jobs that try failed calls again later."""

    def __init__(self, model: Model, policy: Policy, seed: int, jobs: bool = False) -> None:
        self.model, self.policy, self.jobs = model, policy, jobs
        self.rand = random.Random(seed).random
        self.service = Service(model)
        self.queued: deque[Call] = deque()  # jobs that wait for a slot
        self.fleet = Fleet(self.queued) if jobs and policy.shared else None
        self.clients = [Client(policy, self.rand, self.fleet is not None) for _ in range(model.clients)]
        self.jitter = FullJitter(model.base_s, model.cap_s)
        self.events: list[tuple[float, int, Step, Call]] = []
        self.number = 0
        self.sent: list[float] = []  # when each request went out
        self.answers: list[float] = []  # when each answer came that somebody waited for
        self.calls: list[tuple[float, float | None]] = []  # of measured ones: arrived, took (None: failed)
        self.free = [client for client in self.clients for _ in range(model.slots)] if self.fleet else []
        self.live = 0  # measured ones that have not ended
        self.killed = 0
        self.requests = 0  # of measured ones
        self.charged = 0  # tries that failed and count
        self.put_off_s = 0.0  # the longest time that a job was, unless the service was away

    def run(self) -> World:
        """Play until every measured call or job has ended."""
        model, events = self.model, self.events
        limit_s = model.end_s + ROUNDS * model.tries * model.again_s[1]
        arrive_s = 0.0
        if self.fleet is not None:
            for client in self.clients:
                self._at(EVERY_S * self.rand(), self._exchange, Call(client, 0.0, False))
            self._at(EVERY_S, self._sweep, Call(self.clients[0], 0.0, False))
        if model.documents:
            return self._drain(limit_s)
        while True:
            arrive_s -= log(1 - self.rand()) / model.rate
            while events and events[0][0] <= arrive_s:
                now_s, _, step, call = heappop(events)
                step(call, now_s)
            if arrive_s > model.end_s and (not self.live or arrive_s > limit_s):
                return self
            self._arrive(arrive_s)

    def _drain(self, limit_s: float) -> World:
        """Play until all that was there at the beginning has ended."""
        for _ in range(self.model.documents):
            self._arrive(0.0)
        while self.live and self.events and self.events[0][0] <= limit_s:
            now_s, _, step, call = heappop(self.events)
            step(call, now_s)
        return self

    def _arrive(self, now_s: float) -> None:
        measured = now_s <= self.model.end_s
        self.live += measured
        client = self.clients[int(self.rand() * len(self.clients))]
        self._begin(Call(client, now_s, measured, self.model.calls), now_s)

    def _begin(self, call: Call, now_s: float) -> None:
        """Start a call; a job is held while the service is down, and waits for a free slot."""
        fleet = self.fleet
        if fleet is None:
            self._start(call, now_s)
        elif fleet.down and not call.lent:
            fleet.held.append(call)
        else:
            self.queued.append(call)
            self._fill(now_s)

    def _fill(self, now_s: float) -> None:
        """Hand queued jobs to workers with a free slot."""
        fleet = self.fleet
        while fleet is not None and self.queued and self.free:
            call = self.queued.popleft()
            if fleet.down and not call.lent:
                fleet.held.append(call)
                continue
            call.client = self.free.pop(int(self.rand() * len(self.free)))
            call.placed, call.placed_s = True, now_s
            fleet.started += 1
            self._start(call, now_s)

    def _leave(self, call: Call, now_s: float) -> None:
        """Give the slot of a job back; one that was lent tells what it found."""
        if self.fleet is not None and call.probed is not None:
            self.fleet.probed(call.probed, now_s)
            call.probed = None
        if self.fleet is not None and call.placed:
            call.placed = False
            self.free.append(call.client)
            self._fill(now_s)

    def _at(self, at_s: float, step: Step, call: Call) -> None:
        self.number += 1
        heappush(self.events, (at_s, self.number, step, call))

    # --- one request -----------------------------------------------------------------------------

    def _start(self, call: Call, now_s: float) -> None:
        """Ask breaker and limiter, then send, now or at the turn that was given."""
        breaker, limiter = call.client.breaker, call.client.limiter
        if self._held(call, now_s):
            self._refused(call, now_s)
            return
        if breaker is not None and breaker.troubled and not call.lent:
            call.ticket = breaker.admit(now_s)
            if call.ticket is None:
                self._refused(call, now_s)
                return
        longest_s = (
            LOOK_S if self.fleet is not None else PATIENCE_S if call.retries or not self.jobs else None
        )
        wait_s = 0.0 if limiter is None else limiter.ask(now_s, longest_s)
        if limiter is not None and wait_s > (longest_s or limiter.max_wait_s):
            if call.ticket is not None and breaker is not None:
                breaker.left(now_s, call.ticket)
                call.ticket = None
            if self.fleet is not None:
                call.waiting_s = call.waiting_s or now_s
                left_s = call.waiting_s + DEFAULT.patience_s - now_s
                if limiter.pause_s(now_s) <= left_s > 0:
                    self._at(now_s + LOOK_S * (0.5 + self.rand()), self._start, call)
                    return
            self._shed(call, now_s, wait_s)
        elif wait_s > 0:
            self._at(now_s + wait_s, self._send, call)
        else:
            self._send(call, now_s)

    def _held(self, call: Call, now_s: float) -> bool:
        """Whether the worker knows that the service is held. A job that the store let run well after that shows that it
        is back."""
        state = call.client.dependency
        if state is None or state.held is None or call.lent:
            return False
        if call.placed_s > state.held_s + WRITTEN_S:
            state.held = None
            state.breaker.reset(now_s)
        return state.held is not None

    def _send(self, call: Call, now_s: float) -> None:
        call.requests += 1
        call.waiting_s = 0.0
        call.sent_s = now_s
        self.sent.append(now_s)
        if call.client.dependency is not None:
            call.client.dependency.requests += 1
        said, known_s = self.service.ask(now_s, self.rand)
        steps = {"answered": self._answered, "failed": self._failed, "throttled": self._throttled}
        self._at(known_s, steps[said], call)

    def _answered(self, call: Call, now_s: float) -> None:
        client = call.client
        call.probed = True if call.lent else None
        if client.dependency is not None:
            client.dependency.successes += 1
            client.dependency.stale[0] += now_s < client.dependency.epoch_s
            client.dependency.latency_s += LATENCY_WEIGHT * (
                now_s - call.sent_s - client.dependency.latency_s
            )
        if client.budget is not None:
            client.budget.earn()
        if client.limiter is not None:
            client.limiter.succeeded(now_s)
        if client.breaker is not None:
            probe = call.lent or (call.ticket is not None and call.ticket.probe)
            client.breaker.succeeded(now_s, probe=probe)
        self.answers.append(now_s)
        call.left -= 1
        if call.left:
            call.retries = call.given_back = 0
            call.ticket = None
            self._start(call, now_s)
        else:
            self._ended(call, now_s, ok=True)

    def _failed(self, call: Call, now_s: float) -> None:
        """Try again, if retries, breaker and budget allow it."""
        client = call.client
        call.probed = False if call.lent else None
        if client.dependency is not None:
            client.dependency.missed(now_s)
            client.dependency.stale[1] += now_s < client.dependency.epoch_s
        if client.breaker is not None:
            client.breaker.failed(now_s, probe=call.ticket is not None and call.ticket.probe)
            call.ticket = None
        if client.limiter is not None:
            client.limiter.failed(now_s)
        if self._probe_failed(call):
            self._refused(call, now_s)
        elif not self.policy.retry or call.retries >= self.model.retries:
            self._given_up(call, now_s)
        elif self._held(call, now_s) or (client.breaker is not None and client.breaker.state == "open"):
            self._refused(call, now_s)
        elif client.budget is not None and not client.budget.spend():
            self._given_up(call, now_s)
        else:
            self._repeat(call, now_s, 0.0)

    def _repeat(self, call: Call, now_s: float, least_s: float) -> None:
        """Send the request again after a while."""
        self._at(now_s + max(least_s, self.jitter.delay_s(call.retries, self.rand)), self._start, call)
        call.retries += 1

    def _throttled(self, call: Call, now_s: float) -> None:
        """The service refuses this request as one too many: it is there, so the breaker learns nothing. A job that is
        to wait longer than its patience gives its slot back."""
        client, asked_s = call.client, self.model.after_s
        call.probed = True if call.lent else None
        if client.dependency is not None:
            client.dependency.missed(now_s, throttled=True)
            client.dependency.stale[2] += now_s < client.dependency.epoch_s
            if asked_s:
                client.dependency.asked_to_wait(now_s, asked_s)
        if client.limiter is not None:
            client.limiter.throttled(now_s)
        asked_s += min(SPREAD_S_MAX, SPREAD * asked_s) * self.rand()
        if asked_s > DEFAULT.patience_s and client.dependency is not None:
            self._put_off(call, now_s, asked_s)
        elif not self.policy.retry or call.retries >= self.model.retries:
            self._given_up(call, now_s, asked_s, throttled=True)
        elif self._held(call, now_s) or (client.breaker is not None and client.breaker.state == "open"):
            self._refused(call, now_s)
        elif client.budget is not None and not client.budget.spend(THROTTLE_COST):
            self._given_up(call, now_s, asked_s, throttled=True)
        else:
            self._repeat(call, now_s, asked_s)

    def _probe_failed(self, call: Call) -> bool:
        """Whether the one that was to find out found that the service is still away."""
        state, fleet = call.client.dependency, self.fleet
        return (
            call.lent
            and fleet is not None
            and fleet.ramp_s is None
            and state is not None
            and state.share == 1
        )

    # --- endings, and the job around it ------------------------------------------------------------

    def _given_up(self, call: Call, now_s: float, asked_s: float = 0.0, throttled: bool = False) -> None:
        """The call failed; a job is charged for it and tried again, a limited number of times. Workers of a fleet
        charge nothing as long as chance explains it, and try again in seconds."""
        if call.client.dependency is not None:
            chance = call.client.dependency.chance(call.retries + 1)
            if not too_often(chance, call.given_back):
                soon_s = max(SOON_S * (0.5 + self.rand()), asked_s)
                if throttled and chance == 1:  # it answers nobody, and asks for less
                    self._put_off(call, now_s, max(THROTTLED_S, soon_s))
                else:
                    self._put_off(call, now_s, flicker_delay_ms(soon_s, asked_s, call.given_back) / 1000)
                return
        call.tries, call.given_back = call.tries + 1, 0
        self.charged += 1
        if not self.jobs or call.tries >= self.model.tries:
            self._ended(call, now_s, ok=False)
        else:
            self._again(call, now_s, 0.0)

    def _put_off(self, call: Call, now_s: float, for_s: float) -> None:
        """Try the job again later, without a charge."""
        call.given_back += 1
        self.put_off_s = max(self.put_off_s, for_s)
        self._at(now_s + for_s, self._anew, call)
        self._leave(call, now_s)

    def _shed(self, call: Call, now_s: float, wait_s: float) -> None:
        """The limiter has no turn soon enough; where the job layer asks it, the job is put off and not charged."""
        if self.fleet is not None:
            paused = call.client.limiter is not None and call.client.limiter.pause_s(now_s) > 0
            soon_s = max(LATER_S_LEAST, wait_s + (SPREAD_S_MAX if paused else SOON_S) * self.rand())
            self.put_off_s = max(self.put_off_s, soon_s)
            self._at(now_s + soon_s, self._anew, call)
            self._leave(call, now_s)
        elif self.jobs and self.policy.shared:
            self._again(call, now_s, wait_s)
        else:
            self._given_up(call, now_s)

    def _refused(self, call: Call, now_s: float) -> None:
        """The breaker is open; where the job layer asks it, the job is held, and so are all others."""
        if self.fleet is None:
            self._given_up(call, now_s)
            return
        self.fleet.hold(now_s)
        self._leave(call, now_s)
        call.lent, call.retries = False, 0
        self.fleet.held.append(call)

    def _again(self, call: Call, now_s: float, least_s: float) -> None:
        low_s, high_s = self.model.again_s
        self._at(now_s + max(least_s, low_s + (high_s - low_s) * self.rand()), self._anew, call)
        self._leave(call, now_s)

    def _anew(self, call: Call, now_s: float) -> None:
        call.retries, call.lent, call.waiting_s = 0, False, 0.0
        self._begin(call, now_s)

    # --- once a second -----------------------------------------------------------------------------

    def _exchange(self, call: Call, now_s: float) -> None:
        assert self.fleet is not None
        self.fleet.exchange(id(call.client), call.client, now_s)
        self._at(now_s + EVERY_S / 2, self._exchange, call)

    def _sweep(self, clock: Call, now_s: float) -> None:
        assert self.fleet is not None
        lent = self.fleet.sweep(now_s)
        for number, call in enumerate(lent):  # workers take them up one after the other
            call.lent = True
            self._at(now_s + EVERY_S * number / len(lent), self._begin, call)
        self._at(now_s + EVERY_S, self._sweep, clock)

    def _ended(self, call: Call, now_s: float, ok: bool) -> None:
        self._leave(call, now_s)
        if call.measured:
            self.live -= 1
            self.requests += call.requests
            self.killed += not ok
            self.calls.append((call.arrived_s, now_s - call.arrived_s if ok else None))
