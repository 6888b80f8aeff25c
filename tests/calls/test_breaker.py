"""The breaker: when it opens, how one probe at a time finds out, and that no probe can block it for ever."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.calls.breaker import Breaker, Ticket


def calm(**changes: float) -> Breaker:
    """A breaker whose intervals are not spread."""
    return Breaker(rand=lambda: 0.0, **changes)  # type: ignore[arg-type]


def opened(now_s: float = 0.0) -> Breaker:
    breaker = calm()
    breaker.trip(now_s)
    return breaker


def state(breaker: Breaker) -> str:
    return breaker.state


def fail(breaker: Breaker, times: int, now_s: float = 0.0) -> None:
    for _ in range(times):
        breaker.failed(now_s)


# --- opening -----------------------------------------------------------------------------------


def test_ten_failures_in_a_row_are_borne_the_eleventh_opens() -> None:
    breaker = calm()
    fail(breaker, 10)
    assert (state(breaker), breaker.troubled) == ("closed", False)
    breaker.failed(0.0)
    assert (state(breaker), breaker.troubled) == ("open", True)
    assert breaker.admit(1.0) is None


@pytest.mark.parametrize("failures", [1, 3, 9, 12])
def test_as_many_failures_are_borne_as_somebody_wants(failures: int) -> None:
    breaker = calm(consecutive=failures)
    fail(breaker, failures, 0.0)
    assert state(breaker) == "closed"
    fail(breaker, 1, 0.0)
    assert state(breaker) == "open"


def test_a_success_breaks_the_row() -> None:
    breaker = calm(least=1_000)
    for _ in range(20):
        fail(breaker, 10)
        breaker.succeeded(0.0)
    assert state(breaker) == "closed"


def looking() -> Breaker:
    """One that has seen half of twenty fail."""
    breaker = calm()
    for _ in range(9):
        breaker.failed(0.0)
        breaker.succeeded(0.0)
    breaker.failed(0.0)
    assert state(breaker) == "closed"  # 10 of 19
    breaker.failed(0.0)
    return breaker


def test_half_of_at_least_twenty_recent_ones_begin_a_look_that_stops_nobody() -> None:
    breaker = looking()
    assert (state(breaker), breaker.troubled) == ("half_open", False)
    assert breaker.admit(0.0) == Ticket()
    breaker.succeeded(0.0)
    assert state(breaker) == "closed"


def test_a_look_that_sees_nothing_but_failures_opens() -> None:
    breaker = looking()
    fail(breaker, 24)
    assert state(breaker) == "half_open"
    fail(breaker, 10)
    assert (state(breaker), breaker.troubled) == ("open", True)


@pytest.mark.parametrize("answered", [0.2, 0.35, 0.5, 0.8])
def test_a_service_that_answers_a_part_is_not_away_however_often_it_fails(answered: float) -> None:
    breaker, rand = calm(), random.Random(4).random
    breaker.succeeded(0.0)
    for n in range(20_000):
        (breaker.succeeded if n % 11 == 0 or rand() < answered else breaker.failed)(n / 50)
        assert not breaker.troubled, f"after {n}"
    fail(breaker, 120, 400.0)
    assert breaker.troubled


def test_what_the_fleet_expects_counts_before_anything_was_seen() -> None:
    breaker = calm()
    breaker.expected = 0.2
    fail(breaker, 50)
    assert (state(breaker), breaker.troubled) == ("half_open", False)
    fail(breaker, 40)
    assert breaker.troubled


def test_a_service_that_answers_next_to_nothing_is_away() -> None:
    breaker = calm()
    for n in range(200):
        (breaker.succeeded if n % 40 == 20 else breaker.failed)(0.0)
    assert breaker.troubled


def test_fewer_than_half_do_not_open() -> None:
    breaker = calm()
    for _ in range(100):
        breaker.succeeded(0.0)
        breaker.succeeded(0.0)
        breaker.failed(0.0)
    assert state(breaker) == "closed"


def test_an_hour_of_success_does_not_hide_an_outage() -> None:
    breaker = calm()
    for second in range(3_600):
        breaker.succeeded(float(second))
    for n in range(10):
        breaker.failed(3_600.0 + n * 0.1)
        breaker.succeeded(3_600.0 + n * 0.1)
    assert state(breaker) == "closed"
    breaker.failed(3_601.5)
    assert state(breaker) == "half_open"
    fail(breaker, 40, 3_602.0)
    assert state(breaker) == "open"


def test_failures_long_ago_do_not_count() -> None:
    breaker = calm(consecutive=1_000)
    for n in range(200):
        breaker.failed(n * 3.0)  # a few in ten seconds, never twenty
    assert state(breaker) == "closed"


def test_somebody_else_may_know() -> None:
    breaker = opened(5.0)
    assert state(breaker) == "open"
    breaker.reset(6.0)
    assert (state(breaker), breaker.troubled) == ("closed", False)
    fail(breaker, 10, 6.0)
    assert state(breaker) == "closed"


def test_tripping_twice_does_not_push_the_probe_away() -> None:
    breaker = opened(0.0)
    breaker.trip(3.9)
    assert breaker.admit(4.0) is not None


# --- probing -----------------------------------------------------------------------------------


def test_after_the_interval_exactly_one_probe_goes_out() -> None:
    breaker = opened()
    assert breaker.wait_s(1.0) == 3.0
    assert breaker.admit(3.9) is None
    probe = breaker.admit(4.0)
    assert probe is not None
    assert probe.probe
    assert state(breaker) == "half_open"
    assert breaker.admit(5.1) is None


def test_a_probe_that_succeeds_closes() -> None:
    breaker = opened()
    breaker.admit(5.0)
    breaker.succeeded(5.5, probe=True)
    assert (state(breaker), breaker.troubled) == ("closed", False)
    ticket = breaker.admit(5.5)
    assert ticket is not None
    assert not ticket.probe


def test_a_probe_that_fails_opens_again() -> None:
    breaker = opened()
    breaker.admit(5.0)
    breaker.failed(6.0, probe=True)
    assert state(breaker) == "open"
    assert breaker.admit(9.9) is None
    assert breaker.admit(10.0) is not None


def test_a_probe_that_hangs_loses_its_lease() -> None:
    breaker = opened()
    hung = breaker.admit(5.0)
    assert breaker.admit(34.9) is None
    second = breaker.admit(35.0)
    assert second is not None
    assert second != hung
    assert breaker.admit(35.1) is None


@pytest.mark.parametrize("how", ["cancelled", "ended with an error of our own"])
def test_a_probe_that_told_nothing_frees_its_lease(how: str) -> None:
    breaker = opened()
    probe = breaker.admit(5.0)
    breaker.left(5.2, probe)
    assert state(breaker) == "half_open"
    assert breaker.admit(5.2) is not None, how


def test_a_hung_probe_that_is_cancelled_late_does_not_free_the_lease_of_the_next() -> None:
    breaker = opened()
    hung = breaker.admit(5.0)
    breaker.admit(35.0)
    breaker.left(36.0, hung)
    assert breaker.admit(36.0) is None


def test_calls_sent_before_it_opened_change_nothing() -> None:
    breaker = opened()
    breaker.succeeded(1.0)
    breaker.failed(1.0)
    breaker.left(1.0)
    assert state(breaker) == "open"
    assert breaker.wait_s(1.0) == 3.0
    breaker.admit(5.0)
    breaker.succeeded(5.1)
    breaker.failed(5.1)
    assert state(breaker) == "half_open"


def test_what_told_nothing_feeds_nothing() -> None:
    breaker = calm()
    for _ in range(100):
        breaker.left(0.0)
    fail(breaker, 10)
    assert state(breaker) == "closed"


def probes(away_s: float, rand: float = 0.0) -> list[float]:
    """When probes go out while the service stays away."""
    breaker, now_s = Breaker(rand=lambda: rand), 0.0
    sent: list[float] = []
    breaker.trip(now_s)
    while True:
        now_s += breaker.wait_s(now_s)
        if now_s > away_s:
            return sent
        assert breaker.admit(now_s) is not None
        breaker.failed(now_s, probe=True)
        sent.append(now_s)


def test_probes_become_rarer_from_four_seconds_to_a_minute() -> None:
    sent = probes(3_600)
    gaps = [round(later - earlier, 6) for earlier, later in zip([0.0, *sent], sent, strict=False)]
    assert gaps[:3] == [4, 4, 4]
    assert gaps[-1] == 60
    assert gaps == sorted(gaps)


@pytest.mark.parametrize("rand", [0.0, 0.5, 0.999])
def test_an_hour_away_costs_at_most_a_hundred_probes(rand: float) -> None:
    assert len(probes(3_600, rand)) <= 100


@pytest.mark.parametrize("away_s", [30, 120, 600])
def test_nobody_waits_long_after_it_is_back(away_s: float) -> None:
    last = probes(away_s)[-1]
    assert away_s - last <= max(4, 0.2 * away_s)


def test_intervals_are_spread_downwards() -> None:
    breaker = Breaker(rand=lambda: 0.5)
    breaker.trip(0.0)
    assert breaker.wait_s(0.0) == pytest.approx(4 * 0.875)


# --- whatever happens ----------------------------------------------------------------------------

steps = st.sampled_from(
    ["ask", "ok", "bad", "ok_probe", "bad_probe", "left", "trip", "reset", "wait", "wait_long"]
)


@given(st.lists(steps, max_size=120))
def test_whatever_happens_it_never_stays_shut(happenings: list[str]) -> None:
    breaker, now_s = calm(), 0.0
    for step in happenings:
        now_s += {"wait": 1.0, "wait_long": 40.0}.get(step, 0.01)
        match step:
            case "ask":
                admitted = breaker.admit(now_s)
                if admitted is not None and admitted.probe:
                    assert breaker.admit(now_s) is None  # one at a time
            case "ok" | "ok_probe":
                breaker.succeeded(now_s, probe=step == "ok_probe")
            case "bad" | "bad_probe":
                breaker.failed(now_s, probe=step == "bad_probe")
            case "left":
                breaker.left(now_s)
            case "trip" | "reset":
                getattr(breaker, step)(now_s)
        assert breaker.troubled == (breaker.state != "closed")
        assert 0 <= breaker.wait_s(now_s) <= 60
    assert breaker.admit(now_s + breaker.wait_s(now_s)) is not None


def test_of_many_threads_one_gets_the_probe() -> None:
    breaker = opened()
    gate = threading.Barrier(8)
    got: list[Ticket] = []

    def ask() -> None:
        gate.wait()
        got.extend(ticket for _ in range(50) if (ticket := breaker.admit(5.0)) is not None)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
