"""Whether a service is pressed: the fleet asks less and looks what that changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.calls.budget import Budget
from perdure.core.pace import CALM, TEST_MS, Pace, Seen, held, observe

DEMAND = 60.0  # requests a second of the whole fleet


class Fleet:
    """Workers that do as they are told, half a second at a time; `answers(asked_per_s)`: the share that is answered."""

    def __init__(
        self, answers: Callable[[float], float], seed: int = 1, workers: int = 2, demand: float = DEMAND
    ) -> None:
        self.answers, self.rand, self.demand = answers, random.Random(seed), demand
        self.pace, self.now_ms, self.budget = CALM, 1_000_000, Budget()
        self.epochs = [0] * workers
        self.owed = [0.0] * workers
        self.phases: list[str] = []
        self.asked: list[float] = []

    def step(self) -> None:
        asked = min(self.demand, self.pace.rate or self.demand)
        share, workers = self.answers(asked), len(self.epochs)
        for worker in range(workers):
            self.now_ms += 500 // workers
            self.owed[worker] += asked / 2 / workers
            sent = int(self.owed[worker])
            self.owed[worker] -= sent
            good = sum(self.rand.random() < share for _ in range(sent))
            self.budget.share, self.budget.unmetered = self.pace.share, bool(self.pace.rate)
            for n in range(sent):
                if n < sent - good:
                    self.budget.spend()
                else:
                    self.budget.earn()
            row = 0 if good else sent
            seen = Seen(good, sent - good, 0, self.epochs[worker], self.budget.tokens, asked, row)
            before, text = self.pace.phase, self.pace.to_text()
            self.pace = observe(Pace.from_text(text), seen, self.now_ms)
            if before != self.pace.phase:
                self.budget.tokens = 10.0
            self.epochs[worker] = self.pace.epoch
        self.phases.append(self.pace.phase)
        self.asked.append(asked)

    def play(self, seconds: float) -> Fleet:
        for _ in range(round(2 * seconds)):
            self.step()
        return self


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("failing", [0.2, 0.35, 0.5, 0.8])
def test_a_service_that_fails_however_little_it_is_asked_is_asked_as_usual(
    failing: float, workers: int, seed: int
) -> None:
    fleet = Fleet(lambda asked: 1 - failing, seed, workers).play(60)
    assert sum(fleet.asked) >= (0.75 if failing <= 0.5 else 0.5) * len(fleet.asked) * DEMAND
    assert fleet.pace.word in ("flickering", "pressed")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("capacity", [10, 20, 40])
def test_a_service_that_answers_only_some_a_second_gets_little_more(
    capacity: float, workers: int, seed: int
) -> None:
    fleet = Fleet(lambda asked: min(1.0, capacity / asked), seed, workers).play(10)
    assert "pressed" in fleet.phases
    fleet.asked.clear()
    fleet.play(30)
    assert sum(fleet.asked) / len(fleet.asked) <= 1.3 * capacity
    fleet.answers = lambda asked: 1.0
    fleet.play(10)
    assert fleet.asked[-1] == DEMAND


def test_the_rate_of_a_service_that_is_asked_too_much_follows_its_answers_closely() -> None:
    asked = []
    for seed in range(20):
        fleet = Fleet(lambda asked: min(1.0, 20 / asked), seed).play(10)
        fleet.asked.clear()
        asked += fleet.play(50).asked
    assert sum(asked) / len(asked) <= 1.105 * 20


def test_single_failures_begin_nothing() -> None:
    assert set(Fleet(lambda asked: 0.97).play(60).phases) == {"free"}


def test_a_choked_service_is_never_taken_for_one_that_fails_now_and_then() -> None:
    fleet = Fleet(lambda asked: 0.01).play(60)
    assert (fleet.pace.phase, fleet.pace.share) == ("test", 1.0)
    assert sum(fleet.asked) / len(fleet.asked) < 0.1 * DEMAND


def test_a_verdict_that_was_wrong_is_corrected_when_less_does_not_help() -> None:
    fleet = Fleet(lambda asked: 0.6)
    fleet.pace = Pace("pressed", fleet.now_ms, rate=40.0, usual_per_s=60.0, first_ms=fleet.now_ms)
    fleet.epochs = [fleet.now_ms] * 2
    fleet.play(12)
    assert fleet.pace.word == "flickering"


def test_an_acquittal_that_was_wrong_is_found_out_although_nothing_gets_worse() -> None:
    fleet = Fleet(lambda asked: min(1.0, 20 / asked))
    fleet.pace = Pace("free", fleet.now_ms, 0.3, acquitted=1, counted_ms=fleet.now_ms)
    fleet.epochs = [fleet.now_ms] * 2
    assert "pressed" in fleet.play(25).phases


def test_a_low_share_recovers_however_rarely_the_service_is_asked() -> None:
    fleet = Fleet(lambda asked: 1.0, demand=0.5)
    fleet.pace = Pace("free", fleet.now_ms, 0.3, acquitted=1, counted_ms=fleet.now_ms)
    fleet.epochs = [fleet.now_ms] * 2
    fleet.play(900)
    assert (fleet.pace.share, fleet.pace.word) == (1.0, "up")


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("demand", [0.2, 1.6, 200.0])
def test_failures_in_a_row_are_those_of_the_whole_fleet(workers: int, demand: float) -> None:
    fleet = Fleet(lambda asked: 0.0, workers=workers, demand=demand)
    while fleet.pace.row <= 10:
        fleet.step()
        assert len(fleet.phases) < 2 * 120
    lasting_ms = fleet.now_ms - fleet.pace.row_ms
    fleet.play(3)
    assert fleet.now_ms - fleet.pace.row_ms > lasting_ms
    fleet.answers = lambda asked: 1.0
    fleet.play(90)
    assert fleet.pace.row == 0


def test_the_longest_pause_that_was_asked_for_is_kept_whatever_is_found_out() -> None:
    pace = observe(CALM, Seen(0, 0, 3, pause_ms=60_000), 1_000)
    pace = observe(pace, Seen(5, 0, 0, pause_ms=2_000), 2_000)
    assert pace.pause_ms == 61_000
    assert pace.reason == "it refuses all requests and asked to wait"
    pace = observe(Pace.from_text(pace.to_text()), Seen(20, 0), 61_500)
    assert pace.pause_ms == 0


def test_results_of_another_epoch_are_not_counted() -> None:
    pace = Pace("test", 5_000, rate=30.0, windows=((60.0, 30.0, 30.0),))
    after = observe(pace, Seen(0, 100, epoch=4_000), 6_000)
    assert (after.good, after.bad, after.phase) == (0, 0, "test")


def test_a_test_that_nobody_takes_part_in_ends() -> None:
    pace = Pace("test", 1_000, 0.8, rate=5.0, first_ms=1_000, windows=((60.0, 57.0, 3.0),))
    for second in range(1, 60):
        pace = observe(pace, Seen(0, 0, epoch=pace.epoch), 1_000 + 1_000 * second)
        if pace.phase == "free":
            break
    assert (pace.phase, pace.share) == ("free", 0.8)
    assert pace.epoch - 1_000 <= 6 * TEST_MS


def test_a_hold_keeps_the_share_that_is_usual_and_a_pause_and_nothing_else() -> None:
    pressed = Pace("pressed", 5, 0.6, rate=9.0, row=30, pause_ms=9)
    assert held(pressed, 7) == Pace("free", 7, 0.6, counted_ms=7, pause_ms=9)
    assert held(pressed, 9) == Pace("free", 9, 0.6, counted_ms=9)
    assert held(CALM, 9, 4) == Pace(pause_ms=13)
    assert held(Pace("pressed", 5, rate=9.0, row=30), 7) == CALM
    answered_some = Pace("free", 5, good=6.0, bad=30.0, row=12)  # 6 of 24 before it failed in a row
    assert held(answered_some, 7) == Pace("free", 7, 0.25, counted_ms=7)
    assert held(held(answered_some, 7), 9).share == 0.25


@given(
    st.none() | st.text() | st.just('["free", 1, 0]') | st.just('["calm"]') | st.just(f'["test"{", 1" * 40}]')
)
def test_a_text_that_nobody_can_read_says_that_all_is_well(text: str | None) -> None:
    assert Pace.from_text(text) == CALM


reports = st.tuples(
    st.integers(0, 500), st.integers(0, 500), st.integers(0, 50), st.booleans(), st.floats(0, 10),
    st.floats(0, 1000), st.integers(0, 100_000), st.integers(0, 100_000),
)  # fmt: skip


@given(st.lists(reports, max_size=60))
def test_whatever_is_reported_shares_are_shares_and_texts_can_be_read(
    told: list[tuple[int, int, int, bool, float, float, int, int]],
) -> None:
    pace, now_ms = CALM, 1_000_000
    for good, failed, throttled, ours, tokens, asked, pause_ms, gone_ms in told:
        now_ms += gone_ms
        seen = Seen(good, failed, throttled, pace.epoch if ours else 7, tokens, asked, failed, pause_ms)
        pace = observe(pace, seen, now_ms)
        assert 0 < pace.share <= 1
        assert 0 < pace.seen <= 1
        assert 0 <= pace.answers <= 1
        assert pace.rate >= 0
        assert (pace.rate > 0) == (pace.phase != "free")
        again = Pace.from_text(pace.to_text())
        assert (again.phase, again.epoch) == (pace.phase, pace.epoch) or pace.to_text() is None
