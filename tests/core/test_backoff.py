"""The waits between attempts: the documented tables, and that no number of attempts breaks them."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.core.backoff import DELAY_MS_MAX, Backoff
from perdure.core.model import POLICY_DEFAULT, Policy

MINUTE_MS = 60_000
COLLECTION = Backoff(base_ms=300_000, cap_ms=3_600_000)


def test_default_waits_are_two_then_four_seconds() -> None:
    assert [Backoff().delay_ms(made) for made in (1, 2)] == [2_000, 4_000]


def test_the_default_policy_waits_six_seconds_in_all() -> None:
    waits = [POLICY_DEFAULT.backoff.delay_ms(made) for made in range(1, POLICY_DEFAULT.attempts)]
    assert POLICY_DEFAULT.attempts == 3
    assert sum(waits) == 6_000


@pytest.mark.parametrize(
    ("attempts", "minutes"),
    [(3, [5, 10]), (5, [5, 10, 20, 40]), (8, [5, 10, 20, 40, 60, 60, 60])],
)
def test_collections_wait_five_minutes_doubling_up_to_an_hour(attempts: int, minutes: list[int]) -> None:
    waits = [COLLECTION.delay_ms(made) for made in range(1, attempts)]
    assert waits == [m * MINUTE_MS for m in minutes]


@pytest.mark.parametrize("made", [63, 64, 1_000, 10_000, 10**9])
def test_many_attempts_neither_overflow_nor_grow_without_end(made: int) -> None:
    assert COLLECTION.delay_ms(made) == 60 * MINUTE_MS
    assert Backoff().delay_ms(made) == DELAY_MS_MAX
    assert 0 <= Backoff(jitter=True).delay_ms(made, lambda: 0.999_999) < DELAY_MS_MAX


@pytest.mark.parametrize("made", [0, -1])
def test_fewer_than_one_attempt_waits_like_the_first(made: int) -> None:
    assert Backoff().delay_ms(made) == 2_000


def test_without_a_cap_the_wait_keeps_doubling() -> None:
    assert Backoff(base_ms=1).delay_ms(11) == 1_024


def test_a_cap_below_the_base_wins() -> None:
    assert Backoff(base_ms=2_000, cap_ms=500).delay_ms(1) == 500


@pytest.mark.parametrize(("drawn", "wait"), [(0.0, 0), (0.5, 1_800_000), (0.999_999_9, 3_599_999)])
def test_jitter_is_drawn_after_the_cap(drawn: float, wait: int) -> None:
    capped = Backoff(base_ms=300_000, cap_ms=3_600_000, jitter=True)
    assert capped.delay_ms(10_000, lambda: drawn) == wait


def test_capped_waits_with_jitter_still_spread() -> None:
    capped, dice = Backoff(base_ms=300_000, cap_ms=3_600_000, jitter=True), random.Random(7)
    waits = [capped.delay_ms(50, dice.random) for _ in range(400)]
    assert min(waits) < 600_000
    assert max(waits) > 3_000_000
    assert len(set(waits)) > 350


def test_without_jitter_nothing_is_drawn() -> None:
    def forbidden() -> float:
        raise AssertionError("drew a number")

    assert Backoff().delay_ms(3, forbidden) == 8_000


@given(
    base=st.integers(0, 10**7),
    cap=st.none() | st.integers(0, 10**9),
    made=st.integers(1, 10**6),
    drawn=st.floats(0, 1, exclude_max=True),
)
def test_jitter_never_exceeds_the_plain_wait_which_never_exceeds_its_cap(
    base: int, cap: int | None, made: int, drawn: float
) -> None:
    plain = Backoff(base, cap).delay_ms(made)
    spread = Backoff(base, cap, jitter=True).delay_ms(made, lambda: drawn)
    assert 0 <= spread <= plain <= (DELAY_MS_MAX if cap is None else cap)


@given(base=st.integers(1, 10**7), cap=st.none() | st.integers(1, 10**9), made=st.integers(1, 200))
def test_waits_never_shrink(base: int, cap: int | None, made: int) -> None:
    schedule = Backoff(base, cap)
    assert schedule.delay_ms(made) <= schedule.delay_ms(made + 1)


@example(base=2_000, cap=2**80, made=10_000)
@given(base=st.integers(0, 10**9), cap=st.integers(0, 2**80), made=st.integers(1, 10**6))
def test_every_wait_fits_a_64_bit_column_beside_the_time(base: int, cap: int, made: int) -> None:
    assert Backoff(base, cap).delay_ms(made) + 2**42 < 2**63


def test_a_policy_hands_its_numbers_to_its_backoff() -> None:
    assert Policy(base_ms=7, cap_ms=9, jitter=True).backoff == Backoff(7, 9, True)
