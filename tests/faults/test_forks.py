"""Stage code that forks and starts programs: none of them outlives the worker or keeps a lock of a dead one."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.faults import stages
from tests.faults.fleet import Fleet
from tests.faults.process import WorkerProcess, alive
from tests.faults.server import own_server

NAMES = [f"d{number}" for number in range(4)]
GONE_S = 10  # for killed processes to be gone; a busy machine takes its time


def _in_pools(fleet: Fleet) -> WorkerProcess:
    """A worker whose documents wait while their forked processes live."""
    for name in NAMES:
        fleet.shut(name, "forked")
    fleet.add("pooled", dict.fromkeys(NAMES, "x"))
    worker = fleet.start("forks")
    fleet.wait(lambda: all(fleet.reached(name, "forked") for name in NAMES), "all to have forked")
    assert len(worker.processes) >= 2 + 2 * len(NAMES), "supervisor, child and forked processes"
    return worker


def _assert_done_once(fleet: Fleet) -> None:
    """All are done by the second run, which alone has an effect."""
    for name in NAMES:
        fleet.open(name, "forked")
    fleet.wait_until_ended()
    for name in NAMES:
        status = fleet.status(name)
        assert (status.state, status.attempts_made, status.claims) == ("done", 1, 2), name
        assert len(fleet.starts(name)) == 2, name
    last = {(name, "square", fleet.starts(name)[-1].run) for name in NAMES}
    assert sorted(e for e in fleet.effects() if e[0] in NAMES) == sorted(last)


@pytest.mark.full
def test_killed_child_leaves_no_fork_behind(fleet: Fleet) -> None:
    worker = _in_pools(fleet)
    worker.kill_child(GONE_S)
    fleet.add("terminated", {"other": "x"})
    fleet.wait_until_ended(["other"])  # the store is not blocked
    fleet.wait(lambda: all(len(fleet.starts(name)) == 2 for name in NAMES), "all to run again")
    _assert_done_once(fleet)
    assert worker.stop() == 0
    fleet.wait_until_gone(worker, GONE_S)


@pytest.mark.full
def test_killed_supervisor_leaves_no_fork_behind(fleet: Fleet) -> None:
    worker = _in_pools(fleet)
    worker.kill()
    fleet.wait_until_gone(worker, GONE_S)
    other = fleet.start("forks")
    _assert_done_once(fleet)
    assert other.stop() == 0
    fleet.wait_until_gone(other, GONE_S)


@pytest.mark.full
def test_stopped_worker_leaves_no_fork_behind(fleet: Fleet) -> None:
    """The grace is over while forked processes live."""
    for name in NAMES:
        fleet.shut(name, "forked")
    fleet.add("pooled", dict.fromkeys(NAMES, "x"))
    worker = fleet.start("forks", PERDURE_GRACE_S="0.5")
    fleet.wait(lambda: all(fleet.reached(name, "forked") for name in NAMES), "all to have forked")
    assert worker.stop() == 0
    fleet.wait_until_gone(worker, GONE_S)
    fleet.start("forks")
    _assert_done_once(fleet)


@pytest.mark.full
def test_store_is_not_blocked_by_forks_of_a_killed_child(fleet: Fleet) -> None:
    """Stages that hold the interpreter, with forked processes, while others save: the supervisor kills the child."""
    fleet.add("holding", {f"hog-{number}": "x" for number in range(2)})
    fleet.add("pooled", dict.fromkeys(NAMES, "x"))
    worker = fleet.start("forks")
    slowest_s, added = 0.0, 0
    until_s = time.monotonic() + 12
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        fleet.add("terminated", {f"late-{added}": "x"})
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        added += 1
        time.sleep(0.2)
    fleet.wait_until_ended(within_s=90)
    print(f"{added} added meanwhile, the slowest in {slowest_s:.1f} s")
    assert {s.name: s.error_code for s in fleet.statuses().values() if s.state != "done"} == {}
    assert sorted(e[0] for e in fleet.effects()) == sorted(fleet.ids), "every effect once"
    assert worker.stop() == 0
    fleet.wait_until_gone(worker, GONE_S)


def test_pool_that_is_terminated_does_not_stop_the_worker(local_fleet: Fleet) -> None:
    """Its SIGTERM is for the forked processes, which share the event loop's descriptor for signals with the worker."""
    _assert_pools_end(local_fleet, local_fleet.start("forks"))


def test_pool_that_is_terminated_ends_in_a_program(local_fleet: Fleet) -> None:
    """Forked processes must not inherit how an embedded app handles SIGTERM."""
    program = local_fleet.run(["-c", "from tests.faults.stages import forks\nwith forks:\n    forks.run()"])
    _assert_pools_end(local_fleet, program)


def _assert_pools_end(fleet: Fleet, worker: WorkerProcess) -> None:
    for name in ("one", "two"):
        fleet.add("terminated", {name: "x"})
        fleet.wait_until_ended()
    assert {(s.state, s.claims) for s in fleet.statuses().values()} == {("done", 1)}
    assert worker.process.poll() is None
    assert '"worker stopped"' not in worker.said
    assert worker.stop() == 0
    fleet.wait_until_gone(worker, GONE_S)


@pytest.mark.parametrize("how", ["stop", "kill_child", "kill"])
def test_programs_that_stages_start_end_with_their_worker(local_fleet: Fleet, how: str) -> None:
    """However it ends; programs with a session of their own outlive only a killed supervisor."""
    fleet = local_fleet
    fleet.add("launching", {"one": "x"})
    worker = fleet.start("forks")
    fleet.wait_until_ended()
    programs = [p for p in worker.processes if p.name() == "sleep"]
    assert len(programs) == 3
    ours = [p for p in programs if os.getsid(p.pid) == worker.child]
    assert len(ours) == 1
    if how == "stop":
        assert worker.stop() == 0
        fleet.wait_until_gone(worker, GONE_S)
    elif how == "kill_child":
        worker.kill_child(GONE_S)
    else:
        worker.kill()
        fleet.wait(lambda: not any(p in worker.processes for p in ours), "its session to be gone", GONE_S)


@pytest.mark.parametrize("how", ["stop", "kill_child"])
def test_jobs_of_the_entrypoint_are_left_alone(local_fleet: Fleet, tmp_path: Path, how: str) -> None:
    """A worker that a shell becomes has the shell's jobs as children, and adopts what they leave behind later."""
    fleet = local_fleet
    worker = _entered(fleet, "while [ ! -e begin ]; do sleep 0.1; done; setsid sleep 600 & echo $! > daemon")
    (tmp_path / "begin").touch()
    daemon = psutil.Process(_number(fleet, tmp_path / "daemon"))
    fleet.wait(lambda: daemon.ppid() == worker.pid, "the worker to adopt the daemon")
    first = worker.child
    assert first is not None
    if how == "stop":
        assert worker.stop() == 0
    else:
        os.kill(first, signal.SIGKILL)
        fleet.wait(lambda: worker.child not in (None, first), "the next child")
    assert alive(daemon)


def test_ended_processes_are_reaped_whoever_started_them(local_fleet: Fleet, tmp_path: Path) -> None:
    """The entrypoint's job ends first; later ones are reaped all the same."""
    fleet = local_fleet
    worker = _entered(fleet, "while [ ! -e begin ]; do sleep 0.1; done")
    job = psutil.Process(_number(fleet, tmp_path / "job"))
    (tmp_path / "begin").touch()
    fleet.wait(lambda: not alive(job), "the job to end")
    fleet.add("launching", {"one": "x"})
    fleet.wait_until_ended()
    adopted = [p for p in worker.processes if p.name() == "sleep" and p.ppid() == worker.pid]
    assert len(adopted) == 1
    adopted[0].kill()
    fleet.wait(
        lambda: not any(psutil.pid_exists(p.pid) for p in (job, *adopted)),
        "ended processes to be reaped",
        GONE_S,
    )


def _entered(fleet: Fleet, job: str) -> WorkerProcess:
    """A worker that a shell becomes once it has started this job; its child runs."""
    script = f"({job}) & echo $! > job; exec {sys.executable} -m perdure worker {stages.__name__}:forks"
    worker = fleet.run(["-c", f"import os; os.execv('/bin/sh', ['sh', '-c', {script!r}])"])
    fleet.wait(lambda: '"worker started"' in worker.said, "the worker to start")
    return worker


def _number(fleet: Fleet, path: Path) -> int:
    """What a shell wrote there, once it has."""
    fleet.wait(lambda: path.exists() and path.read_text().endswith("\n"), f"{path.name} to be written")
    return int(path.read_text())


def test_stop_while_it_starts(local_fleet: Fleet, tmp_path: Path) -> None:
    """A worker that is told to stop before its app is imported ends as any other that is stopped."""
    (tmp_path / "sluggish.py").write_text(
        "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n"
    )
    worker = local_fleet.run(["-m", "perdure", "worker", "sluggish:app"])
    local_fleet.wait((tmp_path / "importing").exists, "the app to be imported")
    assert worker.stop() == 0
    local_fleet.wait_until_gone(worker, GONE_S)


def test_worker_waits_for_its_store(tmp_path: Path) -> None:
    """It says so, and begins when the store is there."""
    place = tmp_path / "mounted"
    place.mkdir()
    with Fleet(f"sqlite:///{place}/perdure.db", tmp_path) as fleet:
        fleet.add("terminated", {"one": "x"})
        fleet.ask(fleet.app.close())
        shutil.move(place, tmp_path / "away")
        worker = fleet.start("forks", ready=False)
        fleet.wait(lambda: "waiting for the store" in worker.said, "the worker to say that it waits")
        assert worker.process.poll() is None
        shutil.move(tmp_path / "away", place)
        fleet.ask(fleet.app.start())
        fleet.wait_until_ended()
        assert worker.stop() == 0


@pytest.mark.full
def test_worker_waits_for_its_server(tmp_path: Path) -> None:
    """PostgreSQL is started after the worker."""
    with own_server() as server, Fleet(server.url, tmp_path, server_old=False) as fleet:
        fleet.add("terminated", {"one": "x"})
        server.stop("fast")
        worker = fleet.start("forks", ready=False)
        fleet.wait(lambda: "waiting for the store" in worker.said, "the worker to say that it waits")
        assert worker.process.poll() is None
        server.start()
        fleet.wait_until_ended()
        assert worker.stop() == 0


def test_worker_that_waits_for_its_store_can_be_stopped(local_fleet: Fleet, tmp_path: Path) -> None:
    worker = local_fleet.start("forks", ready=False, FAULTS_STORE=f"sqlite:///{tmp_path}/missing/perdure.db")
    local_fleet.wait(lambda: "waiting for the store" in worker.said, "the worker to say that it waits")
    assert worker.stop() == 0
    local_fleet.wait_until_gone(worker, GONE_S)


def test_worker_ends_when_its_log_was_deleted(local_fleet: Fleet, tmp_path: Path) -> None:
    """It says why; all that was acknowledged is in the database file."""
    fleet = local_fleet
    for name in NAMES:
        fleet.shut(name, "forked")
    fleet.add("pooled", dict.fromkeys(NAMES, "x"))
    worker = fleet.start("forks")
    fleet.wait(lambda: all(fleet.reached(name, "forked") for name in NAMES), "all to have forked")
    (tmp_path / "perdure.db-wal").unlink()
    assert worker.exit() == 1
    assert "[wal_deleted]" in worker.said
    fleet.wait_until_gone(worker, GONE_S)
    with pytest.raises(Exception, match="was deleted while it was open"):
        fleet.ask(fleet.app.close())
    fleet.ask(fleet.app.start())
    fleet.start("forks")
    _assert_done_once(fleet)
