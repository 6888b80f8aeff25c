"""What a worker knows of services goes with a stage into its cell, and what the calls there learned comes home."""

from __future__ import annotations

import math
from typing import Any

from perdure.calls.dependency import (
    DEPENDENCIES,
    REFUSALS,
    ROWS_MAX,
    STRANGE_MAX,
    Dependency,
    Operation,
    begin_recording,
    dependency,
)
from perdure.calls.limiter import PAUSE_S_MAX
from perdure.calls.timing import TIMING
from perdure.core.frozen import frozen
from perdure.core.scope import MESSENGERS, PACKED, Work

NAME_MAX = 200  # characters, of what a cell tells
COUNT_MAX, TIME_MAX = (1 << 31) - 1, 1 << 43
TOKENS_MOST = 1e6
TOLD_MAX = 1_000  # outcomes of one report that move breaker and limiter, which need far fewer
WAVE_S = 30.0  # as many cells as ran at once in this time, or in the one before, may run at once again


@frozen
class Learned:
    """What a cell learned of a dependency, for its worker."""

    name: str
    requests: int
    successes: int
    failures: int
    throttled: int
    tokens: float  # that it earned, less those that it spent
    dropped: int
    pause_s: float  # of silence that the service asked all for in this cell and that is left
    refusals: int  # with a wait, since the last success
    asked_s: float  # the longest of these waits, as far as it is left
    epoch: int  # of the fleet's finding that it followed
    stale: list[int]  # of successes, failures and refusals: those that came before
    rows: list[list[Any]]  # retries, success, latency, added, time: see Operation


class Home:
    """Of a worker; in a cell its other end."""

    def __init__(self) -> None:
        self.cells = 0  # that run
        self._most, self._before, self._since_s = (
            0,
            0,
            math.inf,
        )  # at once: in this wave, and in the one before
        self._given: dict[str, float] = {}  # in a cell: tokens that it began with

    def over(self) -> None:
        """In the worker: a cell has ended."""
        self.cells -= 1

    def pack(self, slots: int = 1) -> list[list[Any]]:
        """All dependencies by name; each cell gets its part of the rate of this worker, by the number of slots."""
        self.cells += 1
        now_s = TIMING.clock()
        part = self._part(slots, now_s)
        return [
            [
                d.name, d.held, d.breaker.state == "open", d.budget.tokens, d.share, d.ramping, list(d.fared),
                d.success_s, None if d.limiter.rate is None else d.limiter.rate / part, d.knobs.floor_per_s / part,
                d.limiter.pause_s(now_s), d.epoch, d.epoch_s,
            ]
            for d in DEPENDENCIES.values()
        ]  # fmt: skip

    def _part(self, slots: int, now_s: float) -> int:
        """How many cells share the rate. A cell keeps its part to its end: those that begin after it count, too."""
        if self._since_s == math.inf:
            self._before, self._since_s = slots, now_s
        elif now_s - self._since_s > WAVE_S:
            self._before, self._most, self._since_s = self._most, 0, now_s
        self._most = max(self._most, self.cells)
        return max(1, self._most, self._before)

    def unpack(self, packed: list[list[Any]]) -> None:
        """A cell begins with what its worker knew; it records its operations for the worker."""
        begin_recording()
        now_s = TIMING.clock()
        for entry in packed:
            name, held, open_, tokens, share, ramping, fared, success_s, rate, floor, pause_s, *epoch = entry
            state = dependency(name)
            state.limiter.reset()
            state.limiter.led = state.breaker.led = True  # one cell sees too little to judge by itself
            state.limiter.floor_per_s = floor
            state.limiter.lead(now_s, rate)
            if pause_s:
                state.limiter.pause(now_s, pause_s, heard=True)
            state.budget.unmetered = rate is not None
            state.held, state.rows = held, []
            state.budget.tokens = self._given[name] = tokens
            state.ramping = ramping
            state.expect(share)
            state.begin_in_cell((fared[0], fared[1]), success_s, *epoch)
            # what an earlier stage met in this cell is its worker's business by now
            state.breaker.reset(now_s)
            if open_:
                state.breaker.trip(now_s)

    def away(self, name: str) -> bool:
        """Whether the breaker is open."""
        return name in DEPENDENCIES and DEPENDENCIES[name].breaker.state == "open"

    def report(self) -> list[list[Any]] | None:
        """Of each dependency that was asked."""
        now_s = TIMING.clock()
        told = [
            [
                d.name, d.requests, d.successes, d.failures, d.throttled,
                d.budget.tokens - self._given.get(d.name, d.budget.reserve), d.dropped,
                max(0.0, d.limiter.asked_s - now_s), *d.refused_last(now_s), d.epoch, list(d.stale),
                [[r.retry_count, r.success, r.latency_ms, r.added_ms, r.timestamp_ms] for r in d.rows or ()],
            ]
            for d in DEPENDENCIES.values()
            if d.requests
        ]  # fmt: skip
        for state in DEPENDENCIES.values():  # this cell may serve another stage, and tells nothing twice
            state.requests = state.successes = state.failures = state.throttled = state.dropped = 0
            state.rows = []
        return told or None

    def learn(self, report: Any, work: Work) -> None:
        """As if the calls had been made here, just now. Raises: ValueError, TypeError for what no cell can tell.

        A service that neither this worker nor the stage knows is heard of only while there are few.
        """
        now_s = TIMING.clock()
        for told in [_learned(entry) for entry in report]:
            if (
                told.name not in DEPENDENCIES
                and told.name not in work.needs
                and len(DEPENDENCIES) >= STRANGE_MAX
            ):
                continue
            state = dependency(told.name)
            _take(state, told, now_s)
            for row in told.rows:
                state.record(Operation(told.name, row[0], row[1], row[2], row[3], row[4], work.job_id))
            state.dropped += told.dropped


def _take(state: Dependency, told: Learned, now_s: float) -> None:
    """Count what a cell counted, and draw the same conclusions."""
    state.requests += told.requests
    state.runs += 1
    counts = (told.successes, told.failures, told.throttled)
    for number, stale in enumerate(told.stale if told.epoch == state.epoch else counts):
        state.stale[number] += stale
    state.failures += told.failures - min(told.failures, TOLD_MAX)
    state.throttled += told.throttled - min(told.throttled, TOLD_MAX)
    state.successes += told.successes - min(told.successes, TOLD_MAX)
    for _ in range(min(told.failures, TOLD_MAX)):
        state.missed(now_s)
        state.breaker.failed(now_s)
        state.limiter.failed(now_s)
    for _ in range(min(told.throttled, TOLD_MAX)):
        state.missed(now_s, throttled=True)
        state.limiter.throttled(now_s)
    if told.pause_s:
        state.limiter.pause(now_s, told.pause_s)
    for _ in range(min(told.successes, TOLD_MAX)):  # last: these failures are not in a row then
        state.answered(now_s)
    for _ in range(min(told.refusals, 10 * REFUSALS) if told.asked_s else 0):
        state.asked_to_wait(now_s, told.asked_s)
    state.budget.tokens = max(0.0, min(state.budget.reserve, state.budget.tokens + told.tokens))


def _learned(entry: Any) -> Learned:
    """What a cell says of one dependency, each part as it must be."""
    told = Learned(*entry)
    counts = (told.requests, told.successes, told.failures, told.throttled, told.dropped, told.refusals)
    if type(told.name) is not str or not 0 < len(told.name) <= NAME_MAX:
        raise ValueError("a dependency without a name")
    if type(told.stale) is not list or len(told.stale) != 3:
        raise ValueError("results of another form")
    if any(type(count) is not int or not 0 <= count <= COUNT_MAX for count in (*counts, *told.stale)):
        raise ValueError("a count that cannot be")
    if type(told.epoch) is not int or not 0 <= told.epoch <= TIME_MAX:
        raise ValueError("a time that cannot be")
    if type(told.tokens) not in (int, float) or not -TOKENS_MOST <= told.tokens <= TOKENS_MOST:
        raise ValueError("tokens that cannot be")
    for wait_s in (told.pause_s, told.asked_s):
        if type(wait_s) not in (int, float) or not 0 <= wait_s <= PAUSE_S_MAX:
            raise ValueError("a pause that cannot be")
    _check_rows(told.rows)
    return told


def _check_rows(rows: Any) -> None:
    if type(rows) is not list or len(rows) > ROWS_MAX:
        raise ValueError("operations that cannot be")
    for retries, success, *times in rows:
        numbers = (retries, *times)
        if type(success) is not bool or len(times) != 3 or any(type(one) is not int for one in numbers):
            raise ValueError("an operation of another form")
        if not all(0 <= one <= TIME_MAX for one in numbers) or max(retries, *times[:2]) > COUNT_MAX:
            raise ValueError("an operation that took no time that can be")


MESSENGERS["calls"] = Home()
if "calls" in PACKED:
    MESSENGERS["calls"].unpack(PACKED["calls"])
