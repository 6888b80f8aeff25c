"""Whether a service fails because it is pressed or however little it is asked, and how fast the fleet may ask it.

    free ──tokens for retries run low, or it asks for less──► test ──its share stayed──► free: this share is usual
      ▲                                                        │
      │                                              share rose│
      └──the limit no longer binds,──────────── pressed ◄──────┘
         or the share stayed after all

A service that fails now and then fails as often when it is asked less: to spare it helps nobody. One that is pressed
answers more of its requests then. So all workers together ask for a little more than it answered (`TARGET`), and the
results weigh "the share stays" against "the share rises" until one is 20 times as likely. While it is pressed the rate
of the fleet follows the answers: it grows while a whole window is answered well and falls to a little more than what
is answered otherwise, so the service never gets much more than it bears.

All of it is pure; the state is one text of the dependency's row, None while all is well.
"""

from __future__ import annotations

import json
import math
from dataclasses import astuple, replace
from typing import Literal, cast, get_args

from perdure.core.frozen import frozen

Phase = Literal["free", "test", "pressed"]

#: A pressed service is asked for this much of what it answers.
TARGET = 1.05
#: Results that a share is taken from; above this share nothing is amiss.
RESULTS_LEAST, WELL = 20, 0.95
#: Below this share a service counts as down or choked, never as one that only fails now and then.
AWAY = 0.05
#: A hypothesis wins when it is 20 times as likely; shares that are tried for each.
SURE, STEPS = math.log(20), 50
#: Nothing is judged by fewer results, nor by fewer than come back in this time at the present rate, ...
JUDGED_LEAST, JUDGED_S = 16, 0.25
#: ... unless a test takes this long, which then ends with the likelier hypothesis, or a window of a pressed service.
TEST_MS, WINDOW_MS, WINDOW_MS_MAX = 6_000, 700, 2_000
#: A test begins when failures have been counted for this long.
FAILING_MS = 800
#: A window is good or bad by what it answered of the expected share. The rate grows by these factors in good windows
#: one after the other: little near the last limit, more beyond.
GOOD, BAD, GROWTH = 0.97, 0.9, (1.07, 1.3, 1.6)
#: What one bad window leaves of the rate at least; the rate never falls below this many requests a second.
CUT_MOST, FLOOR_PER_S = 0.3, 1.0
#: The limit ends beyond this multiple of the usual rate, or where half of it is not used in this many windows.
OVER, UNUSED, UNUSED_WINDOWS = 1.5, 0.5, 3
#: Results fade with this half-life while it is free; what nobody reported about for the longer time is forgotten.
HALF_LIFE_MS, FORGET_MS = 500, 600_000
#: Fewer tokens than this for retries begin a test; less where failures are expected.
TOKENS_LOW = 5.0
#: A verdict that it is not the load may be wrong, and then nothing shows it: it is tested again after this time, and
#: after twice as long each time, up to a bound.
AGAIN_MS, AGAIN_TIMES_MAX = 10_000, 5
#: The expected share is a little less than the share that was seen: a test of a few results is not exact.
MARGIN = 0.9
#: A test in which the share falls by this many standard deviations begins again.
WORSE = 2.0
#: A service that still fails after it was asked less this many times, or at this part of the highest rate, is not
#: pressed after all. Its share is taken from this many results.
CUTS_MAX, LEFT, SINCE_MAX = 3, 0.4, 50.0
#: What was answered before failures in a row is known from this many results.
BEFORE_LEAST = 5
#: A better share than the expected one is believed after this many results.
RISE_RESULTS = 100


@frozen
class Seen:
    """What one worker saw since its last report, and how it stands."""

    good: int
    failed: int
    throttled: int = 0
    epoch: int = 0  # of the finding that it follows
    tokens: float = 10.0  # that each worker has left
    asked_per_s: float = 0.0  # requests of all workers of late
    row: int = 0  # failures since its last success
    pause_ms: int = 0  # for this long the service asks for silence


@frozen
class Pace:
    """What the fleet knows of how a service takes its load."""

    phase: Phase = "free"
    epoch: int = (
        0  # when it began to be asked less or freely: results of requests that were sent before do not count
    )
    share: float = 1.0  # of requests that is answered well when nobody presses it
    rate: float = 0.0  # requests a second of the whole fleet; 0: no limit
    usual_per_s: float = 0.0  # requests a second before there was a limit
    good_before: float = 0.0  # results before the test, and how many a second
    bad_before: float = 0.0
    before_per_s: float = 0.0
    good: float = 0.0  # results: of late where it is free, of this test or window otherwise
    bad: float = 0.0
    good_since: float = 0.0  # results since it is pressed
    bad_since: float = 0.0
    peak: float = 0.0  # the highest rate since then
    counted_ms: int = 0
    first_ms: int = 0  # when counting or the window began
    steps: int = 0  # good windows in a row; below 0: bad windows of late
    acquitted: int = 0  # times in a row
    row: int = 0  # failures of the whole fleet since its last success
    row_ms: int = 0  # since when
    pause_ms: int = 0  # until when the service asked all for silence

    @staticmethod
    def from_text(text: str | None) -> Pace:
        """As it was written; an unreadable text says that all is well."""
        try:
            phase, *numbers = json.loads(text or "")
            pace = Pace(cast(Phase, phase), *numbers)
            return pace if phase in get_args(Phase) and 0 < pace.share <= 1 else CALM
        except (ValueError, TypeError):
            return CALM

    def to_text(self) -> str | None:
        """For the store; None: all is well."""
        calm = self.phase == "free" and self.share == 1.0 and self.bad < 0.5
        if calm and not self.row and not self.pause_ms:
            return None
        phase, *numbers = astuple(self)
        return json.dumps([phase, *(round(number, 4) for number in numbers)])

    def at(self, now_ms: int) -> Pace:
        """As much of it as still holds then: not what nobody has reported about for long, nor a pause that is over."""
        pace = self
        if self.counted_ms and now_ms - self.counted_ms > FORGET_MS:
            pace = replace(CALM, pause_ms=self.pause_ms)
        return replace(pace, pause_ms=0) if 0 < pace.pause_ms <= now_ms else pace

    @property
    def seen(self) -> float:
        """The share of late, or before this phase; a little less than all where there were few results."""
        good, bad = (self.good, self.bad) if self.good + self.bad else (self.good_before, self.bad_before)
        return (good + 1) / (good + bad + 2) if good + bad else self.share

    @property
    def answers(self) -> float:
        """The share that it answered before the present failures in a row, as far as that is known."""
        before = self.good_before + self.bad_before if self.phase == "test" else 0.0
        good = self.good + (self.good_before if self.phase == "test" else 0.0)
        results = self.good + self.bad + before - self.row
        return min(self.share, good / results) if results >= BEFORE_LEAST else self.share

    @property
    def word(self) -> str:
        """For people, of what is known `at` a time."""
        if self.pause_ms:
            return "paused"
        if self.phase == "pressed":
            return "pressed"
        return "flickering" if self.phase == "test" or self.share < 1 else "up"

    @property
    def reason(self) -> str | None:
        """Why requests wait or fail; None: all is well."""
        if self.pause_ms:
            return "it refuses all requests and asked to wait"
        if self.phase == "pressed":
            return "it fails when it is asked more: requests wait for their turn"
        if self.phase == "test":
            return "it fails; it is asked less, to find out whether that helps"
        return "it fails now and then, however little it is asked" if self.share < 1 else None


CALM = Pace()


def observe(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    """What is known after one more report."""
    pace = _note(pace, seen, now_ms)
    if seen.epoch != pace.epoch:
        return pace
    if pace.phase == "free":
        return _free(_count(pace, seen, now_ms), seen, now_ms)
    good, bad = pace.good + seen.good, pace.bad + seen.failed + seen.throttled
    pace = replace(pace, good=good, bad=bad, counted_ms=now_ms)
    return _test(pace, seen, now_ms) if pace.phase == "test" else _pressed(pace, seen, now_ms)


def held(pace: Pace, now_ms: int, pause_ms: int = 0) -> Pace:
    """What is left of it while the service is down: the share that is usual, and a pause that it asked for. A worker
    was asked for so long just now."""
    until_ms = max(pace.pause_ms, now_ms + pause_ms if pause_ms else 0)
    until_ms = until_ms if until_ms > now_ms else 0
    calm = CALM if pace.share == 1 else Pace("free", now_ms, pace.share, counted_ms=now_ms)
    return replace(calm, pause_ms=until_ms) if until_ms else calm


def _note(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    """Failures in a row over the whole fleet, and the longest pause that was asked for: they count in any phase."""
    pace = pace.at(now_ms)
    row = seen.row if seen.good else pace.row + seen.failed
    row_ms = now_ms if seen.good or not pace.row else pace.row_ms
    until_ms = max(pace.pause_ms, now_ms + seen.pause_ms if seen.pause_ms else 0)
    return replace(pace, row=row, row_ms=row_ms if row else 0, pause_ms=until_ms if until_ms > now_ms else 0)


def _count(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    bad = seen.failed + seen.throttled
    if pace.share == 1 and pace.bad == 0:
        # as long as nothing fails there is nothing to count; and when it begins much of this report was before it
        return replace(pace, bad=0.5, good=0.0, counted_ms=now_ms, first_ms=now_ms) if bad else pace
    fading = math.pow(2, -min(max(0, now_ms - pace.counted_ms) / HALF_LIFE_MS, 60.0))
    kept = max(fading, min(1.0, RESULTS_LEAST / max(1.0, pace.good + pace.bad)))  # however rarely it is asked
    return replace(
        pace, good=pace.good * kept + seen.good, bad=pace.bad * kept + bad, counted_ms=now_ms
    )  # fmt: skip


def _free(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    if pace.good + pace.bad < RESULTS_LEAST or now_ms - pace.first_ms < FAILING_MS:
        return pace
    if (better := _better(pace.seen)) > pace.share:
        new = min(1.0, (seen.good + seen.failed + seen.throttled) / RISE_RESULTS)
        share = pace.share + new * (better - pace.share)
        well = share >= WELL
        pace = replace(pace, share=1.0 if well else share, acquitted=0 if well else pace.acquitted)
    if pace.seen >= WELL:
        return (
            pace if pace.share < 1 or pace.seen < 0.98 else replace(CALM, row=pace.row, row_ms=pace.row_ms,
            pause_ms=pace.pause_ms, epoch=pace.epoch)
        )  # fmt: skip
    worse = seen.tokens < TOKENS_LOW * pace.share or (seen.throttled and pace.share == 1)
    doubtful = pace.acquitted and now_ms - pace.epoch >= AGAIN_MS * 2 ** min(
        pace.acquitted - 1, AGAIN_TIMES_MAX
    )
    return _begin_test(pace, seen.asked_per_s, seen.asked_per_s, now_ms) if worse or doubtful else pace


def _begin_test(pace: Pace, before_per_s: float, usual_per_s: float, now_ms: int) -> Pace:
    rate = max(FLOOR_PER_S, TARGET * pace.seen * before_per_s)
    return replace(
        pace, phase="test", epoch=now_ms, rate=rate, usual_per_s=usual_per_s, before_per_s=before_per_s,
        good_before=pace.good, bad_before=pace.bad, good=0.0, bad=0.0, first_ms=now_ms, steps=0,
    )  # fmt: skip


def _better(seen: float) -> float:
    """The share that may be expected of a service of which this share was seen."""
    return 1.0 if seen > WELL else MARGIN * seen


def _test(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    evidence, results = _evidence(pace, seen), pace.good + pace.bad
    gone_ms = now_ms - pace.epoch
    late = gone_ms >= TEST_MS and results >= JUDGED_LEAST
    if not late and gone_ms < TEST_MS and results < _judged(pace):
        return pace
    well = results >= RESULTS_LEAST and pace.good >= GOOD * pace.share * results
    if evidence <= (0 if late else -SURE) and not well:
        before = pace.good_before / max(1.0, pace.good_before + pace.bad_before)
        if pace.seen < before - WORSE * 0.5 / math.sqrt(max(1.0, results)):
            # it became worse meanwhile: that says nothing about the load
            return _begin_test(pace, pace.rate, pace.usual_per_s, now_ms)
        share = (pace.good_before + pace.good + 1) / (pace.good_before + pace.bad_before + results + 2)
        if share > AWAY:
            return _freed(pace, MARGIN * share, now_ms, pace.acquitted + 1)
    if evidence >= SURE or well or late:
        share = max(pace.share, _better(pace.seen))  # this share is answered when less is asked
        return replace(
            pace, phase="pressed", share=share, good=0.0, bad=0.0, good_since=pace.good,
            bad_since=pace.bad, peak=pace.rate, first_ms=now_ms, acquitted=0,
        )  # fmt: skip
    return _freed(pace, pace.share, now_ms) if gone_ms >= 5 * TEST_MS else pace  # nobody asks it any more


def _freed(pace: Pace, share: float, now_ms: int, acquitted: int = 0) -> Pace:
    more = {"row": pace.row, "row_ms": pace.row_ms, "pause_ms": pace.pause_ms, "acquitted": acquitted}
    return Pace("free", now_ms, share, counted_ms=now_ms, **more)


def _pressed(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    """Judge a window when it is over, and set the rate for the next one."""
    gone_ms, results = now_ms - pace.first_ms, pace.good + pace.bad
    if gone_ms < WINDOW_MS or (results < _judged(pace) and gone_ms < WINDOW_MS_MAX):
        return pace
    if not results:
        return _freed(pace, pace.share, now_ms) if gone_ms >= 5 * WINDOW_MS_MAX else pace
    kept = min(1.0, SINCE_MAX / max(1.0, pace.good_since + pace.bad_since))
    good, bad = kept * pace.good_since + pace.good, kept * pace.bad_since + pace.bad
    window = replace(pace, good=0.0, bad=0.0, good_since=good, bad_since=bad, first_ms=now_ms)
    share = good / (good + bad)
    helpless = pace.steps <= -CUTS_MAX or pace.rate < max(LEFT * pace.peak, 1.01 * FLOOR_PER_S)
    if helpless and AWAY < share < BAD * pace.share:  # it is asked less, and that helps nobody
        return _freed(pace, MARGIN * share, now_ms, pace.acquitted + 1)
    # where it fails now and then, too, a share in between says nothing about the load
    if pace.good >= (GOOD if pace.share == 1 else BAD * pace.share) * results:
        unused = seen.asked_per_s < UNUSED * pace.rate
        if pace.rate >= OVER * pace.usual_per_s or (unused and pace.steps >= UNUSED_WINDOWS):
            return _freed(pace, pace.share, now_ms)
        window = replace(window, steps=max(0, pace.steps) + 1)
        rate = pace.rate * GROWTH[min(max(0, pace.steps), len(GROWTH) - 1)]
        return window if unused else replace(window, rate=rate, peak=max(rate, pace.peak))
    answered = min(1.0, (pace.good + 1) / results / pace.share)  # one failure more or less says nothing
    if answered >= BAD:
        return replace(window, steps=min(0, pace.steps + 1))
    rate = max(FLOOR_PER_S, pace.rate * max(CUT_MOST, TARGET * answered))
    return replace(window, rate=rate, steps=min(0, pace.steps) - 1, epoch=now_ms)


def _judged(pace: Pace) -> float:
    """Results that a judgement needs."""
    return max(JUDGED_LEAST, JUDGED_S * pace.rate)


def _evidence(pace: Pace, seen: Seen) -> float:
    """How much likelier it is that the share rises because less is asked than that it stays, as a logarithm."""
    less = max(pace.rate, seen.asked_per_s) / max(
        pace.before_per_s, 0.1
    )  # a few workers may be bound by their floor
    if less > 0.97:
        return 0.0  # as much is asked as before: that says nothing
    stays, rises = [], []
    for step in range(1, STEPS):
        share = step / STEPS
        before = _likely(share, pace.good_before, pace.bad_before)
        stays.append(before + _likely(share, pace.good, pace.bad))
        whole = max(share, min(0.95, share / max(less, 0.05)))
        for risen in (whole, (share + whole) / 2):  # it may fail now and then, too
            rises.append(before + _likely(risen, pace.good, pace.bad))
    return max(rises) - max(stays)


def _likely(share: float, good: float, bad: float) -> float:
    return good * math.log(share) + bad * math.log(1 - share)
