"""Waits between tries: full jitter, drawn after the cap, never overflowing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.calls.jitter import FullJitter


def test_bounds_double_from_the_base_to_the_cap() -> None:
    assert [FullJitter(2, 30).bound_s(n) for n in range(6)] == [2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize(("drawn", "wait"), [(0.0, 0.0), (0.25, 7.5), (0.5, 15.0)])
def test_jitter_is_drawn_after_the_cap(drawn: float, wait: float) -> None:
    assert FullJitter(2, 30).delay_s(50, lambda: drawn) == wait


def test_capped_waits_still_spread() -> None:
    dice = random.Random(3)
    waits = [FullJitter(1, 30).delay_s(20, dice.random) for _ in range(400)]
    assert min(waits) < 2
    assert max(waits) > 28


@pytest.mark.parametrize("n", [1_024, 10**6, 10**9])
def test_many_tries_do_not_overflow(n: int) -> None:
    assert FullJitter(0.1, 10).bound_s(n) == 10


def test_a_base_of_nothing_waits_for_nothing() -> None:
    assert FullJitter(0, 10).delay_s(10**6, lambda: 0.9) == 0


@given(
    base=st.floats(0, 1e6), cap=st.floats(0, 1e6), n=st.integers(0, 10**7), drawn=st.floats(0, 1, exclude_max=True)
)  # fmt: skip
def test_no_wait_is_longer_than_its_bound_or_the_cap(base: float, cap: float, n: int, drawn: float) -> None:
    jitter = FullJitter(base, cap)
    assert 0 <= jitter.delay_s(n, lambda: drawn) <= jitter.bound_s(n) <= cap
    assert jitter.bound_s(n) <= jitter.bound_s(n + 1)
