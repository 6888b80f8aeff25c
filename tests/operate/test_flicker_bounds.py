"""The benchmark of a service that flickers: it names the bounds that a run misses, and its service collapses."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.flicker_bounds import Bounds
from benchmarks.flicker_service import LATENCY_S, Crowd
from perdure.operate.simulate.backlog import drain, flickering, median


def test_each_bound_that_is_missed_is_named_and_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = Bounds()
    bounds.most("time", 1.3, 1.3)
    bounds.least("goodput", 0.9, 0.9)
    assert bounds.sum_up(check=True) == 0
    bounds.most("time", 1.31, 1.3)
    bounds.least("goodput", 0.89, 0.9)
    bounds.most("recovery", None, 5.0)
    assert bounds.missed == [
        "time: 1.31, at most 1.3", "goodput: 0.89, at least 0.9", "recovery: never, at most 5",
    ]  # fmt: skip
    assert (bounds.sum_up(check=True), bounds.sum_up(check=False)) == (1, 0)
    told = capsys.readouterr()
    assert "2 of 5 bounds kept" in told.out
    assert told.err.splitlines() == [f"missed: {words}" for words in bounds.missed]


def test_a_figure_of_the_laboratory_that_is_far_from_the_measured_one_is_named() -> None:
    model = flickering(10, 2, 0.2)
    took_s = median([drain(model, seed) for seed in range(15)])["took_s"]
    assert took_s is not None
    bounds = Bounds()
    bounds.played("share", model, {"took_s": took_s / 1.2, "charged": 0, "put_off_s": 100.0})
    assert bounds.looked == 3
    assert [words.split(" says ")[1].split()[0] for words in bounds.missed] == ["put_off_s"]
    bounds.played("share", model, {"took_s": None})
    assert len(bounds.missed) == 2


def test_a_service_that_collapses_is_slower_the_more_wait_and_refuses_beyond_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def remember(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    async def crowded(requests: int) -> tuple[list[bool], float]:
        slept.clear()
        crowd = Crowd(4)
        found = await asyncio.gather(*(crowd.work() for _ in range(requests)))
        assert crowd.inside == 0
        return found, sum(slept) / len(slept) / LATENCY_S

    monkeypatch.setattr("benchmarks.flicker_service.asyncio.sleep", remember)
    done, usual = asyncio.run(crowded(4))
    assert (done, usual <= 1.5) == ([True] * 4, True)
    done, slower = asyncio.run(crowded(40))
    assert (all(done), slower > 2.5) == (True, True)
    assert asyncio.run(crowded(50))[0].count(False) == 10
