"""A path is what it was where it was read: stage code that changes the directory moves no store, blob or archive."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.operate.retention import limits_of
from perdure.settings import Settings

LARGE = "x" * 200_000  # beyond what a row keeps
wanderers = Pipeline("wanderers")


@wanderers.stage
def leave(doc: Document) -> str:
    os.chdir(Path("elsewhere") if Path("elsewhere").is_dir() else Path.cwd())
    return doc.text + LARGE


@wanderers.stage(isolate=True)
def measure(doc: Document, leave: str) -> int:
    return len(leave)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that we are in, with another one in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


@pytest.mark.parametrize("blobs", [None, "large"], ids=["beside the store", "relative"])
def test_outputs_can_be_read_after_a_stage_changed_the_directory(home: Path, blobs: str | None) -> None:
    app = Perdure("sqlite:///perdure.db", pipelines=[wanderers], blobs=blobs, concurrency=1)
    with app:
        ids = [app.add(text=f"{n}", pipeline=wanderers).id for n in range(4)]
        assert app.run_until_idle().done == 4
    assert Path.cwd() == home / "elsewhere"
    with app:  # once more, from where the stage left us
        assert [app.output(id_, "leave") for id_ in ids] == [f"{n}{LARGE}" for n in range(4)]
        late = app.add(text="late", pipeline=wanderers).id
        assert app.run_until_idle().done == 1
    assert list((home / "elsewhere").iterdir()) == []
    os.chdir(home)
    with Perdure("sqlite:///perdure.db", pipelines=[wanderers], blobs=blobs) as again:
        assert [again.output(id_, "measure") for id_ in (*ids, late)] == [len(LARGE) + 1] * 4 + [
            len(LARGE) + 4
        ]


def test_settings_keep_the_directory_that_they_were_read_in(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_BLOBS", "large")
    monkeypatch.setenv("PERDURE_ARCHIVE", "old")
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    settings = Settings(dead_age_s=1)
    os.chdir("elsewhere")
    assert settings.store == f"sqlite:///{home}/perdure.db"
    assert (settings.blobs, limits_of(settings).archive) == (f"{home}/large", home / "old")
    assert Settings(blobs="s3://bucket/large", store="postgresql:///shop").blobs == "s3://bucket/large"


def test_a_file_is_found_where_its_caller_saw_it(home: Path) -> None:
    (home / "book.txt").write_text("Call me Ishmael." * 10_000)
    with Perdure("sqlite:///perdure.db", pipelines=[wanderers]) as app:
        id_ = app.add(path="book.txt", pipeline=wanderers).id
        assert app.run_until_idle().done == 1
        assert app.output(id_, "measure") == 160_000 + len(LARGE)
        assert app.status(id_).name == "book.txt"


@pytest.mark.parametrize("times", [1, 99], ids=["once", "always"])
def test_no_document_is_done_with_an_output_that_is_gone(tmp_path: Path, times: int) -> None:
    pipeline = Pipeline("losing", attempts=2, backoff_s=0)
    place = tmp_path / "large"
    ran: list[str] = []

    @pipeline.stage
    def make(doc: Document) -> str:
        ran.append("make")
        return LARGE

    @pipeline.stage
    def lose(doc: Document) -> None:  # what it does not read nobody would miss
        ran.append("lose")
        if ran.count("lose") <= times:
            for blob in place.glob("??/*"):
                blob.unlink()

    with Perdure(f"sqlite:///{tmp_path}/a.db", pipelines=[pipeline], blobs=str(place)) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        app.run_until_idle(wait=10)
        found = app.status(id_)
        if times == 1:
            assert (found.state, app.output(id_, "make")) == ("done", LARGE)
        else:
            assert (found.state, found.error_code) == ("dead", "output_lost")
    assert (
        ran == ["make", "lose", "lose", "make", "lose"] if times > 1 else ran[:3] == ["make", "lose", "lose"]
    )


def test_a_requeue_makes_an_output_again_that_is_gone(tmp_path: Path) -> None:
    pipeline, place = Pipeline("losing"), tmp_path / "large"

    @pipeline.stage
    def make(doc: Document) -> str:
        return LARGE

    @pipeline.stage
    def tell(doc: Document) -> None:
        pass

    with Perdure(f"sqlite:///{tmp_path}/a.db", pipelines=[pipeline], blobs=str(place)) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        app.run_until_idle()
        for blob in place.glob("??/*"):
            blob.unlink()
        assert app.requeue(id_) == "requeued"
        assert app.run_until_idle().done >= 0
        assert (app.status(id_).state, app.output(id_, "make")) == ("done", LARGE)


def test_settings_can_be_read_in_a_directory_that_was_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    os.chdir("elsewhere")
    (home / "elsewhere").rmdir()
    assert Settings(blobs="large").blobs == "large"
    with Perdure(f"sqlite:///{home}/a.db", pipelines=[wanderers]) as app:
        assert app.documents() is not None
