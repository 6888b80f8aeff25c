"""`perdure add --watch` and `--work`: what a user sees until the documents have ended."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from PIL import Image

from perdure import Document, Perdure, Pipeline
from perdure.cli.watch import DEGRADED, Watched
from perdure.testing import tick, trial
from tests.doors.command import COMMAND, complaints, environment, facts, perdure
from tests.doors.needing import busy, needing
from tests.pipelines.mail.boxes import letter, mbox

ROOT = Path(__file__).parents[2]


@contextmanager
def started(*arguments: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command while it runs; unbuffered, so who reads a line takes no more. Ended with the block."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=ROOT, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        bufsize=0,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(stream: IO[bytes] | None, word: str) -> str:
    """The first line with this word; fails where the stream ends without."""
    assert stream is not None
    for line in stream:
        if word in line.decode():
            return line.decode()
    raise AssertionError(f"{word!r} was never said")


def test_one_command_does_everything(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Leases\n\nWhoever holds a lease may write.")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing of the kind")

    ended = perdure("add", "a.md", "broken.pdf", "--work", "--store", store_url, cwd=tmp_path, timeout=60)

    assert ended.returncode == 1
    lines = [line.partition(" s  ")[2] for line in ended.stdout.splitlines() if not line.startswith("added")]
    assert any(line.split() == ["done", "a.md"] for line in lines)
    assert any(
        line.split()[:3] == ["dead", "extract", "broken.pdf"] and "document_corrupt" in line for line in lines
    )
    told = [line for line in complaints(ended.stderr) if "follow-up" not in line]
    assert told == ["perdure: 2 added", "perdure: 1 done   1 dead"]
    assert facts("--store", store_url)["queues"][0] == {
        "name": "connections", "paused": False, "ready_since_ms": None, "ready": 0, "running": 0, "waiting": 0,
        "held": 0, "over_limit": 0, "stopped": 0, "remote": 0, "workers": 0,
    }  # fmt: skip
    found = perdure("search", "holds a lease", "--store", store_url)
    assert "a.md" in found.stdout
    assert facts("--store", store_url)["workers"] == []


def test_a_repair_that_is_held_for_a_service_keeps_nobody_waiting(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30), "navy").save(tmp_path / "sea.png")
    on = ("--store", f"sqlite:///{tmp_path}/p.db")
    ended = perdure("add", "sea.png", "--work", *on, cwd=tmp_path, timeout=40)  # it would wait for a minute
    assert ended.returncode == 0, ended.stderr
    assert "degraded" in ended.stdout
    assert next(q for q in facts(*on)["queues"] if q["name"] == "image-processing")["held"] == 1


def test_an_archive_is_worked_on_until_all_that_is_in_it_has_ended(tmp_path: Path) -> None:
    """It waits for its messages and threads most of the time, and nobody takes that for being stuck."""
    box = tmp_path / "list.mbox"
    box.write_bytes(mbox(*(letter(f"p{n}", hour=n) for n in range(30))))
    store = f"sqlite:///{tmp_path}/p.db"
    more = {"PERDURE_EMBEDDER": "hashing"}

    ended = perdure("add", "list.mbox", "--work", "--store", store, cwd=tmp_path, timeout=60, **more)

    told = ["perdure: 1 done", "perdure: list.mbox: of what is in it 60 done"]
    assert (ended.returncode, complaints(ended.stderr)) == (0, told)
    assert facts("--store", store)["documents"]["done"] == 61
    box.write_bytes(mbox(*(letter(f"p{n}", hour=n) for n in range(31))))
    again = perdure("add", "list.mbox", "--work", "--store", store, cwd=tmp_path, timeout=60, **more)
    assert (again.returncode, again.stdout.split()[:2]) == (0, ["refreshed", ended.stdout.split()[1]])
    assert facts("--store", store)["documents"]["done"] == 63


def test_what_is_done_already_is_over_at_once(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    asked = ("add", "--text", "well", "--work", "--json", "--store", store)
    assert perdure(*asked, timeout=60).returncode == 0
    ended = perdure(*asked, timeout=60)
    assert ended.returncode == 0
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [said[0]["answer"], said[1]["state"]] == ["exists", "done"]


@pytest.mark.full
def test_it_says_that_nobody_works_and_sees_when_somebody_does(store_url: str) -> None:
    with started("add", "--text", "well", "--watch", "--store", store_url) as watching:
        assert "perdure worker" in read_until(watching.stderr, "nobody is working")
        with started("worker", PERDURE_STORE=store_url) as worker:
            rest, errors = watching.communicate(timeout=60)
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=90)
    assert watching.returncode == 0
    assert rest.splitlines()[-1].split()[2] == b"done"
    assert errors.endswith(b"perdure: 1 done\n")


def test_what_waits_is_shown_with_its_reason(tmp_path: Path) -> None:
    gate, store = tmp_path / "gate", f"sqlite:///{tmp_path}/p.db"
    with started(
        "add", "--text", "x", "--name", "x", "--app", "tests.doors.needing:app", "--pipeline", "busy", "--work",
        "--store", store, PERDURE_TEST_GATE=str(gate),
    ) as working:  # fmt: skip
        waiting = read_until(working.stdout, " waiting ")
        assert "transient: the line is busy" in waiting
        assert waiting.endswith("again after 500 ms\n")
        gate.touch()
        rest, _ = working.communicate(timeout=60)
    assert working.returncode == 0
    assert rest.splitlines()[-1].split()[2:4] == [b"done", b"x,"]


def test_what_is_held_is_left_to_others(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    with Perdure(store, pipelines=[busy, needing]) as app:
        app.hold("ocr", "the scanner is away")
    asked = (
        "add",
        "--text",
        "x",
        "--app",
        "tests.doors.needing:app",
        "--pipeline",
        "needing",
        "--store",
        store,
    )

    ended = perdure(*asked, "--work", cwd=ROOT, timeout=60)
    assert ended.returncode == 1
    assert "held" in ended.stdout
    assert "needs ocr: the scanner is away" in ended.stdout
    assert "goes on whenever a worker runs" in ended.stderr

    with started(*asked, "--watch") as watching:
        assert "needs ocr" in read_until(watching.stdout, " held ")
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=90)
    assert watching.returncode == 130
    assert b"perdure: 1 held" in errors
    assert facts("--store", store)["documents"]["held"] == 1


def test_ctrl_c_gives_the_document_back_uncharged(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    with started(
        "add", "--text", "x", "--app", "tests.doors.needing:app", "--pipeline", "patient", "--work", "--json",
        "--store", store, PERDURE_GRACE_S="0.1",
    ) as working:  # fmt: skip
        id_ = json.loads(read_until(working.stdout, "added"))["id"]
        read_until(working.stdout, '"state": "running"')
        working.send_signal(signal.SIGINT)
        _, errors = working.communicate(timeout=90)
    assert working.returncode == 130
    assert b"goes on whenever a worker runs" in errors
    assert b"Traceback" not in errors
    found = facts(id_, "--store", store)
    assert (found["state"], found["attempts_made"]) == ("queued", 0)
    assert facts("--store", store)["workers"] == []


def test_in_a_terminal_it_is_a_table(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.md").write_text(f"text {number}")
    said = in_terminal("add", ".", "--work", "--store", f"sqlite:///{tmp_path}/p.db", cwd=tmp_path)
    assert "adding" in said  # the bar
    assert "running" in said
    assert "extract" in said
    # more than the terminal has lines: those that are through are folded
    *_, last = re.split(r"\d+ running", said)
    assert last.endswith("30 done")
    assert ".md" not in last


def in_terminal(*arguments: str, cwd: Path) -> str:
    """Everything that the command writes to a terminal of 80 × 24, without colours; it must succeed."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(cwd)
        os.execve(COMMAND[0], [*COMMAND, *arguments], environment(LINES="24", TERM="xterm", NO_COLOR="1"))
    said, end_s = b"", time.monotonic() + 60
    while time.monotonic() < end_s:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:  # the other side is gone
            break
        said += piece
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).strip()


def test_one_for_which_a_fallback_stood_in_is_said_to_be_degraded() -> None:
    books = Pipeline("books", attempts=1)

    @books.stage
    def read(doc: Document) -> int:
        raise ValueError("never")

    @read.fallback
    def guess() -> int:
        return 0

    with trial(books) as app:
        id_ = app.add(text="a", pipeline=books).id
        tick(app)
        (seen,) = app._call(Watched(app.service, "default", [id_]).look())
        assert (seen.state, seen.why) == ("done", DEGRADED)
