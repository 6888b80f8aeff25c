"""The retry budget: a reserve, then a share of what succeeds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.calls.budget import Budget


def test_a_reserve_of_ten_then_nothing() -> None:
    budget = Budget()
    assert [budget.spend() for _ in range(12)] == [True] * 10 + [False] * 2


def test_ten_successes_earn_a_retry() -> None:
    budget = Budget(reserve=1.0, ratio=0.125)
    assert budget.spend()
    for _ in range(7):
        budget.earn()
    assert not budget.spend()
    budget.earn()
    assert budget.spend()
    assert not budget.spend()


def test_a_cheaper_retry_takes_less() -> None:
    budget = Budget(reserve=1.0)
    assert budget.spend(0.5)
    assert budget.spend(0.5)
    assert not budget.spend(0.5)


def test_a_refused_retry_takes_nothing() -> None:
    budget = Budget(reserve=0.5)
    assert not budget.spend()
    assert budget.tokens == 0.5


def test_successes_never_fill_it_beyond_the_reserve() -> None:
    budget = Budget()
    for _ in range(10_000):
        budget.earn()
    assert budget.tokens == 10


@given(st.lists(st.sampled_from(["earn", "spend", "throttle"]), max_size=400))
def test_retries_are_at_most_the_reserve_and_a_tenth_of_the_successes(steps: list[str]) -> None:
    budget, spent, earned = Budget(), 0.0, 0
    for step in steps:
        if step == "earn":
            budget.earn()
            earned += 1
        else:
            cost = 1.0 if step == "spend" else 0.5
            spent += cost * budget.spend(cost)
        assert 0 <= budget.tokens <= 10
    assert spent <= 10 + 0.1 * earned + 1e-6
