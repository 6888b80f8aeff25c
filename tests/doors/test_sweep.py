"""`perdure sweep`: what it prints, and what its exit status says."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from perdure import Document, Perdure, Pipeline
from tests.doors.command import COMMAND, environment, perdure


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a document that is due and two that nobody can see, one of them with a row that cannot be read."""
    for text in ("due", "lost", "broken"):
        assert perdure("add", "--text", text, cwd=tmp_path).returncode == 0
    with sqlite3.connect(tmp_path / "perdure.db") as db:
        long_ago = "created_ms = 1, run_at_ms = 1"
        db.execute(f"UPDATE job SET {long_ago}, lane = 'gone', queue = 'none' WHERE id > 1")
        db.execute("UPDATE job SET policy = '{' WHERE id = 3")
        db.execute("UPDATE job SET state = 'waiting' WHERE id = 1")
    return tmp_path


def test_one_sweep_is_told_as_a_table_and_by_its_exit_status(store: Path) -> None:
    ran = perdure("sweep", "--once", cwd=store)
    assert ran.returncode == 3
    first, heads, row, problem = ran.stdout.splitlines()
    assert first.startswith("partial: 1 stuck, 2 promoted (3 jobs,")
    assert heads.split()[:3] == ["collection", "stuck", "requeued"]
    assert row.split() == ["documents", "1", "1", "0", "0", "0"]
    assert problem.strip().startswith("job 3 cannot be read: JSONDecodeError")

    with sqlite3.connect(store / "perdure.db") as db:
        db.execute("DELETE FROM job WHERE id = 3")
    again = perdure("sweep", "--once", "--json", cwd=store)
    told = json.loads(again.stdout)
    assert (again.returncode, told["status"], told["stuck"]) == (0, "success", {})


def test_a_sweep_without_a_store_is_a_failure_that_says_what_to_do(tmp_path: Path) -> None:
    ran = perdure("sweep", "--once", cwd=tmp_path)
    assert ran.returncode == 1
    assert "PERDURE_STORE" in ran.stderr


def test_a_sweep_that_is_killed_in_the_middle_is_finished_by_the_next_and_each_is_requeued_once(
    tmp_path: Path,
) -> None:
    pipeline, count = Pipeline("lost"), 3_000

    @pipeline.stage
    def read(doc: Document) -> str:
        return doc.text

    with Perdure(f"sqlite:///{tmp_path}/perdure.db", pipelines=[pipeline]) as app:
        app.add_many([{"text": str(n)} for n in range(count)], pipeline=pipeline)
    db = sqlite3.connect(tmp_path / "perdure.db", isolation_level=None, timeout=10)
    now_ms = time.time_ns() // 1_000_000
    db.execute("UPDATE job SET state = 'waiting', aside_ms = 1, run_at_ms = ?", (now_ms + 3_600_000,))
    db.execute("UPDATE queue SET served_ms = 1, seen_ms = ?", (now_ms,))
    db.execute("UPDATE lane SET open_ms = 1")

    def requeued() -> int:
        found = db.execute("SELECT value FROM retry_job WHERE name = 'requeued'").fetchone()
        return found[0] if found else 0

    sweeping = subprocess.Popen(
        [*COMMAND, "sweep", "--once"], cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL
    )
    while requeued() == 0 and sweeping.poll() is None:
        time.sleep(0.001)
    sweeping.send_signal(signal.SIGKILL)
    assert sweeping.wait(90) == -signal.SIGKILL
    before = requeued()

    told = json.loads(perdure("sweep", "--once", "--json", cwd=tmp_path).stdout)

    assert 0 < before < count
    assert told["requeued"] == {"documents": count - before}
    assert requeued() == count
    assert db.execute("SELECT DISTINCT requeues FROM job").fetchall() == [(1,)]
    db.close()
