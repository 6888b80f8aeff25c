"""Documents that kill the process they run in: found out alone, charged, set aside; their neighbours are not."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.fleet import Fleet

NEIGHBOURS = [f"neighbour-{number}" for number in range(5)]


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGSEGV"])
def test_killer_is_set_aside(fleet: Fleet, kind: str) -> None:
    """It takes the worker down once; then it crashes alone, twice."""
    fleet.add("deadly", {"killer": kind, **dict.fromkeys(NEIGHBOURS, "0.3")})
    for name in ("killer", *NEIGHBOURS):
        fleet.shut(name, "begin")
    worker = fleet.start("crashing")
    everybody = {"killer", *NEIGHBOURS}
    fleet.wait(
        lambda: {x.document for x in fleet.ledger if x.event == "begin"} == everybody, "all to have begun"
    )
    for name in ("killer", *NEIGHBOURS):
        fleet.open(name, "begin")
    fleet.wait_until_ended()

    killer = fleet.status("killer")
    code = f"crashed:{kind}"
    assert (killer.state, killer.error_code, killer.attempts_made, killer.claims) == ("dead", code, 2, 3)
    history = [(a.outcome, a.charged, a.error_code) for a in fleet.attempts("killer")]
    assert history == [("later", False, "worker_lost"), ("retry", True, code), ("dead", True, code)]
    assert len(fleet.starts("killer")) == 3

    for name in NEIGHBOURS:
        status = fleet.status(name)
        assert (status.state, status.attempts_made) == ("done", 1), name
        assert len(fleet.starts(name)) == 2, name
    assert sorted(document for document, _, _ in fleet.effects()) == NEIGHBOURS
    assert worker.process.poll() is None
    assert worker.said.count('"worker lost"') == 1, "its crashes in cells must not take the worker down"


def test_killed_cell_is_charged_to_its_document_only(fleet: Fleet) -> None:
    """The process of one isolated stage is killed from outside: one attempt of one document, saved items stay."""
    fleet.add("steps", {"victim": "a", "neighbour": "b"})
    fleet.shut("victim", "split:item-2")
    fleet.shut("neighbour", "split:item-1")
    fleet.start("five")
    fleet.wait(lambda: fleet.reached("victim", "split:item-2"), "the victim to be in its cell")
    fleet.wait(lambda: fleet.reached("neighbour", "split:item-1"), "the neighbour to be in its cell")
    cell = next(line.pid for line in fleet.ledger if line.document == "victim" and line.stage == "split")
    os.kill(cell, signal.SIGKILL)
    fleet.open("victim", "split:item-2")
    fleet.open("neighbour", "split:item-1")
    fleet.wait_until_ended()

    assert fleet.status("victim").attempts_made == 2
    assert [a.error_code for a in fleet.attempts("victim")] == ["crashed:SIGKILL", None]
    ran = [line.event for line in fleet.ledger if line.document == "victim" and "split:item" in line.event]
    assert ran == ["split:item-0", "split:item-1", "split:item-2", "split:item-2", "split:item-3"]
    neighbour = fleet.status("neighbour")
    assert (neighbour.state, neighbour.attempts_made, neighbour.claims) == ("done", 1, 1)


def test_memory_hog_is_set_aside(fleet: Fleet) -> None:
    """An isolated stage that takes more memory than it may is killed; its neighbours in the same worker go on."""
    fleet.add("greedy", {"hog": "4000", **dict.fromkeys(NEIGHBOURS, "20")})
    worker = fleet.start("crashing")
    fleet.wait_until_ended()

    hog, code = fleet.status("hog"), "crashed:memory_exceeded"
    assert (hog.state, hog.error_code, hog.attempts_made) == ("dead", code, 2)
    for name in NEIGHBOURS:
        status = fleet.status(name)
        assert (status.state, status.attempts_made, status.claims) == ("done", 1, 1), name
    assert '"worker lost"' not in worker.said
