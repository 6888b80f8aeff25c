"""Stages past their time: killed or abandoned, and charged; whoever shares the worker with them is not."""

from __future__ import annotations

from tests.faults.fleet import Fleet


def history(fleet: Fleet, name: str) -> list[tuple[str, bool, str | None]]:
    return [(a.outcome, a.charged, a.error_code) for a in fleet.attempts(name)]


def test_stage_that_holds_the_interpreter(fleet: Fleet) -> None:
    """The worker's loop stands still, so nobody in it can end the stage: the supervisor kills the worker.

    Its neighbours have the same timeout, began earlier and could not end either; they must not be charged for that.
    """
    neighbours = ["thread", "async", "patient"]
    fleet.add("slow", {"thread": "0.1"})
    fleet.add("drowsy", {"async": "0.1"})
    fleet.add("pausing", {"patient": "0.1"})
    for name in (*neighbours, "hog"):
        fleet.shut(name, "begin")
    worker = fleet.start("late")
    fleet.wait(lambda: all(fleet.reached(name, "begin") for name in neighbours), "the neighbours to begin")
    fleet.add("slow", {"hog": "holds"})
    fleet.wait(lambda: fleet.reached("hog", "begin"), "the hog to begin")
    fleet.open("hog", "begin")
    fleet.wait(lambda: fleet.reached("hog", "holding"), "the hog to hold the interpreter")
    for name in neighbours:
        fleet.open(name, "begin")
    fleet.wait_until_ended()

    hog = fleet.status("hog")
    assert (hog.state, hog.error_code, hog.attempts_made) == ("dead", "stage_timeout", 2)
    assert [h for h in history(fleet, "hog") if h[1]] == [
        ("retry", True, "stage_timeout"),
        ("dead", True, "stage_timeout"),
    ]
    for name in neighbours:
        status = fleet.status(name)
        assert (status.state, status.attempts_made, status.suspect) == ("done", 1, False), name
        assert not any(charged for _, charged, code in history(fleet, name) if code), name
    assert sorted(document for document, _, _ in fleet.effects()) == sorted(neighbours)
    assert worker.process.poll() is None


def test_hung_stages_are_abandoned(fleet: Fleet) -> None:
    """In a thread, in the loop, in the loop and deaf to cancellation: the worker stays and works on."""
    hung = ["thread", "async", "stubborn"]
    fleet.add("slow", {"thread": "hangs"})
    fleet.add("drowsy", {"async": "hangs", "stubborn": "stubborn"})
    worker = fleet.start("late")
    fleet.wait(lambda: all(fleet.starts(name) for name in hung), "all to hang")
    child = worker.child
    neighbours = [f"neighbour-{number}" for number in range(4)]
    fleet.add("slow", dict.fromkeys(neighbours, "0.2"))
    fleet.wait_until_ended(neighbours, within_s=90)
    fleet.wait_until_ended()

    for name in hung:
        assert history(fleet, name) == [("retry", True, "stage_timeout"), ("dead", True, "stage_timeout")], (
            name
        )
        assert len(fleet.starts(name)) == 2, name
    assert fleet.reached("stubborn", "not cancelled")
    for name in neighbours:
        status = fleet.status(name)
        assert (status.state, status.attempts_made, status.claims) == ("done", 1, 1), name
    assert sorted(document for document, _, _ in fleet.effects()) == neighbours
    assert worker.child == child


def test_no_progress(fleet: Fleet) -> None:
    """Slow is not stuck: what reports progress runs longer than the limit, what stops reporting is ended."""
    fleet.add("stalling", {"slow": "goes on", "stuck": "stalls"})
    fleet.start("late")
    fleet.wait_until_ended()
    assert history(fleet, "slow") == [("done", True, None)]
    assert history(fleet, "stuck") == [("retry", True, "no_progress"), ("dead", True, "no_progress")]


def test_pause_of_the_loop_is_not_charged(fleet: Fleet) -> None:
    """A stage blocks the event loop for longer than its neighbours may take: they had no chance to end in time."""
    neighbours = ["thread", "async"]
    fleet.add("slow", {"thread": "0.3"})
    fleet.add("drowsy", {"async": "0.3"})
    fleet.add("pausing", {"blocker": "2.2"})
    for name in (*neighbours, "blocker"):
        fleet.shut(name, "begin")
    fleet.start("late")
    fleet.wait(lambda: all(fleet.reached(n, "begin") for n in (*neighbours, "blocker")), "all to begin")
    fleet.open("blocker", "begin")
    fleet.wait(lambda: fleet.reached("blocker", "holding"), "the loop to stand still")
    for name in neighbours:
        fleet.open(name, "begin")
    fleet.wait_until_ended()
    for name in (*neighbours, "blocker"):
        assert history(fleet, name) == [("done", True, None)], name
