"""`perdure demo`: to the end on both stores, with its promises kept, its processes ended and its directory gone."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.doors.command import COMMAND, environment, facts, perdure

ACCOUNTS = (
    "lost 0",
    "done twice 0",
    "stage runs paid for",
    "paragraph runs paid for",
    "attempts charged to innocents 0",
    "index rows 120",
)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the demo makes its directories."""
    with tempfile.TemporaryDirectory(prefix="perdure-test-") as directory:
        yield Path(directory).resolve()


def workers(directory: Path) -> list[psutil.Process]:
    """Every process that works in or below this directory."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd().startswith(str(directory)):
                found.append(process)
    return found


def check(said: str) -> None:
    """What the demo says when everything was as promised."""
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for account in ACCOUNTS:
        assert any(line.startswith(f"ok {account}") for line in lines), (account, said)
    assert "NOT KEPT" not in said
    assert "12 documents taken in" in said
    assert "12 taken in = 10 done + 2 dead" in said
    assert "damaged.txt: text_broken" in said
    assert "cursed.txt: crashed:SIGSEGV" in said
    assert re.search(r"kill -9 \d+: worker 1 is gone", said)
    assert re.search(r"worker 2 goes on at \w+, \d+\.\d s after the kill", said)
    assert re.search(r"letters.txt .* done$", said, re.MULTILINE)
    assert "\x1b" not in said
    assert not re.search(r"[ \t]$", said, re.MULTILINE)


def test_it_keeps_its_promises_and_leaves_nothing_behind(temporary: Path, tmp_path: Path) -> None:
    began_s = time.monotonic()
    ended = perdure("demo", cwd=tmp_path, timeout=90, TMPDIR=str(temporary), HOME="/nonexistent")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check(ended.stdout)
    assert ended.stderr == ""
    assert time.monotonic() - began_s < 60
    assert workers(temporary) == []
    assert list(temporary.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_it_runs_on_postgresql_and_its_documents_can_be_looked_at(postgres_url: str, temporary: Path) -> None:
    ended = perdure("demo", "--store", postgres_url, timeout=90, TMPDIR=str(temporary))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check(ended.stdout)
    assert list(temporary.iterdir()) == []
    found = facts("--store", postgres_url)
    assert (found["documents"]["done"], found["documents"]["dead"], found["workers"]) == (10, 2, [])


def test_stopped_in_the_middle_it_ends_its_workers(temporary: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo"],
        env=environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "at work" in line:
                break
        assert len(workers(temporary)) >= 2
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "stopped" in said
    assert workers(temporary) == []
    assert list(temporary.iterdir()) == []
