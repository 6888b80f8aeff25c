"""Probes and ramps: rare enough while a service is away, slow enough when it is back, and never for ever."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.ramp import Ramp, probe_after_ms, ramp_start, turns

HOUR_MS = 3_600_000


def test_probes_come_after_four_seconds_and_then_ever_more_rarely() -> None:
    assert [probe_after_ms(n) for n in (0, 1, 2, 3, 14, 15)] == [4_000, 4_800, 5_760, 6_912, 51_357, 60_000]
    assert probe_after_ms(10**9) == 60_000


def test_an_hour_costs_fewer_than_a_hundred_probes() -> None:
    at_ms = accumulate(probe_after_ms(n) for n in range(100))
    assert 50 < sum(ms <= HOUR_MS for ms in at_ms) < 100


def ramped(seconds: int, nominal: float | None, **how: Any) -> list[float]:
    """What may be lent each second, from the start on."""
    rates = [ramp_start(nominal)]
    for second in range(1, seconds + 1):
        rates.append(Ramp(rates[-1], float(second), **how).step(1.0, nominal).per_s)
    return rates


def test_a_ramp_begins_with_a_tenth_and_ends_a_little_above_what_is_usual() -> None:
    rates = ramped(29, 100.0)
    assert [round(rates[s]) for s in (0, 1, 2, 5, 7, 29)] == [10, 15, 22, 76, 120, 120]


def test_where_little_is_usual_one_a_second_may_go() -> None:
    assert set(ramped(29, 0.01)) == {1.0}


class Answering:
    """A service that queues what it cannot answer at once, and answers in vain what is older than `patience_s`; or it
    refuses that."""

    def __init__(self, bears_per_s: int, refuses: bool, patience_s: int = 2) -> None:
        self.bears_per_s, self.patience_s, self.refuses = bears_per_s, patience_s, refuses
        self.queue: list[int] = []  # the seconds in which they came
        self.second = 0

    def serve(self, number: int) -> tuple[int, int]:
        """A second passes; documents that were answered well, and the others that ended."""
        self.second += 1
        self.queue += [self.second] * number
        done, self.queue = self.queue[: self.bears_per_s], self.queue[self.bears_per_s :]
        refused = len(self.queue) if self.refuses else 0
        self.queue = [] if self.refuses else self.queue
        late = sum(self.second - came > self.patience_s for came in done)
        return len(done) - late, refused + late


def drained(service: Answering, nominal: float, seconds: int) -> list[tuple[int, int]]:
    """What was lent and what was answered in each of so many seconds of a ramp."""
    ramp, paid_ms, seen = Ramp(ramp_start(nominal), 0.0), 0, []
    for second in range(1, seconds + 1):
        assert not ramp.lost()
        ramp = replace(ramp, elapsed_s=float(second)).step(second - paid_ms / 1_000, nominal)
        number, paid_ms = turns(ramp.per_s, paid_ms, 1_000 * second)
        good, bad = service.serve(number)
        ramp = replace(ramp, good=good, bad=bad, done=good)
        seen.append((number, good))
    return seen


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(("nominal", "bears"), [(5, 100), (20, 20), (20, 60), (40, 60), (100, 300)])
def test_a_backlog_is_drained_as_fast_as_the_service_bears_it(
    nominal: int, bears: int, refuses: bool
) -> None:
    seen = drained(Answering(bears, refuses), nominal, 120)[40:]
    assert sum(good for _, good in seen) >= 0.9 * bears * len(seen)
    assert sum(lent for lent, _ in seen) <= 1.1 * bears * len(seen)


@pytest.mark.parametrize(("nominal", "bears"), [(20, 20), (20, 60), (40, 60), (100, 300)])
def test_no_queue_stays_inside_a_service_that_bears_no_more(nominal: int, bears: int) -> None:
    service = Answering(bears, refuses=False)
    drained(service, nominal, 120)
    assert len(service.queue) <= bears


@pytest.mark.parametrize(("nominal", "bears"), [(20, 10), (40, 20), (100, 50), (100, 30)])
def test_a_queue_does_not_build_up_in_a_service_that_bears_less_than_usual(nominal: int, bears: int) -> None:
    service = Answering(bears, refuses=False)
    seen = drained(service, nominal, 120)
    assert sum(good for _, good in seen[20:]) >= 0.95 * bears * 100
    assert sum(lent for lent, _ in seen) <= 1.05 * bears * len(seen)
    assert max(sum(lent for lent, _ in seen[n : n + 5]) for n in range(115)) <= 1.3 * 5 * bears


@pytest.mark.parametrize(("nominal", "bears", "seconds"), [(5, 100, 14), (20, 100, 12), (2, 40, 14)])
def test_a_ramp_leaps_while_documents_end_as_fast_as_they_are_lent(
    nominal: int, bears: int, seconds: int
) -> None:
    seen = drained(Answering(bears, refuses=False), nominal, seconds)
    assert seen[-1][1] == bears


def test_documents_that_end_late_hold_no_ramp_back() -> None:
    ramp, lent = Ramp(ramp_start(20.0), 0.0), [0.0] * 10
    for second in range(1, 15):
        done = int(lent[-10])
        ramp = replace(ramp, elapsed_s=float(second), good=done, done=done).step(1.0, 20.0)
        assert ramp.per_s >= min(24.0, 1.5**second)
        lent.append(ramp.per_s)


def test_a_ramp_is_wary_after_failures() -> None:
    ramp = Ramp(20.0, 20.0, good=20, done=20, done_per_s=20.0, most_per_s=20.0, flat_s=7.0, prompt=100)
    assert ramp.step(1.0, 100.0).per_s <= 22.0
    failed = replace(ramp, good=14, bad=6, done=14).step(1.0, 100.0)
    calm = replace(failed, good=20, bad=0, done=20).step(1.0, 100.0)
    assert calm.per_s > 22.0  # up to the usual rate again
    assert calm.prompt < 0


def test_up_to_what_is_usual_nothing_but_failures_holds_a_ramp_back() -> None:
    assert ramped(20, 40.0)[-1] == ramped(20, 40.0, good=1)[-1] == pytest.approx(48.0)


def test_nothing_is_lifted_while_nobody_is_answered() -> None:
    assert ramped(90, 10.0)[-1] == 12.0


def test_nothing_is_lifted_while_the_fleet_limits_the_requests() -> None:
    ramp = Ramp(12.0, 20.0, good=60, done=60, done_per_s=12.0, most_per_s=12.0)
    assert ramp.step(1.0, 10.0, limited=True).per_s <= ramp.step(1.0, 10.0, limited=True).done_per_s
    assert ramp.step(1.0, 10.0).most_per_s > 12.0


def test_a_ramp_steps_back_when_some_fail_and_looks_again_later() -> None:
    ramp = Ramp(60.0, 20.0, good=30, bad=30, done=30, done_per_s=50.0, most_per_s=50.0).step(1.0, 20.0)
    assert ramp.per_s < 40.0
    assert ramp.per_s == pytest.approx(0.85 * ramp.most_per_s, rel=0.01)
    rates = []
    for _ in range(15):
        ramp = replace(ramp, good=30, bad=0, done=30).step(1.0, 20.0)
        rates.append(ramp.per_s)
    assert max(rates) > 33.0


@given(st.text() | st.just("[1, 2]") | st.just('["a", 1, null, 2]') | st.just("[1, 2, 3, 4, Infinity]"))
def test_a_text_that_nobody_can_read_says_nothing(text: str) -> None:
    assert Ramp(2.0, 3.0, 4, 5).read(text, 1_000) == Ramp(2.0, 3.0, 4, 5)


def test_what_a_ramp_knows_can_be_read_again() -> None:
    ramp = Ramp(2.0, 3.0, 4, 5, 6, done_per_s=7.25, most_per_s=8.0, flat_s=9.125, prompt=-7)
    read = Ramp(2.0, 3.0, 4, 5, 6).read(ramp.to_text(1_000), 3_500)
    assert read == replace(ramp, since_s=2.5)


def test_where_nobody_knows_what_is_usual_a_ramp_doubles() -> None:
    assert [ramped(10, None)[s] for s in (0, 1, 2, 10)] == [1, 2, 4, 1024]


def test_a_ramp_is_halved_while_the_service_does_not_answer_well() -> None:
    assert Ramp(20.0, 5.0, good=3, bad=7).step(1.0, 100.0).per_s == 10.0
    assert Ramp(20.0, 5.0, good=3, bad=7).step(1.0, 100.0, share=0.4).per_s == 30.0  # that is usual for it
    assert Ramp(1.0, 5.0, good=0, bad=2).step(1.0, 100.0).per_s == 1.0


def test_only_failures_and_no_success_end_a_ramp() -> None:
    assert not Ramp(1.0, 1.0, bad=2).lost()
    assert Ramp(1.0, 1.0, bad=3).lost()
    assert not Ramp(1.0, 1.0, bad=20).lost(share=0.2)
    assert Ramp(1.0, 1.0, bad=40).lost(share=0.2)
    assert not Ramp(1.0, 1.0, good=1, bad=30).lost()


@given(st.floats(1, 1e6), st.floats(-1e9, 1e9), st.none() | st.floats(0, 1e6), st.floats(-10, 1e6))
def test_a_ramp_is_always_a_number_that_lets_somebody_go(
    per_s: float, elapsed_s: float, nominal: float | None, gone_s: float
) -> None:
    assert 1.0 <= Ramp(per_s, elapsed_s).step(gone_s, nominal).per_s <= 1e6


@given(st.floats(1, 500), st.lists(st.integers(100, 1_500), min_size=20, max_size=40))
def test_turns_keep_to_their_rate_however_the_sweeps_come(per_s: float, gaps_ms: list[int]) -> None:
    since_ms = now_ms = 1_000_000
    gone = []
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        number, since_ms = turns(per_s, since_ms, now_ms)
        assert since_ms <= now_ms
        gone.append(number)
    assert max(gone) <= per_s + 1.001
    assert sum(gone) <= per_s * sum(gaps_ms) / 1_000 * 1.01 + 1


def test_in_steady_sweeps_nobody_loses_a_turn() -> None:
    since_ms, gone = 0, 0
    for second in range(1, 101):
        number, since_ms = turns(1.5, since_ms, second * 1_000)
        gone += number
    assert gone in (149, 150)


def test_a_clock_that_was_set_back_gives_no_turns_and_takes_none() -> None:
    assert turns(10, 5_000_000, 1_000_000) == (0, 1_000_000)
