"""How the demo looks: every line fits into 80 columns, in any encoding, and says what it should."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any, cast

import pytest
from rich.console import Console

from perdure.demo.accounts import Account
from perdure.demo.findings import QUESTIONS, Answer, Link, Place
from perdure.demo.play import Kill, Play
from perdure.demo.report import Report, next_steps, written
from perdure.demo.shelf import BOOK, books
from perdure.demo.table import Signs, table
from perdure.demo.turnstile import Read
from perdure.demo.words import attempt_line, pages_named
from perdure.pipelines.extract import Summary
from perdure.store.records import Hit
from tests.doors.test_demo_accounts import ATTEMPT, DONE, WORKER


def drawn(*parts: Any, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    for part in parts:
        console.print(part)
    return cast(io.StringIO, console.file).getvalue().splitlines()


@pytest.fixture
def play() -> Play:
    """In the middle: the book is half-way, one waits, two are dead."""
    made = Play(cast(Any, None), cast(Any, None), cast(Any, None), "demo-1", books(), cast(Any, None))
    made.ids = {book.name: f"id-{book.name}" for book in made.books}
    made.statuses = {
        name: replace(DONE, id=id_, name=name, finished_ms=2_300) for name, id_ in made.ids.items()
    }
    made.attempts = {name: [ATTEMPT] for name in made.ids}
    made.pages = frozenset(range(1, 20))
    due_ms = int(time.time() * 1000) + 60_000

    def change(name: str, **values: Any) -> None:
        made.statuses[name] = replace(made.statuses[name], **values)

    change(BOOK, state="running", stage="extract")
    change("queues.html", state="waiting", stage="fetch", run_at_ms=due_ms, attempts_made=2)
    change("bomb.pdf", state="dead", stage="extract", error_code="crashed:memory_exceeded")
    change("torn.pdf", state="dead", stage="extract", error_code="document_corrupt")
    change("leases.md", state="queued", stage="fetch", attempts_made=0)
    made.attempts["queues.html"] = [replace(ATTEMPT, outcome="retry", error_code="http_503")]
    return made


def test_a_line_for_each_document_fits_into_80_columns(play: Play) -> None:
    lines = [" ".join(line.split()) for line in drawn(table(play, Signs()))]
    assert lines[0] == "document stage parts saved try state"
    assert lines[1] == f"{BOOK} ●◐○○○ extract ━━━━──── 19/38 1/3 running"
    assert lines[2].startswith("queues.html ○○○○○ fetch 2/3 again in ")
    assert lines[3] == "bomb.pdf ●✗○○○ extract 1/3 ✗ crashed:memory_exceeded"
    assert lines[4] == "three-journeys.epub ●●●●● 3/3 1/3 done after 2.3 s"
    assert "leases.md ○○○○○ fetch queued" in lines
    assert len(lines) == 1 + len(play.books)


def test_what_a_killed_worker_had_in_hand_shows_it_until_somebody_noticed(play: Play) -> None:
    play.kill = Kill(0.0, WORKER, (BOOK,), frozenset({1}))
    assert "its worker is gone" in drawn(table(play, Signs()))[1]
    play.attempts[BOOK] = [replace(ATTEMPT, outcome="later", error_code="worker_lost", charged=False)]
    assert "its worker is gone" not in drawn(table(play, Signs()))[1]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_poor_encoding_gets_signs_that_it_has(play: Play, encoding: str) -> None:
    "\n".join(drawn(table(play, Signs.for_encoding(encoding)))).encode(encoding)


@pytest.mark.parametrize(
    ("pages", "name"),
    [({1, 2, 3}, "pages 1-3"), ({4}, "page 4"), ({1, 3}, "2 pages"), (set(), "0 pages")],
)
def test_pages_are_named(pages: set[int], name: str) -> None:
    assert pages_named(pages) == name


@pytest.mark.parametrize(
    ("outcome", "code", "line"),
    [
        ("done", None, "a.txt: done, 1 ms after it came in"),
        ("retry", "http_503", "a.txt: index failed, attempt 1 of 3: http_503, busy; again in 2.0 s"),
        ("dead", "document_corrupt", "a.txt: dead at index, attempt 1 of 3: document_corrupt, busy"),
        ("later", "worker_lost", "a.txt: its worker died; given back, no attempt charged"),
        ("later", "asked", "a.txt: given back, no attempt charged (why)"),
    ],
)
def test_an_attempt_is_told_in_a_line(outcome: str, code: str | None, line: str) -> None:
    attempt = replace(ATTEMPT, outcome=outcome, error_code=code, message="busy", delay_ms=2_000, why="why")
    assert attempt_line(replace(DONE, name="a.txt"), attempt) == line


def test_the_report_says_what_was_not_kept(play: Play) -> None:
    play.kill = Kill(0.0, replace(WORKER, process=cast(Any, _Process())), (BOOK,), frozenset({1, 2}))
    play.reads = [Read(1, BOOK, 1), Read(1, BOOK, 2), Read(2, BOOK, 2)]
    hit = Hit("d", "c", 0.1, "A light\nthat turns", "page=5", 5, BOOK)
    report = Report(
        saves={name: [] for name in play.ids},
        summaries={"leases.md": Summary("Leases", (), 1_184, "en", 0, 4, 0)},
        answers=[Answer(QUESTIONS[0], hit, True), Answer(QUESTIONS[1], None, False)],
        links=[Link(Place("leases.md", "section=2"), Place(BOOK, "page=7"), 0.71)],
        accounts=[Account("nothing lost", True, "all there"), Account("all found", False, "one is not")],
    )
    assert not report.kept
    said = drawn(*written(play, report))
    assert "    things-that-last.pdf, page 5: A light that turns" in [line.rstrip() for line in said]
    assert any("nothing found" in line for line in said)
    assert any(line.rstrip().endswith("pages 1-2 of 38; read again: page 2") for line in said)
    assert any(
        " ".join(line.split()) == "0.71 leases.md, section 2 and things-that-last.pdf, page 7"
        for line in said
    )
    assert any(line.split()[:4] == ["NOT", "KEPT", "all", "found"] for line in said)
    assert all(len(line) <= 80 for line in said)


class _Process:
    pid = 4711


def test_what_to_try_next_names_the_real_store_but_no_password(play: Play) -> None:
    lines = next_steps(play, "postgresql://me:secret@host/db", True)
    assert "  export PERDURE_STORE='postgresql://me:***@host/db'" in lines
    assert "  perdure status id-bomb.pdf" in lines
    assert any(line.endswith("--org demo-1") for line in lines)
    assert len(next_steps(play, "sqlite:///x", False)) == 1
