"""What is kept of documents that have ended: all, unless a limit is set; dead ones are exported before they go."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from perdure import Document, Permanent, Pipeline
from perdure.errors import SettingInvalid
from perdure.operate import retention
from perdure.operate.retention import Retained
from perdure.testing import Trial, drain, trial

notes = Pipeline("notes")
DAY_S = 86_400


@notes.stage
def keep(doc: Document) -> str:
    if doc.text.startswith("bad"):
        raise Permanent("bad_note")
    return doc.text


def add(app: Trial, *texts: str) -> list[str]:
    """Documents that have ended, one second after another."""
    ids = []
    for text in texts:
        ids.append(app.add(text=text, pipeline=notes).id)
        drain(app)
        app.clock.advance(1)
    return ids


def states(app: Trial) -> list[str]:
    return sorted(status.state for status in app.documents())


def lines(told: Retained) -> list[str]:
    """The ids in the files, in the order in which they were written."""
    found = []
    for file in told.files:
        with gzip.open(file) as opened:
            found += [json.loads(line) for line in opened]
    return [line["id"] for line in found]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_ARCHIVE", str(tmp_path / "archive"))
    return tmp_path / "archive"


def test_by_default_everything_stays(store_url: str) -> None:
    with trial(notes, store=store_url) as app:
        add(app, "bad 1", "good")
        app.clock.advance(1_000 * DAY_S)
        assert app.retain() == Retained()
        assert states(app) == ["dead", "done"]


def test_dead_documents_go_by_age_into_a_file_that_brings_them_back(
    store_url: str, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DEAD_AGE_S", str(DAY_S))
    with trial(notes, store=store_url) as app:
        old = add(app, "bad 1", "bad 2")
        app.clock.advance(DAY_S)
        (new,) = add(app, "bad 3")
        add(app, "good")

        told = app.retain()

        assert (told.dead, told.done, told.kept, len(told.files)) == (2, 0, 0, 1)
        assert sorted(lines(told)) == sorted(old)
        assert Path(told.files[0]).parent == archive
        assert (states(app), app.status(new).state) == (["dead", "done"], "dead")
        assert app._call(app.service.store.counted("purged")) == 2
        act, *each = app.acts(verb="purge")
        assert (act.who, "2 purged" in act.target) == ("retention", True)
        assert sorted(one.target for one in each) == sorted(old)
        assert app.retain() == Retained(), "there is nothing more"
        assert app._call(app.service.import_(told.files[0])).imported == 2
        assert app.status(old[0]).error_code == "bad_note"


def test_dead_documents_go_by_number_the_oldest_first_some_at_a_time(
    store_url: str, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DEAD_COUNT", "2")
    monkeypatch.setattr(retention, "RUN_MAX", 2)
    with trial(notes, store=store_url) as app:
        ids = add(app, *(f"bad {n}" for n in range(7)))
        told = app.retain()
        assert (told.dead, len(told.files)) == (5, 3)
        assert sorted(lines(told)) == sorted(ids[:5])
        assert sorted(status.id for status in app.documents()) == sorted(ids[5:])


def test_done_documents_go_by_age_with_all_that_is_theirs(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DONE_AGE_S", "60")
    with trial(notes, store=store_url) as app:
        add(app, "good 1", "bad 1", "good 2")
        app.clock.advance(60)
        add(app, "good 3")
        assert app.retain() == Retained(done=2)
        assert states(app) == ["dead", "done"]
        left = app._call(app.service.store._rows("SELECT count(*) FROM attempt"))
        assert left == [(2,)]
        assert app.sweep().purged == 0


def test_without_an_archive_nothing_that_is_dead_may_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DEAD_COUNT", "100")
    with pytest.raises(SettingInvalid, match="PERDURE_ARCHIVE"), trial(notes):
        pass


def test_an_archive_that_cannot_be_written_is_told_and_nothing_is_deleted(
    store_url: str, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DEAD_COUNT", "0")
    archive.write_text("a file where the directory should be")
    with trial(notes, store=store_url) as app:
        add(app, "bad 1")
        swept = app.sweep()
        assert (swept.status, swept.purged, states(app)) == ("partial", 0, ["dead"])
        assert swept.problems[0].startswith("retention: FileExistsError")


def test_a_sweep_keeps_to_the_limits_too(
    store_url: str, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DEAD_COUNT", "0")
    with trial(notes, store=store_url) as app:
        add(app, "bad 1", "bad 2")
        swept = app.sweep()
        assert (swept.status, swept.purged, len(swept.archived)) == ("success", 2, 1)
        assert list(archive.iterdir()) == [Path(swept.archived[0])]
