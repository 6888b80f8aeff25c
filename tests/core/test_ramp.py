"""Probes and ramps: rare enough while a service is away, slow enough when it is back, and never for ever."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.ramp import probe_after_ms, ramp_per_s, turns

HOUR_MS = 3_600_000


def test_probes_come_after_four_seconds_and_then_ever_more_rarely() -> None:
    assert [probe_after_ms(n) for n in (0, 1, 2, 3, 14, 15)] == [4_000, 4_800, 5_760, 6_912, 51_357, 60_000]
    assert probe_after_ms(10**9) == 60_000


def test_an_hour_costs_fewer_than_a_hundred_probes() -> None:
    at_ms = accumulate(probe_after_ms(n) for n in range(100))
    assert 50 < sum(ms <= HOUR_MS for ms in at_ms) < 100


def test_a_ramp_begins_with_a_tenth_and_ends_a_little_above_what_is_usual() -> None:
    assert [round(ramp_per_s(s, 100.0)) for s in (0, 1, 2, 5, 7, 60, 299)] == [10, 15, 22, 76, 120, 120, 120]


def test_where_little_is_usual_one_a_second_may_go() -> None:
    assert {ramp_per_s(s, 0.01) for s in (0, 5, 299)} == {1.0}


def test_what_was_usual_does_not_bind_for_ever() -> None:
    assert ramp_per_s(360, 10.0) == 24.0
    assert ramp_per_s(900, 0.01) == 2.0**10


def test_where_nobody_knows_what_is_usual_a_ramp_doubles() -> None:
    assert [ramp_per_s(s, None) for s in (0, 1, 2, 10)] == [1, 2, 4, 1024]


@given(st.floats(-1e9, 1e9), st.none() | st.floats(0, 1e6))
def test_a_ramp_is_always_a_number_that_lets_somebody_go(elapsed_s: float, nominal: float | None) -> None:
    assert 1.0 <= ramp_per_s(elapsed_s, nominal) < 1e20


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
