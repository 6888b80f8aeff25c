"""A worker that is frozen past its lease: others go on with its documents, and nothing it writes later is accepted."""

from __future__ import annotations

import signal
import time

from tests.faults.fleet import Fleet

LEASE_S = 2


def test_late_writes_are_refused_and_counted(fleet: Fleet) -> None:
    """One document is frozen in the last line of a stage, one between the items of another.

    When the worker wakes it may learn that it is late before it tries a write; what it tries is refused.
    """
    fleet.add("brief", {"stage": "a", "items": "b"})
    fleet.shut("stage", "begin")
    fleet.shut("items", "item-2")
    frozen = fleet.start("leased")
    fleet.wait(lambda: fleet.reached("stage", "begin") and fleet.reached("items", "item-2"), "both gates")
    child = frozen.child
    assert child is not None
    pids = fleet.freeze(frozen)
    frozen_s = time.monotonic()

    # the frozen worker leads the sweeps and stays the leader while it is frozen
    fleet.start("leased")
    fleet.wait(
        lambda: len(fleet.starts("stage")) == 2 and len(fleet.starts("items")) == 3, "the other to take over"
    )
    takeover_s = time.monotonic() - frozen_s
    print(f"taken over {takeover_s:.1f} s after the freeze")
    assert takeover_s > LEASE_S * 2 / 3, "nobody may take over before the lease is over"
    fleet.open("stage", "begin")
    fleet.open("items", "item-2")
    fleet.wait_until_ended()
    before, stands = fleet.tally().fenced, (sorted(fleet.effects()), fleet.rows("stage"), fleet.rows("items"))
    outputs = [fleet.ask(fleet.app.output(fleet.ids["items"], s)) for s in ("lone", "several")]

    late = 2  # the save of a stage, the save of an item
    frozen.signal(signal.SIGCONT, pids)
    fleet.wait(lambda: frozen.said.count("late write refused") == late, "both to be given up")

    # alive again and of use: it alone runs the next document
    fleet.workers[1].stop()
    fleet.add("brief", {"afterwards": "c"})
    fleet.wait_until_ended()
    assert fleet.starts("afterwards")[0].pid == child
    assert fleet.tally().fenced - before <= late

    now = (
        [e for e in sorted(fleet.effects()) if e[0] != "afterwards"],
        fleet.rows("stage"),
        fleet.rows("items"),
    )
    assert now == stands
    assert outputs == [fleet.ask(fleet.app.output(fleet.ids["items"], s)) for s in ("lone", "several")]
    assert sorted((document, stage) for document, stage, _ in stands[0]) == [
        ("items", "lone"), ("items", "several"), ("stage", "lone"), ("stage", "several"),
    ]  # fmt: skip
    items = [line.event for line in fleet.ledger if line.document == "items" and "item" in line.event]
    assert items == ["item-0", "item-1", "item-2", "item-2", "item-3"], "saved items do not run again"
    for name in ("stage", "items"):
        status = fleet.status(name)
        assert (status.state, status.attempts_made, status.claims) == ("done", 1, 2), name
