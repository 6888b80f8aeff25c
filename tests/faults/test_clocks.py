"""Wall clocks that are wrong or are set: on SQLite each process goes by its own, and nobody loses a document."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet
from tests.faults.process import WorkerProcess
from tests.faults.wall import WallClock

pytestmark = pytest.mark.full

HOUR_S = 3600
NAMES = [f"d{number}" for number in range(10)]
GATE = "fetch:half"
BEATS = 2


@pytest.mark.parametrize("off_s", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("who", ["holder", "other"])
def test_a_worker_whose_clock_is_an_hour_off(
    local_fleet: Fleet, tmp_path: Path, off_s: int, who: str
) -> None:
    """It has all documents in hand, or sees another worker have them."""
    right, wrong = WallClock(tmp_path / "right"), WallClock(tmp_path / "wrong", off_s)
    holder = _start_with_documents(local_fleet, wrong if who == "holder" else right)
    other = _start(local_fleet, right if who == "holder" else wrong)
    _wait_for_beats(local_fleet, holder, other)
    _assert_run_once(local_fleet)


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_clocks_that_are_set(local_fleet: Fleet, tmp_path: Path, by_s: int) -> None:
    """As on a machine that was suspended, or whose clock was put right."""
    clock = WallClock(tmp_path / "clock")
    holder = _start_with_documents(local_fleet, clock)
    other = _start(local_fleet, clock)
    _wait_for_beats(local_fleet, holder, other)
    clock.set(by_s)
    _wait_for_beats(local_fleet, holder, other)
    _assert_run_once(local_fleet)


def test_a_delay_is_not_longer_after_clocks_were_set_back(local_fleet: Fleet, tmp_path: Path) -> None:
    """A document that is due in three seconds runs then, although the clocks are set back by ten minutes."""
    clock = WallClock(tmp_path / "clock")
    worker = _start(local_fleet, clock)
    local_fleet.add("steps", {"before": "text"})
    local_fleet.wait_until_ended()
    added = local_fleet.ask(
        local_fleet.app.add(text="text", name="delayed", dedupe=False, delay_s=3.0, pipeline="steps")
    )
    local_fleet.ids["delayed"] = added.id
    clock.set(-600)
    began_s = time.monotonic()
    local_fleet.wait_until_ended()
    print(f"ended {time.monotonic() - began_s:.1f} s after the clocks were set back")
    assert worker.process.poll() is None


def _start(fleet: Fleet, clock: WallClock) -> WorkerProcess:
    return fleet.start("five", concurrency=20, ready=True, module="perdure", **clock.environment)


def _start_with_documents(fleet: Fleet, clock: WallClock) -> WorkerProcess:
    """A worker by this clock that has every document in hand."""
    for name in NAMES:
        fleet.shut(name, GATE)
    fleet.add("steps", dict.fromkeys(NAMES, "text"))
    worker = _start(fleet, clock)
    fleet.wait(lambda: all(fleet.reached(name, GATE) for name in NAMES), "all documents to be in hand")
    return worker


def _wait_for_beats(fleet: Fleet, *workers: WorkerProcess) -> None:
    """Until each has beaten again a few times: leases were renewed, and others had the time to look at them."""
    ids = {worker.id for worker in workers}
    seen: dict[int, set[int]] = {id_: set() for id_ in ids}

    def beaten() -> bool:
        for found in fleet.ask(fleet.app.store.workers()):
            if found.id in ids:
                seen[found.id].add(found.beat_ms)
        return all(len(beats) > BEATS for beats in seen.values())

    fleet.wait(beaten, "both workers to beat", within_s=60, look_s=0.2)


def _assert_run_once(fleet: Fleet) -> None:
    for name in NAMES:
        fleet.open(name, GATE)
    fleet.wait_until_ended()
    assert {(s.state, s.claims) for s in fleet.statuses().values()} == {("done", 1)}
    assert fleet.tally().fenced == 0
