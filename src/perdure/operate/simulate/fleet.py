"""What the store does for workers that call one service: what they tell each other, and whom it holds and lends.

The decisions are those of the real store (`core.pace`, `core.fleet`, `core.ramp`) and of the real workers
(`calls.fleet.learn`); only rows and transactions are left out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.calls.fleet import EARLY_S, EVERY_S, Told, learn, report, told
from perdure.core.fleet import TOKENS_MAX, tokens_left, usual
from perdure.core.pace import CALM, held, observe
from perdure.core.ramp import STEP_S_LEAST, STEP_S_MOST, Ramp, probe_after_ms, ramp_start, turns
from perdure.store.exchange import seen_of, shared_of

if TYPE_CHECKING:
    from perdure.operate.simulate.policy import Client
    from perdure.operate.simulate.world import Call

RECENT_S = 5.0


class Fleet:
    """The store of one fleet, as far as it knows a service."""

    def __init__(self, queued: deque[Call]) -> None:
        self.queued = queued  # jobs that wait for a slot
        self.pace, self.tokens = CALM, TOKENS_MAX
        self.rates: dict[int, tuple[float, float | None]] = {}  # by worker: when it reported, its limit
        self.told: dict[int, tuple[float, Told]] = {}
        self.nominal: float | None = None  # jobs a second that are usual
        self.started = 0  # jobs, since this was counted last
        self.down = False
        self.held: deque[Call] = deque()
        self.probes = 0
        self.probe_s = 0.0
        self.ramp_s: float | None = None  # since when it ramps
        self.ramp = Ramp(1.0, 0.0)
        self.lent_ms = 0
        self.stepped_s = 0.0  # when the ramp took its last step
        self.good = self.bad = 0  # runs of jobs that were lent, since then

    # --- what workers tell each other --------------------------------------------------------------

    def exchange(self, number: int, client: Client, now_s: float) -> None:
        """One worker reports and learns, as it does once a second."""
        state = client.dependency
        assert state is not None
        was_s, before = self.told.get(number, (now_s - EVERY_S, Told(tokens=TOKENS_MAX)))
        now = told(state)
        early = now.failures == before.failures and now_s - was_s < EVERY_S - EARLY_S
        if not state.troubled and not self.down and (now == before or early):
            return
        said = report(state, number, before, now, now_s, now_s - was_s)
        self.rates[number] = (now_s, said.rate)
        rates = [rate for seen_s, rate in self.rates.values() if now_s - seen_s < RECENT_S]
        self.tokens = tokens_left(self.tokens, said.spent, said.earned, len(rates))
        now_ms, phase = int(now_s * 1000), self.pace.phase
        if self.down and self.ramp_s is None:
            self.pace = held(self.pace, now_ms, said.pause_ms)
        else:
            self.pace = observe(self.pace, seen_of(said, self.tokens, rates), now_ms)
        self.tokens = TOKENS_MAX if self.pace.phase != phase else self.tokens
        shared = shared_of(
            now_ms, 1 if self.down else None, "away", self.tokens, self.pace,
            None if self.ramp_s is None else 1, rates,
        )  # fmt: skip
        learn(state, shared, now.tokens, now_s)
        now.tokens = shared.tokens
        self.told[number] = (now_s, now)

    # --- whom it holds and lends ---------------------------------------------------------------------

    def hold(self, now_s: float) -> None:
        """A breaker opened; one that is down is left as it is."""
        if not self.down:
            self.recall()
            self.down, self.probes, self.ramp_s = True, 0, None
            self.probe_s = now_s + probe_after_ms(0) / 1000

    def probed(self, ok: bool, now_s: float) -> None:
        """A job that was lent ended its run; `ok`: its last request was answered."""
        if not self.down:
            return
        if self.ramp_s is not None:
            self.good, self.bad = self.good + ok, self.bad + (not ok)
        elif ok:
            self.ramp_s, self.ramp, self.lent_ms = (
                now_s,
                Ramp(ramp_start(self.nominal), 0.0),
                int(now_s * 1000),
            )
            self.stepped_s, self.good, self.bad = now_s, 0, 0
        else:
            self.probe_s = max(self.probe_s, now_s + probe_after_ms(self.probes) / 1000)

    def sweep(self, now_s: float) -> list[Call]:
        """Once a second: the jobs that may go now although the service is down."""
        if not self.down:
            self.nominal = usual(self.nominal, self.started, int((now_s - 1) * 1000), int(now_s * 1000))
        self.started = 0
        if not self.down or not self.held:
            self.down = self.down and self.ramp_s is None
            return []
        if self.ramp_s is None:
            self.probe_s = max(self.probe_s, self.pace.pause_ms / 1000)
            if now_s < self.probe_s:
                return []
            self.recall()
            self.probes += 1
            self.probe_s = now_s + probe_after_ms(self.probes) / 1000
            return [self.held.popleft()]
        return self._ramped(now_s, now_s - self.ramp_s)

    def recall(self) -> int:
        """Take back the jobs that were lent and that no worker took up; how many."""
        lent = [call for call in self.queued if call.lent]
        others = [call for call in self.queued if not call.lent]
        self.queued.clear()
        self.queued.extend(others)
        self.held.extendleft(reversed(lent))
        for call in lent:
            call.lent = False
        return len(lent)

    def _ramped(self, now_s: float, elapsed_s: float) -> list[Call]:
        since_s = min(max(STEP_S_LEAST, now_s - self.stepped_s), STEP_S_MOST)
        ramp = replace(
            self.ramp, elapsed_s=elapsed_s, good=self.good, bad=self.bad, done=self.good, since_s=since_s
        )  # fmt: skip
        if ramp.lost(self.pace.share):
            self.recall()
            self.ramp_s, self.probes = None, ramp.probes(self.probes)
            self.probe_s = now_s + probe_after_ms(self.probes) / 1000
            return []
        gone_s = now_s - self.lent_ms / 1000
        ramp = ramp.step(gone_s, self.nominal, self.pace.share, self.pace.rate > 0)
        number, paid_ms = turns(ramp.per_s, self.lent_ms, int(now_s * 1000))
        if not number:  # the store takes a step with jobs that go
            return []
        number = min(number + self.recall(), int(ramp.per_s) + 1)
        if number > len(self.held):
            self.down, number = False, len(self.held)
        else:
            self.ramp, self.lent_ms, self.stepped_s = ramp, paid_ms, now_s
            self.bad, self.good = (0 if self.good else self.bad), 0
        return [self.held.popleft() for _ in range(number)]
