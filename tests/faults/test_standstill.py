"""Workers that stand still: replaced within a bound, the guilty document found out alone, its neighbours uncharged."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import holding
from tests.faults.fleet import Fleet
from tests.faults.process import WorkerProcess, alive, stopped

APP = "tests.faults.holding:app"
BOUND_S = 2.0
LONG_S = 12.0
PIPELINES = [*holding.ALL, holding.made_elsewhere()]


@pytest.fixture
def hold(store_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(store_url, tmp_path, server_old=False, pipelines=PIPELINES) as made:
        yield made


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Fleet]:
    """The same on SQLite only, where the store makes no difference."""
    with Fleet(f"sqlite:///{tmp_path}/perdure.db", tmp_path, False, PIPELINES) as made:
        yield made


def start(fleet: Fleet, bound_s: float = BOUND_S, **environment: str) -> WorkerProcess:
    environment["PERDURE_LOOP_STALL_S"] = str(bound_s)
    return fleet.start(APP, **environment)  # type: ignore[arg-type]


def stalls(worker: WorkerProcess) -> list[dict[str, Any]]:
    """What the log says of standing still."""
    lines = (json.loads(line) for line in worker.said.splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == "worker stands still"]


def history(fleet: Fleet, name: str) -> list[tuple[str, bool, str | None]]:
    return [(a.outcome, a.charged, a.error_code) for a in fleet.attempts(name)]


def charged(fleet: Fleet, name: str) -> list[tuple[str, str | None]]:
    return [(outcome, code) for outcome, charged, code in history(fleet, name) if charged]


def quarantined(code: str = "stage_timeout") -> list[tuple[str, str]]:
    return [("retry", code), ("dead", code)]


def innocents(fleet: Fleet) -> list[str]:
    """A neighbour in a thread, one in the loop and one in a cell, which wait for their gates."""
    names = {"thread": "untimed", "loop": "waiting", "cell": "celled"}
    for name, pipeline in names.items():
        fleet.shut(name, "begin")
        fleet.add(pipeline, {name: "0.05"})
    return list(names)


def let_go(fleet: Fleet, names: list[str]) -> None:
    for name in names:
        fleet.open(name, "begin")


@pytest.mark.parametrize(
    ("pipeline", "text", "where"),
    [("threaded", "holds", "in hold_interpreter"), ("looped", "holds", "in hold_interpreter"),
     ("looped", "600", "in act")],
)  # fmt: skip
def test_the_guilty_one_is_found_and_its_neighbours_finish(
    hold: Fleet, pipeline: str, text: str, where: str
) -> None:
    """Three neighbours are in the middle of a stage when one holds the interpreter or the loop, long before its own
    timeout would let the supervisor act."""
    fleet = hold
    neighbours = innocents(fleet)
    worker = start(fleet)
    fleet.wait(lambda: all(fleet.reached(name, "begin") for name in neighbours), "the neighbours to begin")
    first = worker.child
    fleet.add(pipeline, {"guilty": text})
    fleet.wait(lambda: fleet.reached("guilty", "holding"), "the worker to be held")
    let_go(fleet, neighbours)
    fleet.wait_until_ended()

    assert worker.child != first
    guilty = fleet.status("guilty")
    assert (guilty.state, guilty.error_code, guilty.attempts_made) == ("dead", "stage_timeout", 2)
    assert charged(fleet, "guilty") == quarantined()
    for name in neighbours:
        status = fleet.status(name)
        assert (status.state, status.attempts_made, status.suspect) == ("done", 1, False), name
        assert charged(fleet, name) == [("done", None)], name
    assert sorted(document for document, _, _ in fleet.effects()) == sorted(neighbours)
    (told,) = stalls(worker)
    assert where in told["stack"]
    begun = {one["document_id"] for one in told["begun"]}
    assert begun == {fleet.ids[name] for name in ("guilty", "thread", "loop")}
    assert told["silent_s"] >= BOUND_S


def test_a_stage_without_a_timeout_ends_by_the_limit_of_suspects(local: Fleet) -> None:
    local.add("untimed", {"guilty": "holds", "other": "0.1"})
    start(local, PERDURE_SUSPECT_STALL_S="2")
    local.wait_until_ended()
    assert charged(local, "guilty") == quarantined("no_progress")
    assert charged(local, "other") == [("done", None)]


def test_slow_is_not_stuck(local: Fleet) -> None:
    """A stage that blocks the loop for longer than the bound, honestly, ends well in a cell and costs nothing."""
    local.add("untimed", {"before": "0.1"})
    worker = start(local)
    local.wait_until_ended()
    local.add("looped", {"slow": "2.8"})
    local.wait_until_ended()
    assert len(stalls(worker)) == 1
    status = local.status("slow")
    assert (status.state, status.attempts_made, status.claims) == ("done", 1, 2)


def test_two_that_hold_in_a_row(local: Fleet) -> None:
    neighbours = innocents(local)
    worker = start(local)
    local.wait(lambda: all(local.reached(name, "begin") for name in neighbours), "the neighbours to begin")
    local.add("threaded", {"guilty-0": "holds"})
    local.wait(lambda: stalls(worker), "the worker to be replaced")
    local.add("looped", {"guilty-1": "holds"})
    local.wait(lambda: len(stalls(worker)) == 2, "the next worker to be replaced")
    let_go(local, neighbours)
    local.wait_until_ended()
    for name in ("guilty-0", "guilty-1"):
        assert charged(local, name) == quarantined(), name
    for name in neighbours:
        assert charged(local, name) == [("done", None)], name


def test_saved_items_are_not_repeated(local: Fleet) -> None:
    local.add("itemised", {"doc": "once"})
    start(local)
    local.wait_until_ended()
    items = [line.event for line in local.ledger if line.event.startswith("item")]
    assert items == ["item-0", "item-1", "item-2", "item-2", "item-3"]
    status = local.status("doc")
    assert (status.state, status.attempts_made) == ("done", 1)


def test_a_suspect_that_no_cell_can_run_does_not_loop(local: Fleet) -> None:
    """It holds the worker once more for each charge, and then it is set aside; its like run one at a time."""
    neighbours = ["a", "b", "c"]
    for name in neighbours:
        local.shut(name, "begin")
    local.add("hidden", dict.fromkeys(neighbours, "0.05"))
    worker = start(local)
    local.wait(lambda: all(local.reached(name, "begin") for name in neighbours), "the neighbours to begin")
    local.add("hidden", {"guilty": "holds"})
    local.wait(lambda: local.reached("guilty", "holding"), "the worker to be held")
    let_go(local, neighbours)
    local.wait_until_ended()
    assert charged(local, "guilty") == quarantined()
    for name in neighbours:
        assert charged(local, name) == [("done", None)], name
    assert len(stalls(worker)) == 3


def test_a_stop_while_the_loop_is_held(local: Fleet) -> None:
    """The stop ends in its time; the next worker knows whom to suspect."""
    local.add("untimed", {"hog": "holds"})
    worker = start(local, 60, PERDURE_GRACE_S="1")
    local.wait(lambda: local.reached("hog", "holding"), "the worker to be held")
    assert worker.stop() == 0
    local.wait_until_gone(worker)
    status = local.status("hog")
    assert (status.state, status.attempts_made, status.suspect) == ("queued", 0, True)
    assert "in hold_interpreter" in stalls(worker)[0]["stack"]


def test_a_slow_import_is_not_a_standstill(local: Fleet) -> None:
    local.add("untimed", {"doc": "0.1"})
    worker = start(local, 1.0, FAULTS_SLOW_IMPORT="4")
    local.wait_until_ended()
    assert charged(local, "doc") == [("done", None)]
    assert stalls(worker) == []


def freeze(local: Fleet, pids: list[int], for_s: float) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    local.wait(lambda: all(stopped(pid) for pid in pids), "all to be frozen")
    time.sleep(for_s)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("whole", [False, True])
def test_a_worker_that_is_frozen_for_a_while_goes_on(local: Fleet, whole: bool) -> None:
    """The child alone for less than the bound; supervisor and child, as when a machine is suspended, for more."""
    bound_s = 3.0 if whole else 30.0
    local.shut("doc", "begin")
    local.add("untimed", {"doc": "0.1"})
    worker = start(local, bound_s)
    local.wait(lambda: local.reached("doc", "begin"), "the stage to begin")
    child = worker.child
    assert child is not None
    freeze(local, [worker.pid, child] if whole else [child], 6.0)
    local.open("doc", "begin")
    local.wait_until_ended()
    assert (worker.child, stalls(worker)) == (child, [])
    assert (local.status("doc").attempts_made, local.status("doc").claims) == (1, 1)


def test_a_child_that_is_stopped_for_longer_is_replaced(hold: Fleet) -> None:
    fleet = hold
    fleet.shut("doc", "begin")
    fleet.add("untimed", {"doc": "0.1"})
    worker = start(fleet)
    fleet.wait(lambda: fleet.reached("doc", "begin"), "the stage to begin")
    child = worker.child
    assert child is not None
    os.kill(child, signal.SIGSTOP)
    fleet.wait(lambda: worker.child not in (None, child), "the worker to be replaced")
    fleet.open("doc", "begin")
    fleet.wait_until_ended()
    assert not any(process.pid == child and alive(process) for process in worker.processes)
    assert charged(fleet, "doc") == [("done", None)]


def test_the_truth_is_told_before_the_worker_is_replaced(hold: Fleet) -> None:
    fleet = hold
    fleet.add("waiting", {"guilty": "60"})
    start(fleet, 600)
    fleet.wait(lambda: fleet.reached("guilty", "holding"), "the worker to be held")
    fleet.add("untimed", {"waiting": "0.1"})

    def silent() -> bool:
        return bool(fleet.ask(fleet.app.readiness()).silent_s)

    fleet.wait(silent, "the silence to be known")
    ready = fleet.ask(fleet.app.readiness())
    assert (ready.workers_alive, len(ready.silent_s)) == (0, 1)
    overview = fleet.ask(fleet.app.overview())
    assert any("has not answered for" in one["text"] for one in overview["problems"])
    assert overview["workers"][0]["silent_since_ms"] < overview["now_ms"] - 5_000
    running, queued = (fleet.ask(fleet.app.why(fleet.ids[name])).sentence for name in ("guilty", "waiting"))
    assert "but that worker has not answered for" in running
    assert "not answered for" in queued
    assert fleet.ask(fleet.app.store.pulse()).silent_since_ms is not None
