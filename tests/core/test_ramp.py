"""Probes and ramps: rare enough while a service is away, slow enough when it is back, and never for ever."""

from __future__ import annotations

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
        rates.append(Ramp(rates[-1], float(second), **how).step(1.0, nominal))
    return rates


def test_a_ramp_begins_with_a_tenth_and_ends_a_little_above_what_is_usual() -> None:
    rates = ramped(29, 100.0)
    assert [round(rates[s]) for s in (0, 1, 2, 5, 7, 29)] == [10, 15, 22, 76, 120, 120]


def test_where_little_is_usual_one_a_second_may_go() -> None:
    assert set(ramped(29, 0.01)) == {1.0}


def test_what_was_usual_does_not_bind_long() -> None:
    assert ramped(90, 10.0, good=5)[-1] == pytest.approx(12 * 2**3, rel=0.01)


def test_a_bound_is_not_lifted_while_nobody_is_answered() -> None:
    assert ramped(90, 10.0)[-1] == ramped(90, 10.0, arriving_per_s=50.0)[-1] == 12.0


def test_more_that_come_than_is_usual_lift_the_bound_at_once() -> None:
    assert ramped(10, 2.0)[-1] == pytest.approx(2.4)
    assert ramped(28, 2.0, arriving_per_s=5.0, good=5)[-1] == pytest.approx(5.0, rel=0.06)


def test_what_a_bound_was_lifted_to_stays() -> None:
    assert Ramp(14.0, 5.0).step(1.0, 5.0) == 14.0


def test_where_nobody_knows_what_is_usual_a_ramp_doubles() -> None:
    assert [ramped(10, None)[s] for s in (0, 1, 2, 10)] == [1, 2, 4, 1024]


def test_a_ramp_is_halved_while_the_service_does_not_answer_well() -> None:
    assert Ramp(20.0, 5.0, good=3, bad=7).step(1.0, 100.0) == 10.0
    assert Ramp(20.0, 5.0, good=3, bad=7).step(1.0, 100.0, share=0.4) == 30.0  # that is usual for it
    assert Ramp(1.0, 5.0, good=0, bad=2).step(1.0, 100.0) == 1.0


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
    assert 1.0 <= Ramp(per_s, elapsed_s).step(gone_s, nominal) <= 1e6


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
