"""Documents that were in hand when a worker died, and stages in processes of their own: only the guilty pay."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from perdure import Document, Pipeline
from perdure.store.base import Query, Steps
from perdure.store.operations import Claim
from perdure.testing import Trial, drain, failing, tick, trial
from tests.engine import suspects
from tests.engine.suspects import pids


def let_a_worker_die(app: Trial, documents: int) -> None:
    """A worker takes that many documents and dies; they are taken back."""
    store = app.service.store
    gone = app._call(store.register("worker", "gone", ["documents"]))
    assert len(app._call(store.claim(Claim(gone, ("documents",), 99, documents, 0)))) == documents
    app._call(store.driver.unlock("worker", gone))
    app.clock.advance(31)
    assert app._call(app.sweeper.sweep(app.clock.monotonic_s())).recovered == documents


def test_of_all_documents_of_a_dead_worker_only_the_guilty_one_is_charged(
    store_url: str, tmp_path: Path
) -> None:
    meta = {"notes": str(tmp_path)}
    with trial(suspects.letters, store=store_url, cells=True, concurrency=10) as app:
        texts = ["a", "crash", "b", "c"]
        ids = {text: app.add(text=text, meta=meta, pipeline=suspects.letters).id for text in texts}
        let_a_worker_die(app, 4)
        assert all(app.status(id_).suspect for id_ in ids.values())
        summary = drain(app)
        assert (summary.done, summary.dead) == (3, 1)
        for text in "abc":
            status = app.status(ids[text])
            assert (status.state, status.attempts_made, status.suspect) == ("done", 1, False)
        guilty = app.status(ids["crash"])
        assert (guilty.state, guilty.error_code) == ("dead", "crashed:SIGSEGV")
        assert [(a.outcome, a.charged) for a in app.attempts(guilty.id)] == [
            ("later", False),
            ("retry", True),
            ("dead", True),
        ]
        everywhere = pids(tmp_path, "read") + pids(tmp_path, "file")
        assert os.getpid() not in everywhere
        assert len(set(pids(tmp_path, "read"))) == 5  # each run had a process of its own


def test_a_document_that_was_cleared_runs_with_the_others_again(store_url: str, tmp_path: Path) -> None:
    with trial(suspects.letters, store=store_url, cells=True) as app:
        id_ = app.add(text="a", meta={"notes": str(tmp_path)}, pipeline=suspects.letters).id
        let_a_worker_die(app, 1)
        assert drain(app).done == 1
        app.requeue(id_, from_stage="file")
        assert drain(app).done == 1
        first, second = pids(tmp_path, "file")
        assert first != os.getpid()
        assert second == os.getpid()


def test_suspects_have_slots_of_their_own(store_url: str, tmp_path: Path) -> None:
    with trial(suspects.letters, store=store_url, cells=True, concurrency=1) as app:
        meta = {"notes": str(tmp_path)}
        app.add(text="a", meta=meta, pipeline=suspects.letters)
        let_a_worker_die(app, 1)
        app.add(text="b", meta=meta, pipeline=suspects.letters)
        assert tick(app) == 2


def test_an_isolated_stage_that_crashed_goes_on_after_its_last_item(store_url: str, tmp_path: Path) -> None:
    with trial(suspects.pages, store=store_url, cells=True) as app:
        id_ = app.add(text="a", meta={"notes": str(tmp_path)}, pipeline=suspects.pages).id
        assert drain(app).done == 1
        assert app.output(id_, "extract") == [10, 20, 30]
        assert [len(pids(tmp_path, f"page-{n}0")) for n in (1, 2, 3)] == [1, 2, 1]
        assert [(a.outcome, a.error_code) for a in app.attempts(id_)] == [
            ("retry", "crashed:SIGSEGV"),
            ("done", None),
        ]


def test_an_isolated_stage_that_cannot_read_what_it_needs_has_it_made_again(
    store_url: str, tmp_path: Path
) -> None:
    with trial(suspects.pages, store=store_url, cells=True) as app:
        id_ = app.add(text="a", meta={"notes": str(tmp_path)}, pipeline=suspects.pages).id
        drain(app)

        def spoil() -> Steps[Any]:
            yield Query("UPDATE saved SET inline = $1 WHERE stage = 'extract'", (b'"none"',))
            yield Query("DELETE FROM saved WHERE stage = 'total'")

        app._call(app.service.store.driver.write(spoil))
        app.requeue(id_)
        assert drain(app).done == 1
        assert (app.output(id_, "extract"), app.output(id_, "total")) == ([10, 20, 30], 60)


def test_a_crash_counts_against_the_attempts_of_its_stage(store_url: str, tmp_path: Path) -> None:
    with trial(suspects.once, store=store_url, cells=True) as app:
        id_ = app.add(text="a", meta={"notes": str(tmp_path)}, pipeline=suspects.once).id
        assert drain(app).dead == 1
        assert app.status(id_).error_code == "crashed:SIGSEGV"
        assert len(pids(tmp_path, "fall")) == 1


def test_a_suspect_whose_code_no_other_process_can_find_runs_here(store_url: str) -> None:
    local = Pipeline("local")
    seen: list[str] = []

    @local.stage
    def read(doc: Document) -> None:
        seen.append(doc.text)

    with trial(local, store=store_url, cells=True) as app:
        id_ = app.add(text="a", pipeline=local).id
        let_a_worker_die(app, 1)
        assert drain(app).done == 1
        assert app.status(id_).attempts_made == 1
        assert seen == ["a"]


def test_an_isolated_stage_that_no_other_process_can_find_says_what_to_do(store_url: str) -> None:
    local = Pipeline("local", attempts=1)

    @local.stage(isolate=True)
    def read(doc: Document) -> None: ...

    with trial(local, store=store_url, cells=True) as app:
        id_ = app.add(text="a", pipeline=local).id
        assert drain(app).dead == 1
        status = app.status(id_)
        assert status.error_code == "stage_absent"
        assert "at the top of its module" in (status.error_message or "")


def test_without_cells_everything_runs_in_the_tests_process(tmp_path: Path) -> None:
    with trial([suspects.letters, suspects.once]) as app, failing(suspects.once.stages[0], ValueError("x")):
        id_ = app.add(text="a", meta={"notes": str(tmp_path)}, pipeline=suspects.letters).id
        isolated = app.add(text="b", meta={"notes": str(tmp_path)}, pipeline=suspects.once).id
        let_a_worker_die(app, 2)
        drain(app)
        assert pids(tmp_path, "read") == [os.getpid()]
        assert app.status(id_).state == "done"
        assert app.status(isolated).error_message == "x"
