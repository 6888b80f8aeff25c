"""The traceback of what a document died of is kept, without secrets, bounded, and shown."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure import Document, Pipeline, Result
from perdure.cli.main import app as command
from perdure.core.traces import TRACEBACK_MAX, traced
from perdure.errors import PipelineInvalid, RateLimited
from perdure.testing import drain, trial

PASSWORD = "postgresql://ann:s3cr3t@db.example/x"


def failing() -> Pipeline:
    made = Pipeline("books", attempts=1)

    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError as error:
            raise KeyError(f"no page at {PASSWORD}") from error

    @made.stage
    def read(doc: Document) -> Result[int]:
        if "deep" in doc.text:
            raise ValueError("x" * 100_000)
        if "sql" in doc.text:
            return Result(1, sql=[("INSERT INTO nowhere VALUES ($1)", (1,))])
        return Result(parse(doc.text))

    return made


def test_it_is_kept_with_its_causes_and_without_secrets(store_url: str) -> None:
    with trial(failing(), store=store_url) as app:
        id_ = app.add(text="seven", pipeline="books").id
        deep = app.add(text="deep", pipeline="books").id
        drain(app)
        shown = app.inspect(id_).traceback or ""
        assert "in parse" in shown
        assert "invalid literal for int()" in shown
        assert "The above exception was the direct cause" in shown
        assert "s3cr3t" not in shown
        assert len(app.inspect(deep).traceback or "") == TRACEBACK_MAX
        assert app.inspect(id_).advice.startswith("the code of the stage is at fault")


def test_only_what_it_died_of_is_kept(store_url: str) -> None:
    """An attempt that is given back, which may happen without end, costs a line of history and no more."""
    made, seen = Pipeline("books", attempts=2, backoff_s=0), itertools.count()

    @made.stage
    def read(doc: Document) -> None:
        raise (RateLimited("busy", delay_s=1, ours=True) if next(seen) == 0 else KeyError("page"))

    with trial(made, store=store_url) as app:
        id_ = app.add(text="seven", pipeline="books").id
        drain(app)
        rows = app._call(
            app.service.store._rows("SELECT outcome, traceback IS NOT NULL FROM attempt ORDER BY claim")
        )
        assert [(outcome, bool(kept)) for outcome, kept in rows] == [
            ("later", False),
            ("retry", False),
            ("dead", True),
        ]
        assert "in read" in (app.inspect(id_).traceback or "")


def test_a_statement_of_the_stage_that_is_refused_is_not_the_input(store_url: str) -> None:
    with trial(failing(), store=store_url) as app:
        id_ = app.add(text="sql", pipeline="books").id
        drain(app)
        found = app.inspect(id_)
        assert "nowhere" in found.document.message
        assert (found.action, "purge" in found.advice) == ("look", False)


def test_it_goes_with_an_export_and_comes_back(store_url: str, tmp_path: Path) -> None:
    with trial(failing(), store=store_url) as app:
        id_ = app.add(text="seven", pipeline="books").id
        drain(app)
        before = app.inspect(id_).traceback
        app.purge([id_], export=tmp_path / "dead.jsonl")
        app.import_(tmp_path / "dead.jsonl")
        assert app.inspect(id_).traceback == before


def test_the_command_shows_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with trial(failing(), store=url) as app:
        id_ = app.add(text="seven", pipeline="books").id
        drain(app)
    shown = CliRunner().invoke(command, ["dead", "inspect", id_, "--store", url]).output
    assert "Traceback" in shown
    assert "in parse" in shown
    assert "perdure dead inspect" not in shown
    assert '    raise KeyError(f"no page at {PASSWORD}") from error' in shown
    groups = CliRunner().invoke(command, ["dead", "groups", "--store", url]).output
    assert f"perdure dead inspect {id_}" in groups


@pytest.mark.parametrize("names", [("a.example", "www.b-c.test", "gone.invalid")])
def test_dead_domains_are_one_group(store_url: str, names: tuple[str, ...]) -> None:
    pages = Pipeline("pages", attempts=1)

    @pages.stage
    def fetch(doc: Document) -> int:
        raise OSError(f"the name {doc.text} cannot be resolved")

    with trial(pages, store=store_url) as app:
        for name in names:
            app.add(text=name, pipeline="pages")
        drain(app)
        assert [group.count for group in app.groups()] == [3]


def test_it_begins_with_the_authors_code_and_lines_are_whole(tmp_path: Path) -> None:
    made = Pipeline("books", attempts=1)

    @made.stage
    def read(doc: Document) -> int:
        return int("the author's own code, in a line that is longer than the sixty columns of the terminal")

    url = f"sqlite:///{tmp_path}/s.db"
    with trial(made, store=url) as app:
        id_ = app.add(text="seven", pipeline="books").id
        drain(app)
        kept = (app.inspect(id_).traceback or "").splitlines()
    assert kept[0] == "Traceback (most recent call last):"
    assert kept[1].endswith("in read")
    assert "test_tracebacks.py" in kept[1]
    shown = (
        CliRunner().invoke(command, ["dead", "inspect", id_, "--store", url], env={"COLUMNS": "60"}).output
    )
    for line in kept:
        assert f"  {line}".rstrip() in shown.splitlines()


def test_an_error_of_the_engine_keeps_its_frames() -> None:
    with pytest.raises(PipelineInvalid) as raised:
        Pipeline("books").stage(lambda: 1)
    raised.value.__traceback__ = raised.tb.tb_next  # without this test
    assert "pipeline.py" in (traced(raised.value) or "")
