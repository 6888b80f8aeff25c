"""A store that this user can read and not write: it can be looked at, and whatever would change it says why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.engine.cell import prctl
from tests.doors.command import COMMAND, environment

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
LIBRARY = """
import sys
from perdure import Document, Perdure, Pipeline
books = Pipeline("books")

@books.stage
def read(doc: Document) -> int:
    return len(doc.text)

with Perdure(sys.argv[1], pipelines=[books]) as app:
    print(len(app.documents()))
    app.add(text="another", pipeline=books)
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory with a store, all of it without the right to write."""
    made = Path(tempfile.mkdtemp(prefix="perdure-look-"))
    books = Pipeline("books")

    @books.stage
    def read(doc: Document) -> int:
        return len(doc.text)

    with Perdure(f"sqlite:///{made}/perdure.db", pipelines=[books]) as app:
        app.add(text="a", name="first", pipeline=books)
        app.run_until_idle()
    (made / "nothing").mkdir()
    for path in (made, *made.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield made
    for path in (made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(made)


def obey_modes() -> None:
    """Root may write anything; without this capability its programs may not."""
    if os.geteuid() == 0:
        prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)


def run(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=place, env=environment(), capture_output=True, text=True, timeout=500, check=False,
        preexec_fn=obey_modes,
    )  # fmt: skip


def id_of(place: Path) -> str:
    return run(place, *COMMAND, "list").stdout.splitlines()[1].split()[0]


def test_it_can_be_looked_at(place: Path) -> None:
    id_ = id_of(place)
    for command, said in (
        (("status",), f"Store: sqlite:///{place}/perdure.db"),
        (("list",), "first"),
        (("show", id_), id_),
        (("why", id_), "done"),
        (("timeline", id_), "done"),
        (("content", id_), "a"),
        (("events",), "document.done"),
        (("metrics",), "perdure_documents"),
        (("dead", "list"), "No dead documents"),
    ):
        ended = run(place, *COMMAND, *command)
        assert (ended.returncode, said in ended.stdout) == (0, True), ended.stdout + ended.stderr
    assert sorted(path.name for path in place.iterdir()) == ["nothing", "perdure.db", "perdure.db.d"]


@pytest.mark.parametrize(
    "command",
    [
        ("add", "--text", "b"),
        ("pause", "documents"),
        ("cancel", "ID"),
        ("sweep", "--once"),
        ("dead", "export"),
        ("audit",),
        ("migrate",),
        ("serve", "--port", "0"),
    ],
)
def test_a_command_that_would_change_it_says_why_not(command: tuple[str, ...], place: Path) -> None:
    ended = run(place, *COMMAND, *(id_of(place) if part == "ID" else part for part in command))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].endswith("[store_read_only]")
    assert "run the command as the owner of the files" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_program_looks_and_is_refused_with_the_same_words(place: Path) -> None:
    ended = run(place, sys.executable, "-c", LIBRARY, f"sqlite:///{place}/perdure.db")
    assert (ended.returncode, ended.stdout) == (1, "1\n")
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("perdure.errors.StoreReadOnly: this user can read ")


def test_a_directory_that_cannot_be_written_is_named(place: Path) -> None:
    ended = run(place / "nothing", *COMMAND, "add", "--text", "b")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"cannot open {place}/nothing/perdure.db.d: Permission denied" in ended.stderr
    assert ended.stderr.endswith("[store_unavailable]\n")


@pytest.mark.parametrize("mode", [0o555, 0o000], ids=oct)
@pytest.mark.parametrize("part", ["", "locks"], ids=["directory", "locks"])
def test_a_store_of_which_only_the_directory_beside_it_cannot_be_written(
    mode: int, part: str, tmp_path: Path
) -> None:
    books = Pipeline("books")

    @books.stage
    def read(doc: Document) -> int:
        return len(doc.text)

    with Perdure(f"sqlite:///{tmp_path}/perdure.db", pipelines=[books]) as app:
        app.add(text="a", name="first", pipeline=books)
    closed = tmp_path / "perdure.db.d" / part
    before = closed.stat().st_mode
    closed.chmod(mode)
    try:
        looked = [run(tmp_path, *COMMAND, command) for command in ("status", "list")]
        ended = run(tmp_path, *COMMAND, "add", "--text", "b")
    finally:
        closed.chmod(before)
    assert [one.returncode for one in looked] == [0, 0], looked
    assert "first" in looked[1].stdout
    assert ended.returncode == 1
    assert f"({closed} is not writable)" in ended.stderr
    assert ended.stderr.endswith("[store_read_only]\n")
