"""SIGTERM: what can finish finishes, the rest gives its attempt back; a second SIGTERM leaves at once."""

from __future__ import annotations

import os
import signal
import time

from tests.faults.fleet import Fleet

GRACE_S = 6.0
MARGIN_S = 30.0


def test_gentle_stop(fleet: Fleet) -> None:
    """A stage that ends within the grace is saved; one that does not, in a thread or a cell, is interrupted."""
    fleet.add("second", {"quick": "0.6", "endless": "0"})
    fleet.add("steps", {"boundary": "a", "cell": "b"})
    fleet.shut("endless", "begin")
    fleet.shut("boundary", "fetch:half")
    fleet.shut("cell", "split:item-1")
    worker = fleet.start("mixed", PERDURE_GRACE_S=str(GRACE_S))
    fleet.wait(
        lambda: fleet.reached("quick", "begin") and fleet.reached("endless", "begin")
        and fleet.reached("boundary", "fetch:half") and fleet.reached("cell", "split:item-1"),
        "all to be in hand",
    )  # fmt: skip
    began_s = time.monotonic()
    worker.process.send_signal(signal.SIGTERM)
    time.sleep(GRACE_S / 2)  # within the grace, and long after the child was told
    fleet.open("boundary", "fetch:half")
    assert worker.exit() == 0
    assert time.monotonic() - began_s < GRACE_S + MARGIN_S
    fleet.wait_until_gone(worker)

    quick = fleet.status("quick")
    assert (quick.state, quick.attempts_made) == ("done", 1)
    where = {"endless": "work", "boundary": "extract", "cell": "split"}
    for name, stage in where.items():
        status = fleet.status(name)
        assert (status.state, status.stage, status.attempts_made, status.claims) == ("queued", stage, 0, 1), (
            name
        )
        assert [(a.outcome, a.charged) for a in fleet.attempts(name)] == [("later", False)], name
    left = [w.name for w in fleet.ask(fleet.app.store.workers()) if not w.name.endswith(f":{os.getpid()}")]
    assert left == [], "a worker that stopped in good order is forgotten"

    fleet.open("endless", "begin")
    fleet.open("cell", "split:item-1")
    fleet.start("mixed")
    fleet.wait_until_ended()
    assert {s.attempts_made for s in fleet.statuses().values()} == {1}
    assert len([x for x in fleet.starts("boundary") if x.stage == "fetch"]) == 1
    ran = [line.event for line in fleet.ledger if line.document == "cell" and "split:item" in line.event]
    assert ran == ["split:item-0", "split:item-1", "split:item-1", "split:item-2", "split:item-3"]
    assert len(fleet.effects()) == 2 + 2 * 5


def test_second_signal_leaves_at_once(fleet: Fleet) -> None:
    fleet.add("second", {"thread": "0"})
    fleet.add("steps", {"loop": "a", "cell": "b"})
    gates = {"thread": "begin", "loop": "embed:item-1", "cell": "split:item-1"}
    for name, place in gates.items():
        fleet.shut(name, place)
    worker = fleet.start("mixed", PERDURE_GRACE_S="60")
    fleet.wait(lambda: all(fleet.reached(n, place) for n, place in gates.items()), "all to be in hand")
    worker.process.send_signal(signal.SIGTERM)
    time.sleep(0.7)
    assert worker.process.poll() is None, "the grace is not over"
    began_s = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began_s < MARGIN_S
    fleet.wait_until_gone(worker)
    for name in gates:
        status = fleet.status(name)
        assert (status.state, status.attempts_made, status.claims) == ("queued", 0, 1), name

    for name, place in gates.items():
        fleet.open(name, place)
    fleet.start("mixed")
    fleet.wait_until_ended()
    assert {(s.state, s.attempts_made) for s in fleet.statuses().values()} == {("done", 1)}
    assert len(fleet.effects()) == 1 + 2 * 5


def test_stop_while_the_interpreter_is_held(local_fleet: Fleet) -> None:
    """A child that cannot hear is killed when its grace is over; what it had in hand comes back."""
    fleet = local_fleet
    fleet.add("pausing", {"hog": "holds"})
    worker = fleet.start("late", PERDURE_GRACE_S="1")
    fleet.wait(lambda: fleet.reached("hog", "holding"), "the hog to hold the interpreter")
    began_s = time.monotonic()
    assert worker.stop(20) == 0
    assert time.monotonic() - began_s < 1 + 5 + MARGIN_S
    fleet.wait_until_gone(worker)
    status = fleet.status("hog")
    assert (status.state, status.attempts_made) == ("queued", 0)
