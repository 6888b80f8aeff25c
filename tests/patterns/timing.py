"""How the time of something grows with the length of a text, in CPU time, so that a busy machine changes nothing."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from tests.patterns.found import Found
from tests.patterns.pumps import Pump, pumps, text_of

SHORT, LONG = 10_000, 40_000
#: From a short text to a long one, four times as long; what is quadratic takes 16 times as long.
GROWTH_MAX = 5.0
#: What ends sooner on a long text passes: a pattern with quadratic time takes ten times as long.
FLOOR_S = 0.005
#: A run that takes longer is given up; the slowest that is linear takes a tenth.
CUT_S = 0.25
#: Before a growth counts: the median of as many runs.
TRIES = 30


class TooLong(Exception):
    """The time for one run is used up."""


@dataclass(frozen=True)
class Timed:
    """The longest that a pattern took, on which text, and whether the time grew faster than the text."""

    found: Found
    pump: Pump
    long_s: float
    growth: float
    fails: bool


def timed(found: Found) -> Timed:
    """The text that this pattern is worst with; the first that it fails with."""
    worst = Timed(found, ("", "", ""), 0.0, 0.0, False)
    run = _run(found)
    for pump in pumps(found.pattern):
        short, long = (_text(found.pattern, text_of(pump, chars)) for chars in (SHORT, LONG))
        if short is None or long is None:
            continue
        long_s, growth, fails = grown(partial(run, short), partial(run, long))
        if fails or long_s > worst.long_s:
            worst = Timed(found, pump, long_s, growth, fails)
        if fails:
            break
    return worst


def grown(short: Callable[[], object], long: Callable[[], object]) -> tuple[float, float, bool]:
    """The time of the long run (guessed where the short one took next to nothing), how many times that is the time of
    the short one, and whether this is too much."""
    shorts: list[float] = []
    longs: list[float] = []
    short_s = long_s = CUT_S
    try:
        for _ in range(TRIES):
            shorts.append(cpu_s(short))
            if shorts[0] * (LONG / SHORT) ** 2 < FLOOR_S:  # whatever it is, it ends soon
                return shorts[0] * LONG / SHORT, 0.0, False
            longs.append(cpu_s(long))
            short_s, long_s = median(shorts), median(longs)
            if long_s <= max(FLOOR_S, GROWTH_MAX * short_s):
                return long_s, long_s / short_s, False
    except TooLong:
        return CUT_S, math.inf, True
    return long_s, long_s / short_s, True


def cpu_s(run: Callable[[], object]) -> float:
    """The CPU time of one run; TooLong if it does not end."""
    with _limit(CUT_S):
        begun = time.thread_time()  # the clock of the process goes by ticks while a timer is set
        run()
        took = time.thread_time() - begun
    if took > CUT_S:
        raise TooLong
    return max(took, 1e-6)


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """TooLong after so much CPU time: a search for a pattern looks for signals now and then."""

    def stop(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _text(pattern: re.Pattern[Any], text: str) -> str | bytes | None:
    """As the pattern takes it; None if it cannot be."""
    if isinstance(pattern.pattern, str):
        return text
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return None


def _run(found: Found) -> Callable[[Any], object]:
    pattern, empty = found.pattern, found.pattern.pattern[:0]
    if found.method in ("sub", "subn"):
        return lambda text: pattern.sub(empty, text)
    if found.method == "finditer":
        return lambda text: sum(1 for _ in pattern.finditer(text))
    method: Callable[[Any], object] = getattr(pattern, found.method)
    return method
