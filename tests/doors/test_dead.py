"""`perdure dead …`: what an operator types, what is said, and with which status it ends."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perdure import Document, Permanent, Pipeline
from perdure.cli.main import app as command
from perdure.testing import drain, trial
from tests.doors.command import perdure, refused

books = Pipeline("books", attempts=1)


@books.stage
def read(doc: Document) -> str:
    return doc.text


@books.stage
def parse(read: str) -> int:
    if "404" in read:
        raise Permanent("http_404", f"nothing at https://x.example/{len(read)}")
    raise TimeoutError(f"no answer after {len(read)} s")


class Shell:
    """Types commands at a store, in this process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *words: str, status: int = 0) -> str:
        """What a command says on standard output; it must end so."""
        ended = CliRunner().invoke(command, ["dead", *words, "--store", self.url], catch_exceptions=False)
        assert ended.exit_code == status, (ended.stdout, ended.stderr)
        self.errors = ended.stderr
        return ended.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A store with 12 documents that had no answer and 3 that are not to be found."""
    url = f"sqlite:///{tmp_path}/perdure.db"
    with trial(books, store=url) as app:
        for n in range(12):
            app.add(text="." * n, pipeline=books)
        for n in range(3):
            app.add(text=f"404 {n}", pipeline=books, collection="archives")
        drain(app)
    before = os.getcwd()
    os.chdir(tmp_path)
    yield Shell(url)
    os.chdir(before)


def test_from_the_groups_to_the_cause(shell: Shell) -> None:
    late, gone = shell.json("groups")["groups"]
    assert (late["count"], late["action"], gone["count"], gone["collections"]) == (
        12,
        "requeue",
        3,
        ["archives"],
    )
    said = shell("groups")
    assert f"{late['fingerprint'][:8]}  12 documents  parse  TimeoutError unexpected" in said
    assert f"perdure dead requeue --group {late['fingerprint'][:8]} --canary 10" in said
    page = shell.json("list", "archives.failed", "--limit", "2")
    assert [one["error_code"] for one in page["documents"]] == ["http_404", "http_404"]
    rest = shell("list", "archives.failed", "--after", page["after"])
    assert "http_404" in rest
    assert "more: " not in rest
    said = shell("inspect", gone["example"])
    assert "saved     read" in said
    assert "nothing at https://x.example/5" in said
    assert shell("list", "--code", "no_such_code") == "No dead documents of that kind.\n"


def test_requeueing_says_what_became_of_each(shell: Shell) -> None:
    group = shell.json("groups")["groups"][1]
    dry = shell("requeue", "--group", group["fingerprint"][:6], "--dry-run")
    assert dry.startswith(
        "a dry run: 3 dead documents would be requeued, each from where it died; nothing was changed\n"
    )
    answers = shell("requeue", group["example"], "nobody", "--reason", "try", status=1).splitlines()
    assert answers == [
        "nobody refused: no such document", f"{group['example']} requeued", "1 of 2 requeued, 1 refused",
    ]  # fmt: skip
    lines = shell("requeue", "--code", "http_404", "--rate", "600/m", "--json").splitlines()
    assert [json.loads(line).get("answer") for line in lines] == ["requeued", "requeued", None]
    assert json.loads(lines[-1])["requeued"] == 2
    said = shell("requeue", "parse.failed", "--yes", "--canary", "2", "--canary-wait", "0.5s", status=1)
    assert said.splitlines()[-1] == "2 of 12 requeued, canary of 2: 0 done, 2 not ended"
    assert "the other 10 are still dead" in shell.errors


def test_out_and_in_again(shell: Shell, tmp_path: Path) -> None:
    assert shell("export", "--output", "all.jsonl.gz") == "15 of 15 exported to all.jsonl.gz\n"
    with gzip.open("all.jsonl.gz", "rt") as file:
        assert len({json.loads(line)["id"] for line in file}) == 15
    piped = shell("export", "--code", "http_404").splitlines()
    assert len(piped) == 3
    assert "3 of 3 exported" in shell.errors
    said = shell("purge", "--code", "http_404", "--yes", "--output", "gone.jsonl").splitlines()
    assert said[-1] == "3 of 3 purged; 3 are in gone.jsonl"
    assert "would be purged" in shell("purge", "--all", "--dry-run")
    again = shell("import", "gone.jsonl")
    assert again.splitlines()[-1] == "3 of 3 lines imported"
    assert shell("import", "all.jsonl.gz").splitlines()[-1] == "0 of 15 lines imported, 15 there already"
    Path("bad.jsonl").write_text("{}\n")
    assert "line 1: refused: it is no line of an export" in shell("import", "bad.jsonl", status=1)
    facts = json.loads(shell("purge", "--all", "--no-export", "--confirm", "--json").splitlines()[-1])
    assert facts == {"found": 15, "exported": 0, "purged": 15, "refused": 0, "file": None}


def test_mistakes_change_nothing(shell: Shell) -> None:
    on = ("--store", shell.url)
    assert "would requeue 12 dead documents" in refused(
        2, "confirm_needed", "dead", "requeue", "--type", "TimeoutError", *on
    )
    refused(2, "input_invalid", "dead", "requeue", *on)
    refused(2, "confirm_needed", "dead", "purge", "--all", "--no-export", *on)
    assert perdure("dead", "nonsense").returncode == 2
    assert len(shell.json("list")["documents"]) == 15


def test_who_waits_for_canaries_is_told_for_whom_and_what_is_still_to_come(shell: Shell) -> None:
    shell("requeue", "--all", "--yes", "--canary", "1", "--canary-wait", "1s", status=1)
    assert (
        "waits up to 1.0 s for the canaries to end; no worker is running, start one: perdure worker"
        in shell.errors
    )

    ended = CliRunner().invoke(command, ["search", "absent", "--store", shell.url])
    assert "Nothing found." in ended.stdout
    assert "1 document not done yet" in ended.stderr
