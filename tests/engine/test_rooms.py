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


HOLDS = """
import sys
from perdure.engine import rooms
room = rooms.new_room()
(room / "file.pdf").write_text("left")
print(room, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_cleared_out_and_nothing_else(temporary: Path) -> None:
    """Who lives is told by locks: pids mean nothing to a process in another container."""
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        theirs = Path(owner.stdout.readline().strip())
        ours, other = rooms.new_room(), temporary / "perdure-something-else"
        other.mkdir()
        (temporary / f"{rooms.PREFIX}link").symlink_to(other)
        assert rooms.clear_out() == 0
        assert theirs.joinpath("file.pdf").exists()
        owner.kill()
    assert rooms.clear_out() == 1
    assert not theirs.exists()
    assert ours.exists()
    assert other.exists()
    rooms.remove(ours)
    assert not ours.exists()


def test_one_that_is_cleared_out_while_it_is_made_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tempfile.mkdtemp
    cleared: list[int] = []

    def meddled(prefix: str, dir: Path | None) -> str:
        room = made(prefix=prefix, dir=dir)
        if not cleared:
            cleared.append(rooms.clear_out())
        return room

    monkeypatch.setattr(tempfile, "mkdtemp", meddled)
    room = rooms.new_room()
    assert (cleared, room.exists()) == ([1], True)
    rooms.remove(room)
