"""`perdure demo`: to the end on both stores, with its promises kept, its processes ended and its directory gone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.doors.command import COMMAND, environment, facts, perdure, succeeded

ACCOUNTS = (
    "nothing lost",
    "saved is saved",
    "nothing twice",
    "no blame",
    "retries",
    "all indexed",
    "all read",
    "all found",
    "connections",
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
    assert "9 documents taken in" in said
    assert "9 taken in = 7 done + 2 dead" in said
    assert re.search(r"torn.pdf: dead at extract, attempt 1 of 3: document_corrupt", said)
    assert re.search(r"bomb.pdf: dead at extract, attempt 2 of 3: crashed:", said)
    assert re.search(r"kill -9 \d+: worker 1 is gone", said)
    assert re.search(r"worker 2 goes on with page \d+, .* were saved, none is read again", said)
    assert "things-that-last.pdf, page 5: A light that turns" in said
    assert "three-journeys.epub, chapter 1: " in said
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said)
    assert not re.search(r" $", said, re.MULTILINE)


def pages_read(said: str) -> tuple[int, int, int]:
    """(pages saved at the kill, the page it went on with, reads in all), as it says."""
    saved = re.search(r"pages 1-(\d+) of 38 are saved", said)
    resumed = re.search(r"goes on with page (\d+)", said)
    reads = re.search(r"(\d+) reads = 38 pages", said)
    assert saved
    assert resumed
    assert reads
    return int(saved[1]), int(resumed[1]), int(reads[1])


@pytest.mark.full  # make demo checks its promises, too
def test_it_keeps_its_promises_and_leaves_nothing_behind(temporary: Path, tmp_path: Path) -> None:
    ended = perdure("demo", cwd=tmp_path, timeout=120, TMPDIR=str(temporary), HOME="/nonexistent")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check(ended.stdout)
    saved, resumed, reads = pages_read(ended.stdout)
    assert (resumed, reads in (38, 39)) == (saved + 1, True)
    assert ended.stderr == ""
    assert workers(temporary) == []
    assert list(temporary.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_what_it_keeps_can_be_looked_at_also_on_postgresql(postgres_url: str, temporary: Path) -> None:
    ended = perdure("demo", "--keep", "--store", postgres_url, timeout=120, TMPDIR=str(temporary))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check(ended.stdout)
    found = facts("--store", postgres_url)
    assert (found["documents"]["done"], found["documents"]["dead"], found["workers"]) == (7, 2, [])

    asked = re.search(r'perdure search "(.+)" --org (\S+)', ended.stdout)
    dead = re.search(r"perdure status (\S+)", ended.stdout)
    assert asked
    assert dead
    hits = json.loads(succeeded("search", asked[1], "--org", asked[2], "--json", "--store", postgres_url))[
        "hits"
    ]
    assert hits[0]["name"] == "leases.md"
    assert facts(dead[1], "--store", postgres_url)["state"] == "dead"

    (directory,) = temporary.iterdir()  # its own count of pages agrees with what it said
    reads = [line.split() for line in (directory / "pages-read.txt").read_text().splitlines()]
    book = [(int(worker), int(page)) for worker, document, page in reads if document != dead[1]]
    saved, resumed, total = pages_read(ended.stdout)
    assert len(book) == total
    assert min(page for worker, page in book if worker == 2) == resumed > saved
    assert {page for _, page in book} == set(range(1, 39))


@pytest.mark.full
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
        _, said = process.communicate(timeout=90)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "stopped" in said
    assert workers(temporary) == []
    assert list(temporary.iterdir()) == []
