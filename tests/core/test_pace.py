"""Whether a service is pressed: the fleet asks less and looks what that changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.calls.budget import Budget
from perdure.core.pace import CALM, SLOWER, TEST_MS, Pace, Seen, observe

DEMAND = 60  # requests a second


class Fleet:
    """Two workers that do as they are told, second by second; `answers(asked)` is the share that is answered."""

    def __init__(self, answers: Callable[[float], float], seed: int = 1) -> None:
        self.answers, self.rand = answers, random.Random(seed)
        self.pace, self.now_ms, self.budget = CALM, 1_000_000, Budget()
        self.epochs = [0, 0]
        self.rate = SLOWER  # of the demand, as limiters would have it while it is pressed
        self.phases: list[str] = []

    def second(self) -> None:
        part = {"free": 1.0, "test": SLOWER, "pressed": self.rate}[self.pace.phase]
        asked = part * DEMAND
        share = self.answers(asked)
        self.now_ms += 500
        for worker in (0, 1):
            self.now_ms += 250
            good = sum(self.rand.random() < share for _ in range(round(asked / 2)))
            bad = round(asked / 2) - good
            self.budget.share = self.pace.share
            for n in range(max(good, bad)):
                if n < bad:
                    self.budget.spend()
                if n < good:
                    self.budget.earn()
            limited = self.pace.phase == "pressed" and self.rate < 1
            seen = Seen(good, bad, self.epochs[worker], self.budget.tokens, limited)
            before, self.pace = (
                self.pace.phase,
                observe(Pace.from_text(self.pace.to_text()), seen, self.now_ms),
            )
            if before != "free" == self.pace.phase:
                self.budget.tokens = 10.0
            self.epochs[worker] = self.pace.epoch
        if self.pace.phase == "pressed":
            self.rate = min(1.0, max(0.1, self.rate * (0.7 if share < 0.9 else 1.1)))
        self.phases.append(self.pace.phase)

    def play(self, seconds: int) -> Fleet:
        for _ in range(seconds):
            self.second()
        return self


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("failing", [0.2, 0.35, 0.5, 0.8])
def test_a_service_that_fails_however_little_it_is_asked_is_asked_as_usual(failing: float, seed: int) -> None:
    fleet = Fleet(lambda asked: 1 - failing, seed).play(20)
    assert fleet.phases[-1] == "free"
    assert fleet.phases.count("free") >= 10
    assert fleet.pace.share == pytest.approx(1 - failing, abs=0.17)
    assert fleet.pace.word == "flickering"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("capacity", [10, 20, 40])
def test_a_service_that_answers_so_many_a_second_is_pressed(capacity: float, seed: int) -> None:
    fleet = Fleet(lambda asked: min(1.0, capacity / asked), seed).play(14)
    assert "pressed" in fleet.phases
    assert fleet.pace.share == 1.0
    fleet.answers = lambda asked: 1.0
    fleet.rate = 1.0
    fleet.play(8)
    assert (fleet.pace.phase, fleet.pace.word) == ("free", "up")


def test_single_failures_begin_nothing() -> None:
    assert set(Fleet(lambda asked: 0.95).play(60).phases) == {"free"}


def test_what_is_choked_is_not_acquitted_because_less_does_not_help_at_once() -> None:
    fleet = Fleet(lambda asked: 0.01).play(15)
    assert fleet.phases[-1] == "pressed"


def test_a_verdict_that_was_wrong_is_corrected_by_what_comes_later() -> None:
    pace = Pace("pressed", 1_000, good_before=30.0, bad_before=30.0, before_per_s=60.0)
    for second in range(1, 10):
        pace = observe(pace, Seen(10, 10, pace.epoch, 0.0, limited=True), 1_000 + 1_000 * second)
        if pace.phase == "free":
            break
    assert (pace.phase, pace.word) == ("free", "flickering")


def test_an_acquittal_that_was_wrong_is_found_out_although_nothing_gets_worse() -> None:
    fleet = Fleet(lambda asked: min(1.0, 20 / asked))
    fleet.pace, fleet.epochs = Pace("free", fleet.now_ms, 0.3, acquitted=1), [fleet.now_ms] * 2
    fleet.play(25)
    assert "pressed" in fleet.phases


def test_a_service_that_is_acquitted_again_and_again_is_tested_ever_more_rarely() -> None:
    phases = Fleet(lambda asked: 0.5).play(300).phases
    assert phases[:60].count("test") >= 3
    assert phases[-60:].count("test") <= 6
    assert phases.count("free") > 240


def test_a_share_that_rises_is_noticed_and_one_that_falls_is_tested_again() -> None:
    fleet = Fleet(lambda asked: 0.5).play(15)
    low = fleet.pace.share
    fleet.answers = lambda asked: 0.2
    fleet.phases.clear()
    fleet.play(5)
    assert "test" in fleet.phases
    fleet.play(20)
    assert fleet.pace.share < low
    fleet.answers = lambda asked: 1.0
    fleet.play(90)
    assert fleet.pace.word == "up"
    assert fleet.pace.to_text() is None


def test_what_was_seen_under_another_epoch_is_not_counted() -> None:
    pace = Pace("test", 5_000, good_before=30.0, bad_before=30.0, before_per_s=60.0)
    assert observe(pace, Seen(0, 100, 4_000, 0.0, limited=True), 6_000) == pace


def test_a_test_that_cannot_decide_ends_by_what_is_likelier() -> None:
    pace = Pace("test", 1_000, good_before=57.0, bad_before=3.0, before_per_s=60.0)
    for second in range(1, 20):
        pace = observe(
            pace, Seen(2, 1 if second % 3 == 0 else 0, pace.epoch, 0.0, limited=False), 1_000 + 1_000 * second
        )
        if pace.phase != "test":
            break
    assert pace.phase == "free"
    assert pace.epoch - 1_000 <= TEST_MS + 3_000


@given(
    st.none() | st.text() | st.just('["free"]') | st.just('["test", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]')
)
def test_a_text_that_nobody_can_read_says_that_all_is_well(text: str | None) -> None:
    assert Pace.from_text(text) == CALM


reports = st.tuples(
    st.integers(0, 500),
    st.integers(0, 500),
    st.booleans(),
    st.floats(0, 10),
    st.booleans(),
    st.integers(0, 100_000),
)


@given(st.lists(reports, max_size=60))
def test_whatever_is_reported_shares_are_shares_and_texts_can_be_read(
    told: list[tuple[int, int, bool, float, bool, int]],
) -> None:
    pace, now_ms = CALM, 1_000_000
    for good, bad, ours, tokens, limited, gone_ms in told:
        now_ms += gone_ms
        pace = observe(pace, Seen(good, bad, pace.epoch if ours else 7, tokens, limited), now_ms)
        assert 0 < pace.share <= 1
        assert 0 < pace.seen < 1
        assert pace.per_s >= 0
        again = Pace.from_text(pace.to_text())
        assert (again.phase, again.epoch) == (pace.phase, pace.epoch) or pace.to_text() is None
