"""Whether a service fails because it is pressed, or whatever is asked of it: the fleet finds out by asking less.

    free ──tokens run low, a limiter began──► test ──share stayed as it was──► free, and this share is expected
                                               │
                                               └─share rose─► pressed ──no limiter is left──► free
                                                                 └─share stayed after all─► free, as above

A service that fails now and then fails as often when it is asked less: to spare it helps nobody. One that is pressed
answers more of what it is asked. So all workers ask for half of the usual together, and the answers weigh "the share
stays" against "the share is that much higher" until one is 9 times as likely. One worker alone could find out nothing.

All of it is pure; the state is one text of the dependency's row, None while all is well.
"""

from __future__ import annotations

import json
import math
from dataclasses import astuple, replace
from typing import Literal, cast

from perdure.core.frozen import frozen

Phase = Literal["free", "test", "pressed"]

#: What is asked in a test, of what was asked before.
SLOWER = 0.5
#: Results and answers that a share is taken from at least, unless that takes too long; above this nothing is amiss.
RESULTS_LEAST, GOOD_LEAST, GOOD_MS, WELL = 20, 20, 5_000, 0.97
#: Below this share a service counts as away or choked, and is never taken for one that only fails now and then.
AWAY = 0.1
#: A hypothesis wins when it is so much likelier.
SURE = math.log(9)
#: Shares that are tried for each.
STEPS = 50
#: A test that does not decide is decided by what is likelier, if there were some results.
TEST_MS, TEST_RESULTS = 6_000, 8
#: What is asked while it is pressed is known after this, when all workers have reported.
SETTLED_MS = 3_000
#: Results count half after this.
HALF_LIFE_MS = 3_000
#: Fewer tokens than this for retries begin a test; it is less where failures are expected.
TOKENS_LOW = 5.0
#: A verdict that it is not the load may be wrong, and then nothing shows it: it is tested again after this, and after
#: twice as long each time, up to a bound.
AGAIN_MS, AGAIN_TIMES_MAX = 10_000, 5
#: What is expected after a test is a little less than what was seen: a test of a few results is not exact.
MARGIN = 0.9
#: Of a better share than expected this much is taken over, each second at most.
RISE = 0.05


@frozen
class Seen:
    """What one worker saw since its last report, and how it stands."""

    good: int
    bad: int  # failed or throttled
    epoch: int  # under which it worked all the time
    tokens: float  # that each worker has left
    limited: bool  # whether any limiter is on


@frozen
class Pace:
    """What the fleet knows of how a service takes its load."""

    phase: Phase = "free"
    epoch: int = 0  # when this phase began: what was seen under another is not counted
    share: float = 1.0  # of requests that is answered well when nobody presses it
    good_before: float = 0.0  # results before the test
    bad_before: float = 0.0
    before_per_s: float = 0.0
    good: float = 0.0  # results of late, fading
    bad: float = 0.0
    counted_ms: int = 0
    first_ms: int = 0  # of these
    acquitted: int = 0  # times in a row

    @staticmethod
    def from_text(text: str | None) -> Pace:
        """As it was written; a text that nobody can read says that all is well."""
        try:
            phase, *numbers = json.loads(text or "")
            return Pace(cast(Phase, phase), *numbers)
        except (ValueError, TypeError):
            return CALM

    def to_text(self) -> str | None:
        """For the store; None: all is well."""
        if self.phase == "free" and self.share == 1.0 and self.bad < 0.5:
            return None
        phase, *numbers = astuple(self)
        return json.dumps([phase, *(round(number, 4) for number in numbers)])

    @property
    def seen(self) -> float:
        """The share of what was seen of late, or before this phase; a little less than all where that is not much."""
        good, bad = (self.good, self.bad) if self.good + self.bad else (self.good_before, self.bad_before)
        return (good + 1) / (good + bad + 2)

    @property
    def word(self) -> str:
        """For people."""
        if self.phase == "pressed":
            return "pressed"
        return "flickering" if self.phase == "test" or self.share < 1 else "up"

    @property
    def reason(self) -> str | None:
        """Why requests wait or fail; None: all is well."""
        if self.phase == "pressed":
            return "it fails when it is asked more: requests wait for their turn"
        if self.phase == "test":
            return f"it fails; it is asked for {SLOWER:.0%} of the usual, to find out whether that helps"
        return "it fails now and then, however little it is asked" if self.share < 1 else None

    @property
    def per_s(self) -> float:
        """Results per second of late."""
        elapsed = max(1_000, self.counted_ms - self.first_ms) / HALF_LIFE_MS
        weighed_s = HALF_LIFE_MS / 1_000 / math.log(2) * (1 - math.pow(2, -elapsed))
        return (self.good + self.bad) / weighed_s


CALM = Pace()


def observe(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    """What is known after one more report."""
    if seen.epoch != pace.epoch:
        return pace
    pace = _count(pace, seen, now_ms)
    return _free(pace, seen, now_ms) if pace.phase == "free" else _judge(pace, seen, now_ms)


def _count(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    if pace.phase == "free" and pace.share == 1 and pace.bad == 0:
        # as long as nothing fails there is nothing to count; and when it begins much of this report was before it
        return replace(pace, bad=0.5, counted_ms=now_ms, first_ms=now_ms) if seen.bad else pace
    gone_ms = max(0, now_ms - pace.counted_ms)
    fading = 1.0 if pace.phase == "test" else math.pow(2, -min(gone_ms / HALF_LIFE_MS, 60.0))
    good, bad = pace.good * fading + seen.good, pace.bad * fading + seen.bad
    first_ms = pace.first_ms or now_ms - 1_000
    return replace(pace, good=good, bad=bad, counted_ms=now_ms, first_ms=first_ms)


def _free(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    results = pace.good + pace.bad
    if results < RESULTS_LEAST:
        return pace if pace.bad >= 0.5 or pace.share < 1 else CALM
    if (better := _better(pace.seen)) > pace.share:
        share = pace.share + RISE * (better - pace.share)
        well = share >= 0.95
        pace = replace(pace, share=1.0 if well else share, acquitted=0 if well else pace.acquitted)
    worse = seen.tokens < TOKENS_LOW * pace.share or seen.limited
    doubtful = pace.acquitted and now_ms - pace.epoch >= AGAIN_MS * 2 ** min(
        pace.acquitted - 1, AGAIN_TIMES_MAX
    )
    enough = pace.good >= GOOD_LEAST or now_ms - pace.first_ms >= GOOD_MS
    if pace.seen < WELL and (worse or doubtful) and enough:
        before = (pace.good, pace.bad, pace.per_s)
        return Pace("test", now_ms, pace.share, *before, acquitted=pace.acquitted)
    return pace


def _better(seen: float) -> float:
    """What may be expected of a service of which this share was seen."""
    return 1.0 if seen > 0.95 else MARGIN * seen


def _judge(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    evidence, results = _evidence(pace), pace.good + pace.bad
    late = now_ms - pace.epoch >= TEST_MS and results >= TEST_RESULTS
    if evidence <= (0 if late and pace.phase == "test" else -SURE):
        share = (pace.good_before + pace.good + 1) / (pace.good_before + pace.bad_before + results + 2)
        if share > AWAY:
            return Pace("free", now_ms, MARGIN * share, acquitted=pace.acquitted + 1)
    if pace.phase == "test" and (evidence > SURE or late):
        share = max(pace.share, _better(pace.seen))  # so much is answered when less is asked
        return replace(
            pace, phase="pressed", epoch=now_ms, share=share, good=0.0, bad=0.0, first_ms=0, acquitted=0
        )
    if pace.phase == "pressed" and not seen.limited and now_ms - pace.epoch >= TEST_MS:
        return Pace("free", now_ms, pace.share)
    return pace


def _evidence(pace: Pace) -> float:
    """How much likelier it is that the share rises because less is asked than that it stays, as a logarithm."""
    less = SLOWER if pace.phase == "test" else pace.per_s / max(pace.before_per_s, 0.1)
    settled = pace.phase == "test" or pace.counted_ms - pace.epoch >= SETTLED_MS
    if less > 0.8 or not settled:
        return 0.0  # as much is asked as before, or nobody knows yet: that tells nothing
    stays, rises = [], []
    for step in range(1, STEPS):
        share = step / STEPS
        before = _likely(share, pace.good_before, pace.bad_before)
        stays.append(before + _likely(share, pace.good, pace.bad))
        rises.append(before + _likely(max(share, min(0.95, share / max(less, 0.05))), pace.good, pace.bad))
    return max(rises) - max(stays)


def _likely(share: float, good: float, bad: float) -> float:
    return good * math.log(share) + bad * math.log(1 - share)
