"""Whether a service fails because it is pressed or however little it is asked, and how fast the fleet may ask it.

    free ──tokens for retries run low, or it asks for less──► test ──its share stays──► free: this share is usual
      ▲                                                        │
      │                                             share rises│
      └──the limit no longer binds,──────────── pressed ◄──────┘
         or the share stays after all

A service that fails now and then fails as often when it is asked less: to spare it helps nobody. One that is pressed
answers more of its requests then. So all workers together ask for a little more than it answered (`TARGET`), again and
again, and the last windows weigh two explanations: each request has the same chance of an answer at any rate, or the
service answers up to a fixed number per second. While it is pressed the rate of the fleet follows the answers: it
grows while a whole window is answered well and falls to a little more than the answers otherwise, so the service never
gets much more than it bears.

All of it is pure; the state is one text of the dependency's row, None while all is well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Literal, cast, get_args

from perdure.core.frozen import frozen

Phase = Literal["free", "test", "pressed"]

#: A service that is tested or pressed is asked for this much of what it answers.
TARGET = 1.05
#: Results that a share is taken from; above this share the retry budget bears the failures, and nothing is amiss.
RESULTS_LEAST, WELL = 20, 0.92
#: Below this share a service counts as down or choked, never as one that only fails now and then.
AWAY = 0.05
#: An explanation wins when it is 20 times as likely by the last windows; capacities that are tried; how much
#: likelier one must be that also guesses the share that is answered when nobody presses the service.
SURE, GRID, GUESS = math.log(20), 20, 2.0
#: The last windows are kept until they have this number of results, and at most this number of windows.
KEPT_RESULTS, WINDOWS_MAX = 150, 12
#: To ask less was in vain if the service answered less than this part of the expected share, of at least this
#: number of results.
VAIN, VAIN_RESULTS = 0.8, 30
#: A window lasts for at least this number of results, and for the results of this time at the present rate, ...
JUDGED_LEAST, JUDGED_S = 16, 0.5
#: ... unless it takes this long. A test that takes longer than this ends with the likelier explanation.
WINDOW_MS, TEST_MS = 2_000, 4_000
#: A test begins when failures have been counted for this long.
FAILING_MS = 800
#: A window is good or bad by what it answered of the expected share. The rate grows by these factors in good windows
#: one after the other: little near the last limit, more beyond.
GOOD, BAD, GROWTH = 0.97, 0.9, (1.1, 1.5, 2.0)
#: In a window that is neither, the rate of a pressed service follows its answers if that changes it by more than this.
CLOSE = 0.98
#: However badly it answers, it is asked this many times a second.
FLOOR_PER_S = 1.0
#: The limit ends beyond this multiple of the usual rate, or where half of it is not used in this many windows.
OVER, UNUSED, UNUSED_WINDOWS = 1.5, 0.5, 3
#: Results fade with this half-life while it is free; what nobody reported about for the longer time is forgotten.
HALF_LIFE_MS, FORGET_MS = 250, 600_000
#: Fewer tokens than this for retries begin a test; less where failures are expected.
TOKENS_LOW = 5.0
#: A verdict that it is not the load may be wrong, and then nothing shows it: it is tested again after this time, and
#: after twice as long each time, up to a bound.
AGAIN_MS, AGAIN_TIMES_MAX = 10_000, 5
#: The expected share is a little less than the share that was seen: a test of a few results is not exact.
MARGIN = 0.9
#: What was answered before failures in a row is known from this many results.
BEFORE_LEAST = 5
#: A better share than the expected one is believed after this many results.
RISE_RESULTS = 100

Window = tuple[float, float, float]  # requests a second, answered, failed


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
    good: float = 0.0  # results: of late where it is free, of this window otherwise
    bad: float = 0.0
    counted_ms: int = 0
    first_ms: int = 0  # when counting or the window began
    test_ms: int = 0  # when the test began
    steps: int = 0  # good windows in a row
    acquitted: int = 0  # times in a row
    row: int = 0  # failures of the whole fleet since its last success
    row_ms: int = 0  # since when
    pause_ms: int = 0  # until when the service asked all for silence
    windows: tuple[Window, ...] = ()  # the last ones, from before the test on

    @staticmethod
    def from_text(text: str | None) -> Pace:
        """As it was written; an unreadable text says that all is well."""
        try:
            phase, windows, *numbers = json.loads(text or "")
            pace = Pace(cast(Phase, phase), *numbers)
            seen = tuple((float(rate), float(good), float(bad)) for rate, good, bad in windows)
            return replace(pace, windows=seen) if phase in get_args(Phase) and 0 < pace.share <= 1 else CALM
        except (ValueError, TypeError):
            return CALM

    def to_text(self) -> str | None:
        """For the store; None: all is well."""
        calm = self.phase == "free" and self.share == 1.0 and self.bad < 0.5
        if calm and not self.row and not self.pause_ms:
            return None
        phase, *numbers, windows = astuple(self)
        rounded = [[round(number, 3) for number in window] for window in windows]
        return json.dumps([phase, rounded, *(round(number, 4) for number in numbers)])

    def at(self, now_ms: int) -> Pace:
        """As much of it as still holds then: not what nobody has reported about for long, nor a pause that is over."""
        pace = self
        if self.counted_ms and now_ms - self.counted_ms > FORGET_MS:
            pace = replace(CALM, pause_ms=self.pause_ms)
        return replace(pace, pause_ms=0) if 0 < pace.pause_ms <= now_ms else pace

    @property
    def seen(self) -> float:
        """The share of late, or of the last window; a little less than all where there were few results."""
        good, bad = self.good, self.bad
        if not good + bad and self.windows:
            _, good, bad = self.windows[-1]
        return (good + 1) / (good + bad + 2) if good + bad else self.share

    @property
    def answers(self) -> float:
        """The share that it answered before the present failures in a row, as far as that is known."""
        windows = self.windows if self.phase == "test" else ()
        good = self.good + sum(window[1] for window in windows)
        results = good + self.bad + sum(window[2] for window in windows) - self.row
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
    return _limited(replace(pace, good=good, bad=bad, counted_ms=now_ms), seen, now_ms)


def held(pace: Pace, now_ms: int, pause_ms: int = 0) -> Pace:
    """What is left of it while the service is down: the share that is usual, or that it answered before it failed in a
    row, and a pause that it asked for. A worker was asked for so long just now."""
    until_ms = max(pace.pause_ms, now_ms + pause_ms if pause_ms else 0)
    until_ms = until_ms if until_ms > now_ms else 0
    share = pace.answers if AWAY < pace.answers < WELL else pace.share
    calm = CALM if share == 1 else Pace("free", now_ms, share, counted_ms=now_ms)
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
    least = RESULTS_LEAST / pace.share  # however rarely it is asked
    kept = max(fading, min(1.0, least / max(1.0, pace.good + pace.bad)))
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
    return _begin_test(pace, seen.asked_per_s, now_ms) if worse or doubtful else pace


def _begin_test(pace: Pace, asked_per_s: float, now_ms: int) -> Pace:
    rate = max(FLOOR_PER_S, TARGET * pace.seen * asked_per_s)
    return replace(
        pace, phase="test", epoch=now_ms, rate=rate, usual_per_s=asked_per_s, good=0.0, bad=0.0, first_ms=now_ms,
        test_ms=now_ms, steps=0, windows=((asked_per_s, pace.good, pace.bad),),
    )  # fmt: skip


def _better(seen: float) -> float:
    """The share that may be expected of a service of which this share was seen."""
    return 1.0 if seen > WELL else MARGIN * seen


def _freed(pace: Pace, share: float, now_ms: int, acquitted: int = 0) -> Pace:
    return Pace(
        "free", now_ms, share, counted_ms=now_ms, acquitted=acquitted, row=pace.row, row_ms=pace.row_ms,
        pause_ms=pace.pause_ms,
    )  # fmt: skip


def _limited(pace: Pace, seen: Seen, now_ms: int) -> Pace:
    """Judge a window when it is over, and set the rate for the next one."""
    gone_ms, results = now_ms - pace.first_ms, pace.good + pace.bad
    if results * pace.share < max(JUDGED_LEAST, JUDGED_S * pace.rate) and gone_ms * pace.share < WINDOW_MS:
        return pace
    if not results:
        nobody = gone_ms >= 5 * WINDOW_MS  # asks it any more
        return _freed(pace, pace.share, now_ms) if nobody else pace
    # a few workers may be bound by their floor
    window = (max(pace.rate, seen.asked_per_s), pace.good, pace.bad)
    windows = _kept((*pace.windows, window), pace)
    judged = replace(pace, windows=windows, good=0.0, bad=0.0, first_ms=now_ms)
    evidence, share = _evidence(windows, pace.share), _share(windows)
    late = pace.phase == "test" and now_ms - pace.test_ms >= TEST_MS
    # a test that is not clear, or next to nothing is asked of it: less helps little if at all, and it is tested again
    unclear = evidence < SURE if late else pace.rate <= FLOOR_PER_S and pace.good < BAD * pace.share * results
    if (evidence <= -SURE or unclear or _in_vain(judged)) and share > AWAY:
        return _freed(pace, MARGIN * share, now_ms, pace.acquitted + 1)
    if pace.phase == "test" and evidence >= SURE:
        share = max(pace.share, _better(pace.seen))  # this share is answered when less is asked
        judged = replace(judged, phase="pressed", share=share, acquitted=0)
    return _next(judged, seen, pace.good, results, now_ms)


def _in_vain(pace: Pace) -> bool:
    """Whether a pressed service fails although it was asked half as much, or less."""
    most = max(rate for rate, *_ in pace.windows)
    less = [window for window in pace.windows if window[0] <= most / 2]
    good, bad = (sum(window[n] for window in less) for n in (1, 2))
    return pace.phase == "pressed" and good + bad >= VAIN_RESULTS and good < VAIN * pace.share * (good + bad)


def _kept(windows: tuple[Window, ...], pace: Pace) -> tuple[Window, ...]:
    """The last ones, as many as a judgement needs; in a test also the first: it tells what was before."""
    answers, number = 0.0, 0
    for _, good, bad in reversed(windows):
        answers, number = answers + pace.share * (good + bad), number + 1
        if answers >= KEPT_RESULTS or number == WINDOWS_MAX:
            break
    return windows[:1] + windows[1:][-number:] if pace.phase == "test" else windows[-number:]


def _next(pace: Pace, seen: Seen, good: float, results: float, now_ms: int) -> Pace:
    """The pace with the rate for the next window, after a window with `good` answers."""
    # where it fails now and then, too, a share in between says nothing about the load
    if good >= (GOOD if pace.share == 1 else BAD * pace.share) * results:
        if pace.phase == "test":
            return pace
        unused = seen.asked_per_s < UNUSED * pace.rate
        if pace.rate >= OVER * pace.usual_per_s or (unused and pace.steps >= UNUSED_WINDOWS):
            return _freed(pace, pace.share, now_ms)
        rate = pace.rate * GROWTH[min(pace.steps, len(GROWTH) - 1)]
        pace = replace(pace, steps=pace.steps + 1)
        return pace if unused else replace(pace, rate=rate, epoch=now_ms)
    answered = min(1.0, (good + 1) / results / pace.share)  # one failure more or less says nothing
    if answered >= BAD:
        answered = good / results
        if pace.phase != "pressed" or pace.share < 1 or TARGET * answered >= CLOSE:
            return replace(pace, steps=0)
    return replace(pace, rate=max(FLOOR_PER_S, pace.rate * TARGET * answered), steps=0, epoch=now_ms)


def _share(windows: Sequence[Window]) -> float:
    good, bad = (sum(window[n] for window in windows) for n in (1, 2))
    return (good + 1) / (good + bad + 2)


def _evidence(windows: Sequence[Window], share: float) -> float:
    """How much likelier a fixed capacity explains the windows than a chance that is the same at any rate, as a
    logarithm; `share`: what is answered when nobody presses the service, as far as that is known."""
    most = max(rate for rate, *_ in windows)
    same = _explained(windows, _share(windows), math.inf)
    pressed = -math.inf
    for n in range(1, GRID + 1):
        capacity = most * n / GRID
        pressed = max(pressed, _explained(windows, share, capacity))
        if n <= 0.85 * GRID:  # it may fail now and then, too
            guessed = max(_explained(windows, tenth / 10, capacity) for tenth in range(3, 10))
            pressed = max(pressed, guessed - GUESS)
    return pressed - same


def _explained(windows: Sequence[Window], share: float, capacity: float) -> float:
    """How likely these windows are if the service answers this share of its requests, and no more than its capacity."""
    likely = 0.0
    for rate, good, bad in windows:
        chance = min(0.98, share * min(1.0, capacity / max(rate, 0.01)))
        likely += good * math.log(chance) + bad * math.log(1 - chance)
    return likely
