"""A process frozen inside its transaction keeps locks: they are taken from it, and its documents, in bounded time."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults import freezing
from tests.faults.fleet import Fleet
from tests.faults.process import WorkerProcess

#: A statement that takes a second or two, for a stage to save with.
SLOW = {
    "postgres": "SELECT pg_sleep(1.5)",
    "sqlite": "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 12000000) SELECT max(n) FROM c",
}
RUNNING = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
#: PostgreSQL ends a session that idles in its transaction for 5 s; on SQLite, who waits for the turn ends who keeps it.
LOCKED_S, SLOW_S, NOTICE_S, SWEEP_S, MARGIN_S = 5, 1.5, 2, 1, 30
TAKEOVER_S = LOCKED_S + SLOW_S + NOTICE_S + SWEEP_S + MARGIN_S
NEIGHBOURS = [f"neighbour-{number}" for number in range(10)]
LATER = [f"later-{number}" for number in range(10)]


def test_frozen_worker(fleet: Fleet) -> None:
    """All of it stops while a stage is saved: that is rolled back, another worker saves, the late save is refused."""
    holder, heir = _two_workers(fleet, SLOW[fleet.app.store.dialect_name])
    pids = _freeze_in_transaction(fleet, holder, alone=False)
    _assert_taken_over(fleet, heir, time.monotonic())
    if fleet.app.store.dialect_name == "postgres":  # on SQLite the process that held the turn is gone
        before = fleet.tally().fenced
        holder.signal(signal.SIGCONT, [pid for pid in pids if pid != holder.pid])
        fleet.wait(lambda: fleet.tally().fenced == before + 1, "the late save to be refused")
        holder.signal(signal.SIGCONT, [holder.pid])
    _assert_done_once(fleet, heir)


@pytest.mark.long
def test_frozen_child(local_fleet: Fleet) -> None:
    """Only the process that writes stops, and on SQLite everybody waits for it: it is ended and replaced."""
    holder, _ = _two_workers(local_fleet, SLOW["sqlite"])
    (child,) = _freeze_in_transaction(local_fleet, holder, alone=True)
    frozen_s = time.monotonic()
    local_fleet.add("second", dict.fromkeys(NEIGHBOURS, "0.1"))
    local_fleet.wait_until_ended(within_s=TAKEOVER_S)
    print(f"all went on {time.monotonic() - frozen_s:.1f} s after the freeze")
    assert holder.process.poll() is None
    assert holder.child != child
    _assert_done_once(local_fleet, None)


@pytest.mark.long
def test_frozen_supervisor(fleet: Fleet, tmp_path: Path) -> None:
    """The process that renews the leases stops in the middle of doing so; its child must not go on without it."""
    _freeze_supervisor(fleet, tmp_path / "freeze", "end")


@pytest.mark.long
def test_frozen_in_mid_sentence(postgres_url: str, tmp_path: Path) -> None:
    """A client that is frozen when it has sent half of a statement is not idle to the server: no timeout ends it."""
    with Fleet(postgres_url, tmp_path) as fleet:
        _freeze_supervisor(fleet, tmp_path / "freeze", "half")


@pytest.mark.long
@pytest.mark.parametrize("where", ["taken", "given"])
def test_frozen_at_its_turn(local_fleet: Fleet, tmp_path: Path, where: str) -> None:
    """On SQLite, as soon as it got the turn to write or when it is about to give it back."""
    _freeze_supervisor(local_fleet, tmp_path / "freeze", where)


def _freeze_supervisor(fleet: Fleet, marker: Path, where: str) -> None:
    holder, heir = _two_workers(fleet, "SELECT 1", marker)
    marker.write_text(where)
    fleet.wait(lambda: not marker.exists(), "the supervisor to freeze")
    _assert_taken_over(fleet, heir, time.monotonic())
    fleet.add("second", dict.fromkeys(LATER, "0.1"))
    fleet.wait_until_ended(LATER)
    assert {fleet.starts(name)[0].worker for name in LATER} == {heir.number}
    if fleet.app.store.dialect_name == "postgres":  # on SQLite the process that held the turn is gone
        holder.signal(signal.SIGCONT, [holder.pid])
    fleet.open("one", "begin")
    _assert_done_once(fleet, heir)


def _two_workers(fleet: Fleet, text: str, marker: Path | None = None) -> tuple[WorkerProcess, WorkerProcess]:
    """One has a document in hand that waits before it saves, the other has nothing to do."""
    fleet.shut("one", "begin")
    fleet.shut("one", "commit")
    fleet.add("entrance", {"one": text})
    module = "perdure" if marker is None else freezing.__name__
    holder = fleet.start("haunted", module=module, FAULTS_FREEZE=str(marker))
    fleet.wait(lambda: fleet.reached("one", "begin"), "the document to be in hand")
    return holder, fleet.start("haunted")


def _freeze_in_transaction(fleet: Fleet, holder: WorkerProcess, alone: bool) -> list[int]:
    """SIGSTOP for the worker (its child `alone`) while the document's slow statement runs; the pids."""
    child = holder.child
    assert child is not None
    pids = [child] if alone else [process.pid for process in holder.processes]
    fleet.open("one", "begin")
    fleet.wait(lambda: _in_transaction(fleet, child), "the transaction to be open", look_s=0)
    holder.signal(signal.SIGSTOP, pids)
    fleet.open("one", "commit")
    return pids


def _in_transaction(fleet: Fleet, child: int) -> bool:
    """Whether the slow statement runs."""
    directory: Path | None = getattr(fleet.app.store.driver, "directory", None)
    if directory is None:
        return bool(fleet.query(RUNNING))
    first = _turn_of(directory / "turn")
    time.sleep(0.3)  # no other transaction takes as long
    return first == _turn_of(directory / "turn") == child


def _turn_of(path: Path) -> int | None:
    """Who has the turn on SQLite."""
    with path.open("rb") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.pread(turn.fileno(), 20, 0).split()
            return int(said[0]) if said else None
    return None


def _assert_taken_over(fleet: Fleet, heir: WorkerProcess, frozen_s: float) -> None:
    """The other worker runs the document again, and whoever else comes is served."""
    fleet.add("second", dict.fromkeys(NEIGHBOURS, "0.1"))
    added_s = time.monotonic() - frozen_s
    fleet.wait(lambda: fleet.starts("one")[-1].worker == heir.number, "the other to take over", TAKEOVER_S)
    takeover_s = time.monotonic() - frozen_s
    print(f"frozen: others could write after {added_s:.1f} s, taken over after {takeover_s:.1f} s")
    assert takeover_s < TAKEOVER_S
    fleet.wait_until_ended(NEIGHBOURS, within_s=90)


def _assert_done_once(fleet: Fleet, by: WorkerProcess | None) -> None:
    fleet.wait_until_ended()
    last = fleet.starts("one")[-1]
    assert by is None or last.worker == by.number
    assert [effect for effect in fleet.effects() if effect[0] == "one"] == [("one", "linger", last.run)]
    *lost, last_attempt = [(a.outcome, a.charged, a.error_code) for a in fleet.attempts("one")]
    assert last_attempt == ("done", True, None)
    assert set(lost) == {
        ("later", False, "worker_lost")
    }  # more than one if the machine is too busy for the lease
    assert sorted(effect[0] for effect in fleet.effects()) == sorted(fleet.ids)
