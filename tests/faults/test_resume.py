"""A worker killed at any place of a pipeline: the document goes on where it stood, and every effect is there once."""

from __future__ import annotations

import pytest

from tests.faults.fleet import Fleet
from tests.faults.resuming import PLACES, assert_resumed


@pytest.mark.on_both
@pytest.mark.parametrize("victim", ["child", pytest.param("supervisor", marks=pytest.mark.full)])
def test_killed_at_every_place(fleet: Fleet, victim: str) -> None:
    """One document waits at each place when the worker is killed."""
    fleet.add("steps", {place: place for place in PLACES})
    for place in PLACES:
        fleet.shut(place, place)
    worker = fleet.start("five")
    fleet.wait(lambda: all(fleet.reached(place, place) for place in PLACES), "every place to be reached")

    if victim == "supervisor":
        worker.kill()
        fleet.wait_until_gone(worker)
    else:
        worker.kill_child()
    for place in PLACES:
        fleet.open(place, place)
    if victim == "supervisor":
        fleet.start("five")
    fleet.wait_until_ended()

    for place in PLACES:
        assert_resumed(fleet, place, [place])
    assert fleet.tally().fenced == 0


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("victim", ["supervisor", "child"])
def test_one_document_killed_at_every_place_in_turn(fleet: Fleet, victim: str) -> None:
    """Fifteen kills of one and the same document."""
    fleet.add("steps", {"one": "text"})
    for place in PLACES:
        fleet.shut("one", place)
    worker = fleet.start("five")
    for place in PLACES:
        fleet.wait(lambda place=place: fleet.reached("one", place), place)  # type: ignore[misc]
        if victim == "supervisor":
            worker.kill()
            fleet.wait_until_gone(worker)
            fleet.open("one", place)
            worker = fleet.start("five")
        else:
            worker.kill_child()
            fleet.open("one", place)
    fleet.wait_until_ended()
    assert_resumed(fleet, "one", PLACES)
