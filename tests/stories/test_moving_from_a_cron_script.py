"""Moving from a cron script: a directory is looked at every few minutes, the same command each time, by real commands.

*/5 * * * * cd /srv/inbox && perdure add inbox/ --work >> inbox.log 2>&1
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.doors.command import COMMAND, environment, perdure


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "a.txt").write_text("The first file has some words in it.")
    return tmp_path


def cron(place: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """One run of the line above; errors go to the log, as cron would send them."""
    return perdure("add", "inbox/", "--work", *more, cwd=place, PERDURE_EMBEDDER="hashing")


def test_the_same_command_every_five_minutes_does_only_what_is_new(inbox: Path) -> None:
    first = cron(inbox)
    assert (first.returncode, first.stdout.split()[0]) == (0, "added")
    again = cron(inbox)
    assert (again.returncode, again.stdout.split()[0]) == (0, "exists")
    (inbox / "inbox" / "b.txt").write_text("The second file has other words.")
    third = cron(inbox, "--json")
    answers = [json.loads(line) for line in third.stdout.splitlines() if '"answer"' in line]
    assert sorted((Path(one["source"]).name, one["answer"]) for one in answers) == [
        ("a.txt", "exists"),
        ("b.txt", "added"),
    ]
    assert "Traceback" not in first.stderr + again.stderr + third.stderr


def test_a_file_that_fails_makes_the_command_fail_and_the_others_are_done(inbox: Path) -> None:
    (inbox / "inbox" / "broken.pdf").write_bytes(b"%PDF-1.7\nnot really")
    ended = cron(inbox)
    assert ended.returncode == 1
    listed = json.loads(perdure("list", "--json", cwd=inbox).stdout)["documents"]
    assert {one["name"]: one["state"] for one in listed} == {"a.txt": "done", "broken.pdf": "dead"}
    assert "Traceback" not in ended.stderr


def test_two_runs_that_overlap_do_every_file_once(inbox: Path) -> None:
    """Cron starts the next run whether or not the last one has ended."""
    for n in range(6):
        (inbox / "inbox" / f"{n}.txt").write_text(f"File number {n} has its own words.")
    command = [*COMMAND, "add", "inbox/", "--work"]
    runs = [
        subprocess.Popen(
            command,
            cwd=inbox,
            env=environment(PERDURE_EMBEDDER="hashing"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300) for process in runs]
    assert [process.returncode for process in runs] == [0, 0], said
    answers = [
        line.split()[0] for out, _ in said for line in out.splitlines() if line[:5] in ("added", "exist")
    ]
    assert (answers.count("added"), answers.count("exists")) == (7, 7)
    audit = perdure("audit", cwd=inbox)
    assert audit.returncode == 0
    assert "7 accepted = 7 done" in audit.stdout


def test_its_exit_status_and_one_line_say_what_is_wrong(inbox: Path) -> None:
    ended = perdure("add", "no-such-directory/", cwd=inbox, PERDURE_EMBEDDER="hashing")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[-1].endswith("]")
    sweep = perdure("sweep", "--once", cwd=inbox, PERDURE_STORE="sqlite:///elsewhere/none.db")
    assert sweep.returncode != 0
    assert "Traceback" not in sweep.stderr + ended.stderr
