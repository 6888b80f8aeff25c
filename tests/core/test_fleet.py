"""What a fleet knows together: rates, tokens and what is usual."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.fleet import rate_of_each, tokens_left, usual


@pytest.mark.parametrize(
    ("rate", "asking", "each"),
    [
        (0.0, [2.0], None),
        (6.0, [], 6.0),
        (6.0, [None, None], 6.0),
        (6.0, [2.0], 6.0),
        (6.0, [2.0, None, 0.1, 9.0], 2.0),
    ],
)
def test_the_rate_is_shared_by_the_workers_that_ask(
    rate: float, asking: list[float | None], each: float | None
) -> None:
    assert rate_of_each(rate, asking) == each


@given(st.floats(0, 10), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 50))
def test_tokens_stay_within_their_bounds(tokens: float, spent: float, earned: float, workers: int) -> None:
    assert 0 <= tokens_left(tokens, spent, earned, workers) <= 10


def test_what_is_usual_follows_with_a_half_life_of_thirty_seconds() -> None:
    nominal = usual(None, 20, 0, 1_000)
    assert nominal == 20
    for _ in range(30):
        nominal = usual(nominal, 40, 0, 1_000)
    assert nominal == pytest.approx(30)


def test_idle_times_do_not_count() -> None:
    assert usual(20.0, 0, 0, 3_600_000) == 20.0
    assert usual(None, 0, 0, 1_000) is None
    assert usual(None, 10, 0, 3_600_000) == 10.0  # nobody reported for an hour
