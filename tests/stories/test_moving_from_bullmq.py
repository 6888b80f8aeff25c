"""Moving from BullMQ: a queue of documents with job ids, exponential backoff, pollers and flows, in its own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure import Document, Gathered, Pipeline, Result, Transient
from perdure.core.model import job_key
from perdure.settings import Settings
from perdure.testing import drain, failing, recording, tick, trial
from tests.api.server import Server


def documents_queue(**options: Any) -> tuple[Pipeline, list[str]]:
    """`new Queue("document-processing", {attempts: 3, backoff: {type: "exponential", delay: 2000}})`."""
    queue, ran = Pipeline("document-processing", attempts=3, backoff_s=2.0, **options), []

    @queue.stage
    def process(doc: Document) -> int:
        ran.append(doc.text)
        return len(doc.text)

    return queue, ran


def test_three_attempts_two_and_four_seconds_apart_then_failed() -> None:
    queue, _ = documents_queue()
    with trial(queue) as app, failing(queue.stages[0], *[Transient("busy")] * 3) as runs:
        id_ = app.add(text="a", pipeline=queue).id
        assert drain(app).dead == 1
        assert runs.count == 3
        assert [attempt.delay_ms for attempt in app.attempts(id_)] == [2000, 4000, None]
        assert [one.id for one in app.documents(state="failed")] == [id_]


def test_the_id_of_a_job_is_that_of_its_document_and_an_add_is_never_ignored_in_silence() -> None:
    queue, ran = documents_queue()
    with trial(queue) as app:
        first = app.add(text="a", key="invoice-1", pipeline=queue)
        assert job_key(first.id) == f"doc-{first.id}"
        assert drain(app).done == 1
        assert app.add(text="a", key="invoice-1", pipeline=queue).answer == "unchanged"
        assert app.add(text="b", key="invoice-1", pipeline=queue).answer == "refreshed"
        drain(app)
        assert ran == ["a", "b"]


def test_a_document_that_waits_takes_no_slot() -> None:
    queue, ran = documents_queue()
    with trial(queue, concurrency=1) as app, failing(queue.stages[0], Transient("busy")):
        slow = app.add(text="slow", pipeline=queue).id
        assert tick(app) == 1
        assert app.status(slow).state == "waiting"
        quick = app.add(text="quick", pipeline=queue).id
        assert tick(app) == 1
        assert (app.status(quick).state, app.status(slow).state) == ("done", "waiting")
        assert ran == ["quick"]


def test_a_finished_document_is_skipped_and_a_dead_one_is_not() -> None:
    queue, ran = documents_queue()
    with trial(queue) as app:
        done = app.add(text="done", pipeline=queue).id
        cancelled = app.add(text="cancelled", delay_s=60, pipeline=queue).id
        app.cancel(cancelled)
        drain(app)
        with failing(queue.stages[0], *[Transient("busy")] * 3):
            dead = app.add(text="dead", pipeline=queue).id
            drain(app)
        assert app.add(text="done", pipeline=queue).answer == "exists"
        assert app.add(text="cancelled", pipeline=queue).answer == "exists"
        drain(app)
        assert ran == ["done"]
        assert app.requeue(dead) == "requeued"
        drain(app)
        assert ran == ["done", "dead"]
        assert app.status(done).state == app.status(dead).state == "done"


def test_completed_jobs_leave_the_queue_and_their_documents_stay() -> None:
    """`removeOnComplete: {age: 3600, count: 1000}`."""
    settings = Settings()
    assert (settings.retention_age_s, settings.retention_count) == (3600, 1000)
    queue, _ = documents_queue()
    with trial(queue) as app:
        id_ = app.add(text="a", pipeline=queue).id
        drain(app)
        app.clock.advance(3601)
        keep = app.service.retention
        assert app._call(app.service.store.prune(keep.age_ms, keep.count)) == 1
        assert app.status(id_).state == "done"
        assert [attempt.outcome for attempt in app.attempts(id_)] == ["done"]


def test_priority_delay_pause_and_a_limit_by_key() -> None:
    queue, ran = documents_queue(concurrency_key=lambda doc: doc.org)
    with trial(queue, concurrency=1) as app:
        app.pause("documents")
        app.add(text="later", delay_s=60, pipeline=queue)
        app.add(text="low", pipeline=queue)
        app.add(text="high", priority=10, pipeline=queue)
        assert tick(app) == 0
        app.resume("documents")
        app.limit("default", concurrency=1, new=True)
        drain(app)
        assert ran == ["high", "low", "later"]


def test_a_parent_waits_for_its_children() -> None:
    """A flow: the parent runs when the last child has ended."""
    pages, book = Pipeline("pages"), Pipeline("book")

    @pages.stage
    def read(doc: Document) -> int:
        return len(doc.text)

    @book.stage
    def split(doc: Document) -> Result[int]:
        words = doc.text.split()
        return Result(len(words), spawn=[pages.child(word, text=word) for word in words])

    @book.stage
    def bind(split: int, gathered: Gathered) -> int:
        return gathered.documents["pages"]["done"]

    with trial([book, pages]) as app:
        id_ = app.add(text="one two three", pipeline=book).id
        drain(app)
        assert app.output(id_, "bind") == 3


def test_events_of_a_queue_can_be_listened_to() -> None:
    queue, _ = documents_queue()
    with trial(queue) as app:
        events = recording(app)
        app.add(text="a", pipeline=queue)
        drain(app)
        assert {type(event).__name__ for event in events} >= {"AttemptStarted", "AttemptEnded"}


def test_a_poller_reads_the_fields_of_a_job(tmp_path: Path) -> None:
    queue, _ = documents_queue()
    with Server(f"sqlite:///{tmp_path}/p.db", pipelines=(queue,)) as server:
        client = server.client("acme")
        added = client.post("/v3/documents", json={"text": "hello", "pipeline": queue.name}).json()
        at_once = client.get(f"/v3/documents/{added['id']}").json()
        assert at_once["status"] == "queued"
        words = {"words": "bullmq"}
        assert client.get(f"/v3/documents/{added['id']}", params=words).json()["status"] == "waiting"
        server.run(server.service.run_until_idle())
        assert client.get(f"/v3/documents/{added['id']}", params=words).json()["status"] == "completed"
        found = client.get(f"/v3/documents/{added['id']}").json()
        assert {
            "status", "stage", "attempts_made", "last_attempt_at", "completed_stages", "last_heartbeat", "progress",
            "error",
        } <= found.keys()  # fmt: skip
        assert (found["status"], found["error"]) == ("done", None)
        assert [stage["stage"] for stage in found["completed_stages"]] == ["process"]
        assert found["progress"]["stages_done"] == 1
        listed = client.get("/v3/documents", params={"state": "completed"}).json()["documents"]
        assert [one["id"] for one in listed] == [added["id"]]
