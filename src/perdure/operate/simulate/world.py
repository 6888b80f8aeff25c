"""The events of one run, in virtual time. The seed decides everything."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from math import log

from perdure.calls.breaker import Ticket
from perdure.calls.jitter import FullJitter
from perdure.calls.run import PATIENCE_S
from perdure.operate.simulate.model import Model
from perdure.operate.simulate.policy import Client, Policy
from perdure.operate.simulate.service import Service

#: Jobs that were held are let go at a tenth of the usual rate first, then half as many again each second.
RAMP_START, RAMP_RISE, RAMP_TOP = 0.1, 1.5, 1.2
#: Held jobs look this often whether a probe that is under way has come back.
LOOK_S = 0.25
#: Jobs that cannot end stop the run after so many times as long as all their tries may take.
ROUNDS = 2


class Call:
    """One operation; with jobs, one job and the call it makes."""

    __slots__ = ("arrived_s", "client", "measured", "requests", "retries", "ticket", "tries")

    def __init__(self, client: Client, now_s: float, measured: bool) -> None:
        self.client = client
        self.arrived_s = now_s
        self.measured = measured
        self.retries = 0  # of this try
        self.requests = 0
        self.tries = 0  # that were charged
        self.ticket: Ticket | None = None


Step = Callable[[Call, float], None]


class World:
    """Clients of one policy, one service, one fault; alone, or with jobs that try failed calls again later."""

    def __init__(self, model: Model, policy: Policy, seed: int, jobs: bool = False) -> None:
        self.model, self.policy, self.jobs = model, policy, jobs
        self.rand = random.Random(seed).random
        self.service = Service(model)
        self.clients = [Client(policy, self.rand) for _ in range(model.clients)]
        self.jitter = FullJitter(model.base_s, model.cap_s)
        self.events: list[tuple[float, int, Step, Call]] = []
        self.number = 0
        self.sent: list[float] = []  # when each request went out
        self.answers: list[float] = []  # when each answer came that somebody waited for
        self.calls: list[tuple[float, float | None]] = []  # of measured ones: arrived, took (None: failed)
        self.live = 0  # measured ones that have not ended
        self.killed = 0
        self.requests = 0  # of measured ones

    def run(self) -> World:
        """Play until every measured call or job has ended."""
        model, events = self.model, self.events
        limit_s = model.end_s + ROUNDS * model.tries * model.again_s[1]
        arrive_s = 0.0
        while True:
            arrive_s -= log(1 - self.rand()) / model.rate
            while events and events[0][0] <= arrive_s:
                now_s, _, step, call = heappop(events)
                step(call, now_s)
            if arrive_s > model.end_s and (not self.live or arrive_s > limit_s):
                return self
            self._arrive(arrive_s)

    def _arrive(self, now_s: float) -> None:
        measured = now_s <= self.model.end_s
        self.live += measured
        client = self.clients[int(self.rand() * len(self.clients))]
        call = Call(client, now_s, measured)
        if client.held:
            client.held.append(call)
        else:
            self._start(call, now_s)

    def _at(self, at_s: float, step: Step, call: Call) -> None:
        self.number += 1
        heappush(self.events, (at_s, self.number, step, call))

    # --- one request -----------------------------------------------------------------------------

    def _start(self, call: Call, now_s: float) -> None:
        """Ask breaker and limiter, then send, now or at the turn that was given."""
        breaker, limiter = call.client.breaker, call.client.limiter
        if breaker is not None and breaker.troubled:
            call.ticket = breaker.admit(now_s)
            if call.ticket is None:
                self._refused(call, now_s)
                return
        longest_s = PATIENCE_S if call.retries or not self.jobs else None
        wait_s = 0.0 if limiter is None else limiter.ask(now_s, longest_s)
        if limiter is not None and wait_s > (longest_s or limiter.max_wait_s):
            if call.ticket is not None and breaker is not None:
                breaker.left(now_s, call.ticket)
                call.ticket = None
            self._shed(call, now_s, wait_s)
        elif wait_s > 0:
            self._at(now_s + wait_s, self._send, call)
        else:
            self._send(call, now_s)

    def _send(self, call: Call, now_s: float) -> None:
        call.requests += 1
        self.sent.append(now_s)
        ok, known_s = self.service.request(now_s)
        if self.model.noise and self.rand() < self.model.noise:
            ok = False
        self._at(known_s, self._answered if ok else self._failed, call)

    def _answered(self, call: Call, now_s: float) -> None:
        client = call.client
        if client.budget is not None:
            client.budget.earn()
        if client.limiter is not None:
            client.limiter.succeeded(now_s)
        if client.breaker is not None:
            client.breaker.succeeded(now_s, probe=call.ticket is not None and call.ticket.probe)
        self.answers.append(now_s)
        self._ended(call, now_s, ok=True)

    def _failed(self, call: Call, now_s: float) -> None:
        """Try again, if retries, breaker and budget allow it."""
        client = call.client
        if client.breaker is not None:
            client.breaker.failed(now_s, probe=call.ticket is not None and call.ticket.probe)
            call.ticket = None
        if client.limiter is not None:
            client.limiter.failed(now_s)
        if not self.policy.retry or call.retries >= self.model.retries:
            self._given_up(call, now_s)
        elif client.breaker is not None and client.breaker.state == "open":
            self._refused(call, now_s)
        elif client.budget is not None and not client.budget.spend():
            self._given_up(call, now_s)
        else:
            self._at(now_s + self.jitter.delay_s(call.retries, self.rand), self._start, call)
            call.retries += 1

    # --- endings, and the job around it ------------------------------------------------------------

    def _given_up(self, call: Call, now_s: float) -> None:
        """The call failed; a job is charged for it and tried again, a limited number of times."""
        call.tries += 1
        if not self.jobs or call.tries >= self.model.tries:
            self._ended(call, now_s, ok=False)
        else:
            self._again(call, now_s, 0.0)

    def _shed(self, call: Call, now_s: float, wait_s: float) -> None:
        """The limiter has no turn soon enough; where the job layer asks it, the job is put off and not charged."""
        if self.jobs and self.policy.shared:
            self._again(call, now_s, wait_s)
        else:
            self._given_up(call, now_s)

    def _refused(self, call: Call, now_s: float) -> None:
        """The breaker is open; where the job layer asks it, the job is held."""
        if not (self.jobs and self.policy.shared):
            self._given_up(call, now_s)
            return
        client = call.client
        client.held.append(call)
        if not client.releasing:
            client.releasing = True
            self._at(now_s + LOOK_S, self._release, call)

    def _again(self, call: Call, now_s: float, least_s: float) -> None:
        low_s, high_s = self.model.again_s
        self._at(now_s + max(least_s, low_s + (high_s - low_s) * self.rand()), self._anew, call)

    def _anew(self, call: Call, now_s: float) -> None:
        call.retries = 0
        if call.client.held:
            call.client.held.append(call)
        else:
            self._start(call, now_s)

    def _release(self, looked: Call, now_s: float) -> None:
        """Lend one held job as a probe; once the service is back let them go, ever faster."""
        client = looked.client
        breaker = client.breaker
        client.releasing = bool(client.held)
        if breaker is None or not client.held:
            return
        wait_s = LOOK_S
        if breaker.troubled:
            client.ramp = 0.0
        else:
            usual = self.model.rate / self.model.clients
            wait_s = 1 / (client.ramp or RAMP_START * usual)
            client.ramp = min(RAMP_TOP * usual, RAMP_RISE**wait_s / wait_s)
        if breaker.wait_s(now_s) == 0:
            call = client.held.popleft()
            call.retries = 0
            self._start(call, now_s)
        self._at(now_s + wait_s, self._release, looked)

    def _ended(self, call: Call, now_s: float, ok: bool) -> None:
        if call.measured:
            self.live -= 1
            self.requests += call.requests
            self.killed += not ok
            self.calls.append((call.arrived_s, now_s - call.arrived_s if ok else None))
