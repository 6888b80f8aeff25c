"""`perdure add`: what a user types, and what becomes of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from perdure.pipelines.document import documents
from perdure.testing import drain, trial
from tests.doors.command import COMMAND, environment, perdure, succeeded


def test_files_directories_and_urls_become_documents(tmp_path: Path) -> None:
    notes = tmp_path / "notes" / "deep"
    notes.mkdir(parents=True)
    (notes / "a.md").write_text("# One\n\nThe first note.")
    (notes / ".hidden").write_text("nobody's business")
    (tmp_path / "b.txt").write_text("The second note.")
    store = f"sqlite:///{tmp_path}/p.db"

    said = succeeded(
        "add", "notes", "b.txt", "https://example.com/x", "--store", store, cwd=tmp_path
    ).splitlines()

    assert [line.split()[0] for line in said] == ["added"] * 3
    assert [line.split()[2] for line in said] == ["notes/deep/a.md", "b.txt", "https://example.com/x"]
    again = succeeded("add", "b.txt", "--store", store, cwd=tmp_path)
    assert again.split()[:2] == ["exists", said[1].split()[1]]
    with trial(documents, store=store) as app:
        app.cancel(said[2].split()[1])
        assert drain(app).done == 2
        assert app.output(said[0].split()[1], "extract").summary.title == "One"


def test_what_is_refused_keeps_no_other_from_being_added(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("well")
    store = f"sqlite:///{tmp_path}/p.db"

    ended = perdure("add", "missing.pdf", "http://127.0.0.1/", "a.txt", "--store", store, cwd=tmp_path)

    assert ended.returncode == 2
    assert [line.rpartition("[")[2] for line in ended.stderr.splitlines()] == [
        "file_missing]",
        "address_forbidden]",
    ]
    assert ended.stdout.startswith("added ")


def test_standard_input_is_a_document(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    ended = subprocess.run(
        [*COMMAND, "add", "-", "--store", store], input=b"from a pipe", capture_output=True, env=environment(),
        check=True,
    )  # fmt: skip
    id_ = ended.stdout.split()[1].decode()
    with trial(documents, store=store) as app:
        assert drain(app).done == 1
        assert "from a pipe" in app.output(id_, "extract").markdown


def test_a_directory_that_holds_the_store_is_added_without_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("well")
    store = f"sqlite:///{tmp_path}/p.db"
    succeeded("migrate", "--store", store)

    assert succeeded("add", ".", "--store", store, cwd=tmp_path).split()[2:] == ["a.txt"]
