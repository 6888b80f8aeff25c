"""What stages leave in the temporary directory goes with them, or with whoever comes after a killed process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from perdure import Document, Perdure, Permanent, Pipeline
from perdure.engine import rooms

messy = Pipeline("messy")


@messy.stage(isolate=True)
def litter(doc: Document) -> str:
    where = doc.path  # made for it, because its content is in its row
    Path(tempfile.mkdtemp()).joinpath("more").write_text("left")
    if doc.text == "crash":
        os.abort()
    if doc.text == "fail":
        raise Permanent("no")
    return str(where)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def test_a_cell_leaves_nothing_however_it_ends(temporary: Path, tmp_path: Path) -> None:
    with Perdure(f"sqlite:///{tmp_path / 'a.db'}", pipelines=[messy]) as app:
        ids = [app.add(text=text, pipeline=messy, attempts=1).id for text in ("fine", "fail", "crash")]
        summary = app.run_until_idle()
        assert (summary.done, summary.dead) == (1, 2)
        assert app.output(ids[0], "litter").startswith(str(temporary))
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_cleared_out(temporary: Path) -> None:
    code = "from perdure.engine import rooms; rooms.new_room(); print(rooms.prefix())"
    made = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)},
                          capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    (temporary / f"{made}file.pdf").write_text("left")
    ours, other = rooms.new_room(), temporary / "perdure-something-else"
    other.mkdir()
    assert len(list(temporary.iterdir())) == 4
    assert rooms.clear_out() == 2
    assert {path.name for path in temporary.iterdir()} == {ours.name, other.name}
