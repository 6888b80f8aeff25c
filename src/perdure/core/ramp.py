"""How a dependency that is down is probed, and how the load on it grows again once it answers.

Probes come after 4 s, then a fifth longer each time up to a minute: a short outage is noticed to be over soon after its
end, and an hour of it costs fewer than a hundred. The ramp begins with one document a second, or a tenth of what is
usual, and grows by half each second while the service answers, up to a little more than usual. It is halved while the
service fails more than it does usually, and ends where nothing is answered. Where nobody knows what is usual the ramp
doubles each second.

The usual rate of before need not be the rate that the service bears now. The ramp therefore counts the documents that
end well and lends a fifth more than that. While more and more end well, the ramp grows with them. If the number stays
the same, the service bears no more: the ramp lends less for a while, so that no queue stays inside the service, then as
much as ended well, then a little more, to look again. Failures have the same effect.

Documents that take long end late, so their number says little at first: up to the usual rate only failures hold the
ramp back. Where documents end as fast as they are lent (`prompt`), their number says enough at once: the ramp leaps as
long as they do, and at the first second in which they do not the service bears no more, below the usual rate as well.
Failures make the ramp wary for a minute: where some are asked again, the documents that end are not the whole load.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

from perdure.core.frozen import frozen
from perdure.core.knobs import DEFAULT, Knobs

PROBE_GROWTH = 1.2
START_PER_S, START_SHARE = 1.0, 0.1
GROWTH, GROWTH_UNKNOWN = 1.5, 2.0  # per second
OVER = 1.2  # of what is usual
#: Shares of the documents that end well, by the seconds since their number last grew: LIFT until LIFT_S, DRAIN until
#: DRAINED_S, all until STEADY_S, LOOK until LOOKED_S; then the seconds begin again at AGAIN_FROM_S.
LIFT, LIFT_S = 1.2, 3.0
DRAIN, DRAINED_S = 0.85, 6.0
STEADY_S = 10.0
LOOK, LOOKED_S, AGAIN_FROM_S = 1.1, 12.0, 5.0
FORGET = 0.9  # what is left of the most then, if less end well by now
GROWING = 1.05  # their number is no longer the same
SMOOTH_MOST, SMOOTH_FROM, SLOW_UNTIL = 0.6, 6.0, 2.0  # few documents a second show little in one second
NEAR = 1.5  # a service that does no more than so many times less than usual is not lent what is usual
#: Documents end as fast as they are lent if this part of them does, and half of one; PROMPT of them in a row prove it.
KEEPS, KEEPS_MORE, PROMPT = 0.9, 0.5, 5
LEAP = 1.4  # times as many as ended, while they end as fast as they are lent
CLEAN_SHARE = 0.1  # a second in which more than this fail proves nothing
SLOW = 0.7  # where less than this part ends, although no more are lent than ended before, they are prompt no more
WARY_S, PROMPT_MAX = 60.0, 1_000
CALM_SHARE = 0.8  # of what it answers usually; below, nothing is lifted
AGAIN_S = 5.0  # a service that answered for so long and is lost again is probed soon
BACK = 0.5  # per second, while it does not answer well
WELL_SHARE = 0.5  # of what it answers usually
LOST, LOST_CHANCE = 3, 0.01  # failures, and no success, end a ramp; more of them where they are usual
PER_S_MAX = 1e6
STEP_S_LEAST, STEP_S_MOST = 0.1, 10.0


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
    good: int = 0  # since the last step
    bad: int = 0
    done: int = 0  # documents that ended well since the last step
    since_s: float = 1.0  # the time in which these ended
    done_per_s: float = 0.0  # documents, of late
    most_per_s: float = 0.0  # the most of that
    flat_s: float = 0.0  # since it last grew; where few go, fewer seconds
    prompt: int = 0  # documents in a row that ended as fast as they were lent; below 0: as many do not count

    def read(self, text: str | None, now_ms: int) -> Ramp:
        """The ramp with what `to_text` wrote; an unreadable text says nothing."""
        try:
            at_ms, done, most, flat_s, prompt = (float(number) for number in json.loads(text or ""))
            proved = int(prompt)
        except (ValueError, TypeError, OverflowError):
            return self
        since_s = min(max(STEP_S_LEAST, (now_ms - at_ms) / 1_000), STEP_S_MOST)
        ramp = replace(self, since_s=since_s, done_per_s=done, most_per_s=most)
        return replace(ramp, flat_s=flat_s, prompt=proved)

    def to_text(self, now_ms: int) -> str:
        """What the next step must know."""
        numbers = (self.done_per_s, self.most_per_s, self.flat_s)
        return json.dumps([now_ms, *(round(number, 3) for number in numbers), self.prompt])

    def lost(self, share: float = 1.0) -> bool:
        """Whether the service is away again, if it answers this share usually."""
        usual = math.log(LOST_CHANCE) / math.log(1 - 0.7 * share) if share < 1 else LOST
        return not self.good and self.bad >= max(LOST, usual)

    def probes(self, probes: int) -> int:
        """After so many, what counts when it is lost: few, if it answered for a while."""
        return 0 if self.elapsed_s >= AGAIN_S else probes + 1

    def step(
        self, gone_s: float, nominal_per_s: float | None, share: float = 1.0, limited: bool = False
    ) -> Ramp:
        """What may be lent each second from now on, so long after the last step; `share`: what it answers usually,
        `limited`: the fleet limits the requests."""
        learned = self._learned(share, limited)
        gone_s = min(max(0.0, gone_s), 2.0)
        if not self._answers(WELL_SHARE * share):
            return replace(learned, per_s=max(START_PER_S, self.per_s * math.pow(BACK, gone_s)))
        growth = GROWTH_UNKNOWN if nominal_per_s is None else GROWTH
        grown = min(self.per_s * math.pow(growth, gone_s), PER_S_MAX)
        if nominal_per_s is None:
            return replace(learned, per_s=grown)
        bound = max(START_PER_S, learned._floor(nominal_per_s), learned._lifted())
        return replace(learned, per_s=min(grown, bound))

    def _floor(self, nominal_per_s: float) -> float:
        """A little more than usual, unless the service was seen to do about as much and no more, or documents end so
        soon that their number tells."""
        if self.prompt >= PROMPT:
            return 0.0
        most = OVER * nominal_per_s
        return 0.0 if self.flat_s >= LIFT_S and most <= NEAR * self.most_per_s else most

    def _answers(self, share: float) -> bool:
        return self.good >= share * (self.good + self.bad)

    @property
    def _keeps(self) -> bool:
        """Whether documents ended as fast as they were lent since the last step."""
        return self.done + KEEPS_MORE >= KEEPS * self.per_s * self.since_s

    def _proved(self, share: float) -> int:
        """`prompt` after this step, in which not many failed."""
        if share == 1 and self.bad <= CLEAN_SHARE * (self.good + self.bad):
            if self._keeps:
                return min(PROMPT_MAX, self.prompt + self.done)
            slow = self.per_s <= self.most_per_s and self.done_per_s < SLOW * self.per_s
            if self.prompt >= PROMPT and not slow:
                return self.prompt
        return min(0, self.prompt)

    def _learned(self, share: float, limited: bool) -> Ramp:
        """The ramp that knows what this step showed of the most that the service does."""
        part = min(SMOOTH_MOST, 1 - math.exp(-self.since_s * self.per_s / SMOOTH_FROM))
        done = self.done_per_s + part * (self.done / self.since_s - self.done_per_s)
        ramp, most = replace(self, done_per_s=done), self.most_per_s
        if limited:  # nothing shows that it bears more
            return replace(ramp, flat_s=max(self.flat_s, DRAINED_S))
        if not self._answers(CALM_SHARE * share):  # it bears less
            wary = -int(WARY_S * self.per_s)
            return replace(ramp, most_per_s=max(BACK * most, min(most, done)), flat_s=LIFT_S, prompt=wary)
        ramp = replace(ramp, prompt=ramp._proved(share))
        if ramp.prompt >= PROMPT and not self._keeps:  # it bears what ended, and no more
            most = max(most, min(self.done / self.since_s, self.per_s))
            ramp = replace(ramp, most_per_s=most)
        elif done >= GROWING * most:
            return replace(ramp, most_per_s=done, flat_s=0.0)
        flat_s = self.flat_s + self.since_s * self.per_s / (self.per_s + SLOW_UNTIL)
        if flat_s >= LOOKED_S:
            return replace(ramp, most_per_s=max(done, FORGET * most), flat_s=AGAIN_FROM_S)
        return replace(ramp, flat_s=flat_s)

    def _lifted(self) -> float:
        """What may be lent by what ends well."""
        most = max(self.most_per_s, self.done_per_s)
        if self.prompt >= PROMPT and self._keeps and not self.flat_s:
            return max(LIFT * most, LEAP * self.done / self.since_s)
        for until_s, part in ((LIFT_S, LIFT), (DRAINED_S, DRAIN), (STEADY_S, 1.0)):
            if self.flat_s < until_s:
                return part * most
        return LOOK * most


def turns(per_s: float, since_ms: int, now_ms: int) -> tuple[int, int]:
    """How many may go now that were paid for until `since_ms`, and until when they are paid for then.

    Never more than a second's worth and one, however long ago the last ones went.
    """
    due_ms = min(max(0.0, now_ms - since_ms), 1_000 + 1_000 / per_s)
    number = int(per_s * due_ms / 1_000 + 1e-6)
    return number, now_ms - int(due_ms - number * 1_000 / per_s + 1e-6)
