"""`perdure sweep`: what it prints, and what its exit status says."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.doors.command import perdure


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
