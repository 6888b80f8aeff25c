"""The limiter: none while all is well, bounded and adaptive under overload, and it gives itself up."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.calls.limiter import FORGET_S, PAUSE_S_MAX, Limiter


def used(per_s: int = 10, for_s: int = 20) -> Limiter:
    """One that has seen a steady demand; the next second begins at `for_s`."""
    limiter = Limiter()
    for n in range(for_s * per_s):
        limiter.succeeded(n / per_s)
    return limiter


def limited(rate: float, now_s: float = 0.0) -> Limiter:
    """One that has just been cut to about this rate."""
    limiter = Limiter()
    limiter.throttled(now_s)
    limiter.rate = rate
    return limiter


# --- beginning ---------------------------------------------------------------------------------


def test_without_trouble_there_is_no_limit_and_no_wait() -> None:
    limiter = used()
    assert limiter.rate is None
    assert [limiter.ask(20.0) for _ in range(1_000)] == [0.0] * 1_000


def test_single_failures_begin_no_limit() -> None:
    limiter = used()
    for n in range(500):
        now_s = 20 + n / 10
        (limiter.failed if n % 10 == 0 else limiter.succeeded)(now_s)
    assert limiter.rate is None


def test_failures_that_prevail_cut_the_usual_demand() -> None:
    limiter = used(10)
    now_s = 20.0
    while limiter.rate is None:
        limiter.failed(now_s)
        now_s += 0.1
    assert limiter.rate == pytest.approx(6, rel=0.1)
    assert now_s < 23


def test_being_told_to_slow_down_is_enough() -> None:
    limiter = used(10)
    limiter.throttled(20.0)
    assert limiter.rate == pytest.approx(6, rel=0.1)


def test_permanent_errors_and_cancelled_calls_have_nothing_to_tell() -> None:
    told = {name for name in vars(Limiter) if not name.startswith("_") and callable(getattr(Limiter, name))}
    assert told == {"ask", "succeeded", "failed", "throttled", "pause", "pause_s", "lead", "reset"}


# --- cutting -------------------------------------------------------------------------------------


def test_at_most_one_decrease_in_half_a_second() -> None:
    limiter = used(100)
    seen = []
    for n in range(100):  # a second of refusals
        limiter.throttled(20 + n / 100)
        seen.append(limiter.rate)
    assert len(set(seen)) == 2


def test_refusals_cut_to_the_floor_and_no_further() -> None:
    limiter = used(10)
    for n in range(100):
        limiter.throttled(20.0 + n)
    assert limiter.rate == 0.5


def test_failures_leave_a_quarter_of_the_usual_demand() -> None:
    limiter = used(10)
    for n in range(200):
        limiter.failed(20 + n / 10)
    assert limiter.rate == pytest.approx(2.5, rel=0.1)


def test_a_hint_stops_everything_for_that_long() -> None:
    limiter = used(10)
    limiter.throttled(20.0, hint_s=7.0)
    assert limiter.ask(20.0) == 7.0
    assert limiter.ask(25.5) == 1.5
    assert limiter.ask(26.0) == 1.0


def test_a_huge_hint_stops_others_for_a_day_only() -> None:
    limiter = used(10)
    limiter.throttled(20.0, hint_s=1e9)
    assert limiter.ask(20.0) == PAUSE_S_MAX


# --- turns -----------------------------------------------------------------------------------------


def test_turns_come_at_the_rate() -> None:
    limiter = limited(4.0)
    assert [limiter.ask(0.0) for _ in range(5)] == [0, 0.25, 0.5, 0.75, 1.0]


def test_who_would_wait_too_long_gets_no_turn_and_takes_none() -> None:
    limiter = limited(4.0)
    for _ in range(5):
        limiter.ask(0.0)
    assert [limiter.ask(0.0) for _ in range(1_000)] == [1.25] * 1_000
    assert limiter.ask(0.5) == 0.75


def test_unused_turns_are_not_saved_up() -> None:
    limiter = limited(4.0)
    limiter.ask(0.0)
    assert [limiter.ask(10.0) for _ in range(3)] == [0, 0.25, 0.5]


# --- ending ------------------------------------------------------------------------------------------


def test_successes_raise_the_rate_until_it_gives_itself_up() -> None:
    limiter = used(10)
    for n in range(60):
        limiter.failed(20 + n / 10)
    rates, now_s = [limiter.rate], 26.0
    while limiter.rate is not None and now_s < 60:
        now_s += limiter.ask(now_s)
        limiter.succeeded(now_s)
        rates.append(limiter.rate)
    assert limiter.rate is None
    assert now_s - 26.0 < 6
    known = [rate for rate in rates if rate is not None]
    assert known == sorted(known)
    assert known[-1] <= 2 * 10 * 1.1


def test_a_few_failures_do_not_keep_it_from_ending() -> None:
    limiter = used(10)
    for n in range(60):
        limiter.failed(20 + n / 10)
    now_s, n = 26.0, 0
    while limiter.rate is not None and now_s < 120:
        now_s += limiter.ask(now_s)
        n += 1
        (limiter.failed if n % 20 == 0 else limiter.succeeded)(now_s)
    assert limiter.rate is None


def test_a_limit_that_nobody_met_for_long_is_forgotten() -> None:
    limiter = limited(0.5)
    limiter.ask(0.0)
    assert limiter.ask(1.0) == 1.0
    assert limiter.ask(4.0 + FORGET_S + 1) == 0.0
    assert limiter.rate is None


# --- with others -------------------------------------------------------------------------------------


def test_the_rate_is_that_of_the_fleet_whatever_comes_back() -> None:
    limiter = used(10)
    limiter.led = True
    limiter.failed(20.0)
    limiter.throttled(20.0)
    assert not limiter.on
    limiter.lead(20.0, 4.0)
    assert [limiter.ask(20.0) for _ in range(3)] == [0, 0.25, 0.5]
    for n in range(100):
        limiter.succeeded(20.0 + n / 10)
        limiter.failed(20.0 + n / 10)
    assert limiter.rate == 4.0
    limiter.lead(30.0, 0.001)
    assert limiter.rate == 0.5
    limiter.lead(30.0, None)
    assert (limiter.on, limiter.ask(30.0)) == (False, 0.0)


def test_a_pause_lasts_as_long_as_the_service_asked_whatever_the_fleet_says() -> None:
    limiter = used(10)
    limiter.led = True
    limiter.throttled(20.0, hint_s=90.0)
    limiter.pause(21.0, 5.0)
    limiter.lead(22.0, 4.0)
    assert limiter.ask(30.0) == 80.0
    limiter.lead(30.0, None)
    assert limiter.ask(30.0) == 80.0
    assert limiter.ask(110.5) == 0.0
    assert not limiter.on


# --- with a service ------------------------------------------------------------------------------------


def against(
    limiter: Limiter, demand: int, for_s: int, answer: Callable[[float], bool]
) -> tuple[int, int, int]:
    """(answered, refused by the service, shed) of calls that come evenly."""
    answered = refused = shed = 0
    due: list[float] = []
    for n in range(demand * for_s):
        now_s = n / demand
        while due and due[0] <= now_s:
            at_s = due.pop(0)
            if answer(at_s):
                answered += 1
                limiter.succeeded(at_s)
            else:
                refused += 1
                limiter.throttled(at_s)
        wait_s = limiter.ask(now_s)
        if wait_s > limiter.max_wait_s:
            shed += 1
        else:
            due.append(now_s + wait_s)
            due.sort()
    return answered, refused, shed


def test_it_finds_what_a_service_with_a_quota_allows() -> None:
    tokens, last_s = 5.0, 0.0

    def quota(now_s: float) -> bool:
        nonlocal tokens, last_s
        tokens, last_s = min(5.0, tokens + (now_s - last_s) * 5), now_s
        if tokens < 1:
            return False
        tokens -= 1
        return True

    answered, refused, shed = against(Limiter(), demand=20, for_s=120, answer=quota)
    assert answered >= 0.75 * 5 * 120
    assert refused <= 0.5 * answered  # without a limit three of four are refused
    assert shed >= 0.5 * 20 * 120


# --- whatever happens ------------------------------------------------------------------------------------

events = st.tuples(
    st.sampled_from(["ask", "ask", "succeeded", "failed", "throttled", "hint"]),
    st.sampled_from([0.0, 0.01, 0.1, 0.6, 2.5, 30.0, 500.0]),
)


@given(st.lists(events, max_size=150), st.floats(0.1, 5), st.floats(0.1, 10))
def test_whatever_happens_rates_and_waits_are_bounded(
    happenings: list[tuple[str, float]], max_wait_s: float, floor: float
) -> None:
    limiter, now_s, cut_s, reserved_s = Limiter(max_wait_s, floor), 0.0, -1.0, 0.0
    for name, later_s in happenings:
        now_s += later_s
        before = limiter.rate
        if name == "ask":
            wait_s = limiter.ask(now_s)
            assert 0 <= wait_s <= max(max_wait_s + 1 / floor, PAUSE_S_MAX)
            if wait_s <= max_wait_s and limiter.rate is not None:
                assert now_s + wait_s >= reserved_s  # turns never overtake each other
                reserved_s = now_s + wait_s
        elif name == "hint":
            limiter.throttled(now_s, hint_s=20.0)
        else:
            getattr(limiter, name)(now_s)
        after = limiter.rate
        assert after is None or after >= floor
        if after is not None and (before is None or after < before):
            assert cut_s < 0 or now_s - cut_s >= limiter.spacing_s
            cut_s = now_s


def test_nothing_grows_with_the_calls() -> None:
    limiter = limited(0.5)

    def size() -> int:
        return sum(sys.getsizeof(getattr(limiter, name)) for name in Limiter.__slots__)

    before = size()
    for n in range(10_000):
        limiter.ask(n / 10_000)
        limiter.failed(n / 10_000)
    assert size() <= before + 64
