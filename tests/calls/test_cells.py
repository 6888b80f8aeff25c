"""What a worker tells its cells of services, and what they tell it: one end of each in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.calls.dependency import DEPENDENCIES, Dependency
from perdure.calls.fleet import told
from perdure.calls.home import Home
from perdure.calls.timing import TIMING
from perdure.core.scope import Work
from tests.calls.making import HttpError, Script, World, at_work

NAME = "told-service"
WORK = Work("1", "d", "o", "p", "s", 1)


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is set for good where cells begin."""
    monkeypatch.setattr(sys.modules[Dependency.__module__], "recording", False)
    yield
    DEPENDENCIES.pop(NAME, None)


def new() -> Dependency:
    """The service, of which nothing is known in this worker or cell."""
    DEPENDENCIES[NAME] = Dependency(NAME)
    return DEPENDENCIES[NAME]


def of_it(packed: list[list[Any]]) -> list[list[Any]]:
    return [one for one in packed if one[0] == NAME]


def cell(packed: list[list[Any]], *answers: Any) -> list[list[Any]]:
    """What a cell tells in which these answers came."""
    worker = DEPENDENCIES[NAME]
    try:
        state, home = new(), Home()
        home.unpack(of_it(packed))
        policy = World(now_s=TIMING.clock()).policy(NAME, dependency=state, retries=0, on_exhausted="raise")
        for answer in answers:
            with at_work():
                try:
                    policy.call(Script(answer))
                except Exception:  # whatever a call raises, its cell tells of it
                    continue
        return of_it(home.report() or [])
    finally:
        DEPENDENCIES[NAME] = worker


def test_a_cell_that_serves_another_document_knows_what_the_worker_knows_by_now() -> None:
    state = new()
    for open_ in (True, False, True):
        state.breaker.reset(0.0)
        if open_:
            state.breaker.trip(TIMING.clock())
        packed = of_it(Home().pack())
        Home().unpack(packed)
        assert state.breaker.state == ("open" if open_ else "closed")


def test_a_cell_keeps_the_rate_and_the_pause_of_its_worker() -> None:
    state, home = new(), Home()
    now_s = TIMING.clock()
    state.limiter.lead(now_s, 8.0)
    state.limiter.pause(now_s, 60.0)
    first, second = home.pack(), home.pack()
    for packed, rate in ((first, 8.0), (second, 4.0)):  # two cells run: each has its part
        state = new()
        Home().unpack(of_it(packed))
        assert state.limiter.rate == rate
        assert 50 < state.limiter.pause_s(TIMING.clock()) <= 60
        assert state.budget.unmetered
    home.over()
    assert home.cells == 1


def test_cells_together_never_ask_for_more_than_their_worker_may() -> None:
    state, home = new(), Home()
    state.limiter.lead(TIMING.clock(), 10.0)
    rates, floors = [], []
    packs = [home.pack(12) for _ in range(12)]
    for packed in packs:
        state = new()
        Home().unpack(of_it(packed))
        rates.append(state.limiter.rate or 0.0)
        floors.append(state.limiter.floor_per_s)
    assert sum(rates) <= 10.01
    assert sum(floors) <= 0.51


def test_a_pause_that_a_cell_was_asked_for_binds_its_worker() -> None:
    state, home = new(), Home()
    report = [NAME, 3, 0, 0, 3, 0.0, 0, 60.0, 0, 0.0, 0, [0, 0, 0], []]
    home.learn([report], WORK)
    assert 50 < state.limiter.pause_s(TIMING.clock()) <= 60
    assert state.throttled == 3
    for place, bad in (
        (7, -1.0),
        (9, -1.0),
        (5, float("nan")),
        (8, -1),
        (10, -1),
        (11, [0]),
        (11, [0, 0, "a"]),
    ):
        with pytest.raises(ValueError, match=r"cannot be|form"):
            home.learn([[*report[:place], bad, *report[place + 1 :]]], WORK)


def test_a_pause_that_a_cell_only_heard_of_is_not_told_again() -> None:
    state = new()
    state.limiter.pause(TIMING.clock(), 60.0)
    packed = Home().pack()
    assert cell(packed, "fine") == []  # nothing was sent

    state = new()
    Home().unpack(of_it(packed))
    assert state.limiter.pause_s(TIMING.clock()) > 50
    assert state.limiter.asked_s == 0


def test_a_cell_does_not_call_a_service_away_by_itself() -> None:
    new()
    packed, worker = Home().pack(), DEPENDENCIES[NAME]
    state = new()
    Home().unpack(of_it(packed))
    for _ in range(20):
        state.breaker.failed(TIMING.clock())
    assert state.breaker.state != "open"
    assert worker.breaker.state == "closed"


def test_refusals_of_many_cells_make_a_pause() -> None:
    state, home = new(), Home()
    for _ in range(3):
        home.learn(cell(home.pack(), HttpError(429, {"retry-after": "30"})), WORK)
    assert 20 < state.limiter.pause_s(TIMING.clock()) <= 30

    state = new()
    state.limiter.led = True
    for _ in range(6):  # each is answered after it
        home.learn(cell(home.pack(), HttpError(429, {"retry-after": "30"}), "fine"), WORK)
    assert state.limiter.pause_s(TIMING.clock()) == 0


def test_requests_that_a_cell_sent_before_a_test_are_no_results_of_it() -> None:
    state, home = new(), Home()
    state.epoch = 7
    packed = home.pack()
    report = cell(packed, "fine", HttpError(503))
    home.learn(report, WORK)
    assert told(state).stale == (0, 0, 0)
    state.epoch = 8  # the test began while another cell was at work
    home.learn(report, WORK)
    assert told(state).stale == (1, 1, 0)


def test_a_cell_tells_what_it_spent_and_not_what_was_left() -> None:
    state, home = new(), Home()
    state.budget.tokens = 1.0
    packed = home.pack()
    state.budget.tokens = 9.0  # meanwhile it was filled again
    report = cell(packed, "fine")
    assert report[0][5] >= 0
    home.learn(report, WORK)
    assert state.budget.tokens >= 9.0
