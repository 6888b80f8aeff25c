"""An app that runs embedded in a program: killed, its documents are resumed by the next program."""

from __future__ import annotations

from tests.faults.fleet import Fleet
from tests.faults.resuming import PLACES, assert_resumed

#: As many as an app takes in hand by default: in the loop, in a cell, between two items.
SOME = ["fetch:half", "split:item-2", "embed:body-2"]


def test_killed_program_is_resumed(fleet: Fleet) -> None:
    assert set(SOME) <= set(PLACES)
    fleet.add("steps", {place: place for place in SOME})
    for place in SOME:
        fleet.shut(place, place)
    program = fleet.start_script("tests.faults.embedded")
    fleet.wait(lambda: all(fleet.reached(place, place) for place in SOME), "every place to be reached")

    program.kill()
    fleet.wait_until_gone(program)
    for place in SOME:
        fleet.open(place, place)
    again = fleet.start_script("tests.faults.embedded")
    fleet.wait_until_ended()

    for place in SOME:
        assert_resumed(fleet, place, [place])
    assert again.stop() == 0
    fleet.wait_until_gone(again)
