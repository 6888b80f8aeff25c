"""`perdure list`, `perdure show` and `perdure search`: which documents there are, and what is kept of one."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from perdure import Document, Pipeline, Result, Row
from perdure.cli import looking
from perdure.cli.drawing import plain, table
from perdure.core.model import ALIASES
from perdure.testing import drain, trial
from tests.doors.command import refused, succeeded

books = Pipeline("books")


@books.stage
def read(doc: Document) -> Result[dict[str, str]]:
    return Result(
        {"text": doc.text}, rows=[Row("words", n=n, data=w) for n, w in enumerate(doc.text.split())]
    )


@books.stage(needs=["ocr"])
def look(doc: Document) -> int:
    return 1


@pytest.fixture
def three_books(store_url: str) -> tuple[str, list[str]]:
    with trial(books, store=store_url) as app:
        app.hold("ocr", "no eyes")
        ids = [
            app.add(text=f"text {n}", name=name, pipeline=books, collection=collection, org=org).id
            for n, (name, collection, org) in enumerate(
                [("Dune.epub", "novels", "a"), ("50%_off.txt", "ads", "a"), ("dune 2.epub", "novels", "b")]
            )
        ]
        drain(app)
    return store_url, ids


def test_documents_are_listed_by_what_they_are(three_books: tuple[str, list[str]]) -> None:
    url, (first, second, third) = three_books
    with trial(books, store=url) as app:

        def found(**where: str) -> list[str]:
            return [one.id for one in app.documents(**where)]  # type: ignore[arg-type]

        assert found() == [third, second, first]
        assert found(collection="novels") == [third, first]
        assert found(collection="novels", org="a") == [first]
        assert found(name="dune") == [third, first]
        assert found(name="%_") == [second]
        assert found(name="!") == []
        assert found(pipeline="books", state="held") == [third, second, first]
        assert found(pipeline="films") == []
        assert found(state="pending") == [third, second, first]
        assert [found(state=word) for word in ALIASES if word != "pending"] == [[]] * (len(ALIASES) - 1)
    said = succeeded("list", "--name", "dune", "--limit", "1", "--store", url)
    assert said.splitlines()[1].split() == [third, "held", "look", "dune", "2.epub"]
    assert re.fullmatch(rf"more: --after \d+_{third}", said.splitlines()[2])
    rest = json.loads(succeeded("list", "--after", third, "--collection", "novels", "--json", "--store", url))
    assert ([one["id"] for one in rest["documents"]], rest["after"]) == ([first], None)


def test_a_line_in_a_pipe_is_a_document(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    name = "a name that is much longer than what is left of eighty columns.epub"
    with trial(books, store=url) as app:
        ids = [app.add(text=f"{n}", name=name, pipeline=books).id for n in range(2)]
    lines = succeeded("list", "--store", url).splitlines()[1:]
    assert [line.split()[0] for line in lines] == ids[::-1]
    assert all(line.endswith(name) for line in lines)


def test_no_terminal_is_too_narrow_for_an_id() -> None:
    out = Console(width=60, file=StringIO())
    shown = table("document", "name")
    shown.add_row("01a1e3ad-5c4f-75f4-860b-647d1b139321", "a name that is much longer than the rest")
    plain(out, shown)
    assert "01a1e3ad-5c4f-75f4-860b-647d1b139321" in out.file.getvalue()  # type: ignore[attr-defined]


def test_what_is_kept_of_a_document_is_shown(three_books: tuple[str, list[str]]) -> None:
    url, (first, *_) = three_books
    on = ("--store", url)
    kept = succeeded("show", first, *on)
    assert "stages saved  read" in kept
    assert "rows          words (2)" in kept
    assert json.loads(succeeded("show", first, "--stage", "read", *on))["output"] == {"text": "text 0"}
    assert json.loads(succeeded("show", first, "--rows", "words", *on))[1] == {"key": {"n": 1}, "data": "0"}


def test_mistakes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    with trial(books, store=url) as app:
        id_ = app.add(text="x", pipeline=books).id
    on = ("--store", url)
    assert succeeded("list", "--state", "dead", *on) == "No document is so.\n"
    refused(2, "state_unknown", "list", "--state", "odd", *on)
    refused(2, "input_invalid", "list", "--status", "failed", "--state", "done", *on)
    assert succeeded("list", "--status", "dead", "--state", "dead", *on) == "No document is so.\n"
    refused(2, "document_unknown", "show", "nobody", "--chunks", *on)
    refused(2, "not_saved", "show", id_, "--stage", "read", *on)
    refused(2, "input_invalid", "show", id_, "--chunks", "--connections", *on)


def test_chunks_and_the_score_of_what_is_found(tmp_path: Path) -> None:
    on = ("--store", f"sqlite:///{tmp_path}/p.db")
    succeeded(
        "add", "--text", "Whales sing in the sea.", "--work", *on, timeout=60, PERDURE_EMBEDDER="hashing"
    )
    said = succeeded("search", "whales", *on, PERDURE_EMBEDDER="hashing")
    assert "score 0." in said.splitlines()[0]
    id_ = said.splitlines()[-1].strip()
    (chunk,) = json.loads(succeeded("show", id_, "--chunks", *on))
    assert chunk["text"].endswith("Whales sing in the sea.")
    assert json.loads(succeeded("show", id_, "--connections", *on)) == []


def test_what_is_too_long_for_a_screen_is_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(looking, "SHOWN_MAX", 10)
    looking._show({"text": "x" * 100})
    assert json.loads(capsys.readouterr().out) == {"text": "x" * 100}

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    looking._show({"text": "x" * 100})
    shown = capsys.readouterr().out
    assert len(shown) < 100
    assert shown.endswith("more characters; --json prints all of it\n")


def test_states_times_words_and_short_ids_at_the_command_line(three_books: tuple[str, list[str]]) -> None:
    url, (first, second, third) = three_books

    def listed(*options: str) -> list[str]:
        said = json.loads(succeeded("list", "--json", "--store", url, *options))
        return [one["id"] for one in said["documents"]]

    assert listed("--status", "held") == listed("--state", "pending") == [third, second, first]
    assert listed("--created-after", "1h") == listed("--created-after", "-1h") == [third, second, first]
    assert listed("--created-before", "1h") == listed("--finished-after", "2020-01-01") == []
    for wrong in ("2030-13-01", "999999w"):
        assert refused(2, "time_invalid", "list", "--created-after", wrong, "--store", url)
    page = json.loads(succeeded("list", "--json", "--limit", "1", "--store", url))
    assert listed("--after", page["after"]) == listed("--after", third[:-3]) == [second, first]
    words = json.loads(succeeded("list", "--json", "--words", "bullmq", "--store", url))
    assert {one["state"] for one in words["documents"]} == {"delayed"}
    assert refused(2, "words_unknown", "list", "--words", "klingon", "--store", url)

    short = second[:-3]
    status = json.loads(succeeded("status", short, "--words", "images", "--json", "--store", url))
    assert (status["id"], status["state"]) == (second, "pending")
    assert json.loads(succeeded("show", short, "--json", "--store", url))["id"] == second
    assert json.loads(succeeded("why", short, "--json", "--store", url))["id"] == second
    for command in (("timeline",), ("show", "--rows", "words"), ("show", "--stage", "read")):
        assert succeeded(command[0], short, *command[1:], "--store", url)
    assert succeeded("cancel", short, "--store", url).strip().endswith("cancelled")
    with trial(books, store=url) as app:
        assert app.status(short).state == "cancelled"
        assert [a.outcome for a in app.attempts(short)] == [a.outcome for a in app.attempts(second)]
        assert app.rows(short, "words") == app.rows(second, "words") != []
        assert app.output(short, "read") == {"text": "text 1"}
        assert app.requeue(short) == "requeued"
        assert app.documents(state="failed", words="bullmq") == []
        assert [one.state for one in app.documents(org="b", words="images")] == ["pending"]
