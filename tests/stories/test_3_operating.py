"""Operating: look, pause, limit, cancel, run again."""

from __future__ import annotations

from perdure import Document, Pipeline, Transient
from perdure.testing import drain, failing, tick, trial


def letters_pipeline() -> tuple[Pipeline, list[str]]:
    letters, ran = Pipeline("letters", concurrency_key=lambda doc: doc.org), []

    @letters.stage
    def write(doc: Document) -> str:
        ran.append(f"write {doc.text}")
        return doc.text

    @letters.stage
    def send(doc: Document, write: str) -> str:
        ran.append(f"send {doc.text}")
        return write

    return letters, ran


def test_where_a_document_stands_can_be_read_at_any_time() -> None:
    letters, _ = letters_pipeline()
    with trial(letters) as app, failing(letters.stages[1], Transient("busy")):
        added = app.add(text="a", name="to Ada", pipeline=letters)
        assert app.status(added.id).state == "queued"
        tick(app)
        status = app.status(added.id)
        assert (status.state, status.stage, status.attempts_made) == ("waiting", "send", 1)
        drain(app)
        assert [d.name for d in app.documents(state="completed")] == ["to Ada"]  # other systems' words do


def test_a_paused_queue_waits_until_it_is_resumed() -> None:
    letters, ran = letters_pipeline()
    with trial(letters) as app:
        app.pause("documents")
        app.add(text="a", pipeline=letters)
        drain(app)
        assert ran == []
        app.resume("documents")
        drain(app)
        assert ran == ["write a", "send a"]


def test_a_limit_bounds_how_many_of_one_key_run_at_once() -> None:
    letters, _ = letters_pipeline()
    with trial(letters, concurrency=10) as app:
        app.limit("acme", concurrency=2, new=True)
        app.add_many([{"text": str(n), "org": "acme"} for n in range(4)], pipeline=letters)
        app.add_many([{"text": str(n), "org": "other"} for n in range(4)], pipeline=letters)
        assert tick(app) == 6
        assert tick(app) == 2


def test_a_cancelled_document_does_not_run() -> None:
    letters, ran = letters_pipeline()
    with trial(letters) as app:
        added = app.add(text="a", pipeline=letters)
        assert app.cancel(added.id, reason="sent by mistake") == "cancelled"
        drain(app)
        assert ran == []
        assert app.status(added.id).state == "cancelled"
        assert app.cancel(added.id).startswith("refused")


def test_a_finished_document_can_be_run_again_from_a_stage_on() -> None:
    letters, ran = letters_pipeline()
    with trial(letters) as app:
        added = app.add(text="a", pipeline=letters)
        drain(app)
        app.requeue(added.id, from_stage="send")
        drain(app)
        assert ran == ["write a", "send a", "send a"]


def test_better_code_runs_again_and_only_what_depends_on_it() -> None:
    letters, ran = letters_pipeline()
    with trial(letters) as app:
        added = app.add(text="a", pipeline=letters)
        drain(app)
        letters.stages[1].version = 2
        app.requeue(added.id)
        drain(app)
        assert ran == ["write a", "send a", "send a"]


def test_a_small_organisation_is_not_starved_by_a_large_one() -> None:
    letters, ran = letters_pipeline()
    with trial(letters, concurrency=1) as app:
        app.add_many([{"text": f"large {n}", "org": "large"} for n in range(50)], pipeline=letters)
        app.add(text="small", org="small", pipeline=letters)
        for _ in range(3):
            tick(app)
        assert "send small" in ran
