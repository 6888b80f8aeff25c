"""The stuck sweep: who is requeued, skipped or buried, what each variable changes, and what cannot stop it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from perdure import Document, Permanent, Pipeline
from perdure.core.events import DocumentDead, Events, StuckSwept
from perdure.core.token import new_token
from perdure.engine import stuck as module
from perdure.engine.stuck import StuckRun, StuckSweep
from perdure.engine.worker import Worker
from perdure.store.base import Query, Steps
from perdure.store.operations import Claim
from perdure.store.records import RetryJob
from perdure.testing import Trial, drain, failing, recording, tick, trial

books = Pipeline("books")
archives = Pipeline("archives", attempts=5, backoff_s=1)


@books.stage
def read(doc: Document) -> str:
    return doc.text


#: What the workers know while they do not know the books.
notes = Pipeline("notes")


@notes.stage
def keep(doc: Document) -> str:
    return doc.text


archives.remote_stage("parse", event="ArchiveIngested", done="JSONParsed", failed="ParseFailed", output=str)


def sweep(app: Trial) -> StuckRun:
    run = app._call(app.sweeper.stuck.run())
    assert run is not None
    return run


def told(app: Trial) -> RetryJob:
    return app._call(app.service.store.retry_job())


def execute(app: Trial, sql: str, *params: Any) -> None:
    """A change of the test's own."""

    def steps() -> Steps[None]:
        yield Query(sql, params)

    app._call(app.service.store.driver.write(steps))


def live(app: Trial, hours: float) -> None:
    """So many hours in which a worker lives and the leader looks every minute, without the looks between."""
    store = app.service.store
    worker = app._call(store.register("worker", "w", ["documents"]))
    app._call(store.attend())
    app.clock.advance(hours * 3600)
    execute(app, "UPDATE queue SET seen_ms = $1", app.clock.now_ms())
    execute(app, "UPDATE worker SET beat_ms = $1", app.clock.now_ms())
    app._call(store.attend())
    app._call(store.retire(worker))


@contextmanager
def forgotten(app: Trial, pipeline: Pipeline = books) -> Iterator[None]:
    """As long as this lasts no worker knows the pipeline, and all of them take its jobs nevertheless."""
    pipelines: Any = app.service.pipelines
    kept = pipelines.pop(pipeline.name)
    try:
        with mock.patch.object(Worker, "serves", None):
            yield
    finally:
        pipelines[pipeline.name] = kept


def put_aside(app: Trial, collection: str = "documents", count: int = 1) -> list[str]:
    """Documents that a worker put aside because it does not know their pipeline."""
    entries: Any = [{"text": f"{collection} {n}", "collection": collection} for n in range(count)]
    ids = [added.id for added in app.add_many(entries, pipeline=books)]
    with forgotten(app):
        while tick(app):
            pass
    return ids


def unanswered(app: Trial, collection: str = "archives") -> str:
    """A document at its remote stage whose event got lost on its way to the broker."""
    id_ = app.add(text=collection, pipeline=archives, collection=collection).id
    tick(app)
    execute(app, "DELETE FROM outbox")
    return id_


# --- what is done ----------------------------------------------------------------------------------


def test_a_stuck_document_is_counted_told_requeued_and_ends_well(store_url: str) -> None:
    with trial([books, notes], store=store_url) as app:
        events = recording(app)
        (id_,) = put_aside(app)
        live(app, 23)
        assert sweep(app).status == "success"
        assert told(app).stuck["documents"] == 0
        live(app, 2)

        run = sweep(app)

        assert (run.status, run.stuck, run.requeued) == ("success", {"documents": 1}, {"documents": 1})
        counts = told(app)
        assert (counts.stuck["documents"], counts.requeued["documents"], counts.runs["success"]) == (1, 1, 2)
        swept = events.of(StuckSwept)[-1]
        assert (swept.stuck, swept.requeued, swept.since_ms) == (
            {"documents": 1},
            {"documents": 1},
            counts.stuck_since_ms,
        )
        assert drain(app).done == 1
        assert sweep(app).stuck == {}
        assert told(app).stuck["documents"] == 0
        assert app.status(id_).attempts_made == 1


def test_it_is_requeued_again_only_when_its_backoff_is_over_and_never_buried_for_not_being_known(
    store_url: str,
) -> None:
    with trial([books, notes], store=store_url) as app:
        (id_,) = put_aside(app)
        live(app, 25)
        did = []
        for _ in range(12):
            run = sweep(app)
            did.append("r" if run.requeued else "s")
            with forgotten(app):
                tick(app)
            live(app, 0.1)
        # 6 minutes apart, with waits of 5, 10, 20, 40 … minutes
        assert "".join(did) == "rrsrsssrssss"
        assert told(app).requeued["documents"] == did.count("r")
        assert told(app).skipped_backoff["documents"] == did.count("s")
        assert app.status(id_).state == "waiting"
        assert drain(app).done == 1


def test_a_service_that_was_never_told_is_told_again_with_another_event_until_no_attempt_is_left(
    store_url: str,
) -> None:
    with trial(archives, store=store_url) as app:
        events = recording(app)
        id_ = unanswered(app)
        for attempt in (1, 2):
            live(app, 25)
            assert sweep(app).requeued == {"archives": 1}
            tick(app)
            (event,) = app._call(app.service.store.outbox(10))
            assert (event.name, json.loads(event.payload)["attempt"]) == ("ArchiveIngested", attempt + 1)
            execute(app, "DELETE FROM outbox")
        live(app, 25)

        run = sweep(app)

        assert (run.requeued, run.buried) == ({}, {"archives": 1})
        status, counts = app.status(id_), told(app)
        # the pipeline would allow five
        assert (status.state, status.error_code, status.attempts_made) == ("dead", "unanswered", 3)
        assert (counts.max_retries_exceeded["archives"], counts.requeued["archives"]) == (1, 2)
        assert (counts.failed["archives"], counts.exhausted["archives"]) == (1, 1)
        assert [e.name for e in app._call(app.service.store.outbox(10))] == ["ParseFailed"]
        assert events.of(DocumentDead)[0].collection == "archives"


def test_an_event_that_the_broker_did_not_take_yet_is_stuck_and_left_to_the_relay(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_ = app.add(text="a", pipeline=archives, collection="archives").id
        tick(app)
        live(app, 25)
        run = sweep(app)
        assert (run.stuck, run.skipped, run.requeued) == ({"archives": 1}, {"archives": 1}, {})
        assert app.status(id_).state == "running"


def test_a_document_without_an_attempt_left_is_buried_by_the_same_rules_as_any_other(store_url: str) -> None:
    loud = Pipeline("books", attempts=3)
    heard = []

    @loud.stage
    def read(doc: Document) -> str:
        raise ValueError("no")

    @loud.on_dead
    def tell(doc: Document) -> None:
        heard.append(doc.id)

    with trial(loud, store=store_url) as app:
        id_ = app.add(text="a", pipeline=loud, collection="threads").id
        for _ in range(2):
            tick(app)
            app.clock.advance(10)
        execute(app, "UPDATE job SET attempts = 3, state = 'waiting'")
        live(app, 25)

        assert sweep(app).buried == {"threads": 1}

        status = app.status(id_)
        assert (status.state, status.error_code, status.attempts_made) == ("dead", "stuck", 3)
        assert [(a.outcome, a.charged) for a in app.attempts(id_)][-1] == ("dead", False)
        assert told(app).max_retries_exceeded["threads"] == 1
        drain(app)
        assert heard == [id_]
        assert app.requeue(id_) == "requeued"
        assert told(app).exhausted["threads"] == 0


def test_who_dies_of_his_last_attempt_is_counted_whoever_buries_him(store_url: str) -> None:
    with trial([books, archives], store=store_url) as app:
        with failing(read, *[ValueError("no")] * 3, Permanent("bad_file")):
            app.add(text="a worker", pipeline=books, collection="messages")
            drain(app)
            app.add(text="not of attempts", pipeline=books, collection="messages")
            drain(app)
        app.add(text="b", pipeline=archives, collection="archives", attempts=1)
        tick(app)
        events = app._call(app.service.store.outbox(10))
        app._call(app.service.store.outbox_sent(events))
        app.clock.advance(3_600)
        tick(app)
        app.add(text="c", pipeline=archives, collection="threads", attempts=1)
        tick(app)
        event = json.loads(app._call(app.service.store.outbox(10))[-1].payload)
        app.remote_fail(event["document_id"], event["token"], code="no", retryable=True)
        counts = told(app)
        assert (counts.max_retries_exceeded["messages"], counts.failed["messages"]) == (1, 2)
        assert (counts.max_retries_exceeded["archives"], counts.max_retries_exceeded["threads"]) == (1, 1)


def test_a_sweep_tells_of_the_burials_that_are_counted(store_url: str) -> None:
    """A document that was given back too often dies, with attempts left."""
    with trial(books, store=store_url) as app:
        id_ = app.add(text="a", pipeline=books, collection="threads").id
        worker = app._call(app.service.store.register("worker", "w", ["documents"]))
        (claimed,) = app._call(app.service.store.claim(Claim(worker, ("documents",), new_token(), 1)))
        execute(app, "UPDATE job SET postpones = 1000, suspect = TRUE")
        app.clock.advance(25 * 3600)

        run = sweep(app)

        assert (claimed.job.document_id, sum(run.stuck.values())) == (id_, 1)
        assert app.status(id_).error_code == "postpones_exhausted"
        assert sum(run.buried.values()) == told(app).max_retries_exceeded["threads"] == 0
        assert sum(run.requeued.values()) == 0


def test_starved_documents_have_a_count_of_their_own_and_keep_their_place(store_url: str) -> None:
    with trial([books, notes], store=store_url) as app:
        app.add(text="a", pipeline=books, collection="messages")
        live(app, 25)
        run = sweep(app)
        assert (run.stuck, run.starved, run.requeued) == ({}, {"messages": 1}, {})
        assert told(app).starved["messages"] == 1


# --- what each variable changes --------------------------------------------------------------------


def test_the_threshold_decides_who_is_stuck(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRY_JOB_STUCK_THRESHOLD_HOURS", "2")
    with trial([books, notes], store=store_url) as app:
        put_aside(app)
        live(app, 1.5)
        assert sweep(app).stuck == {}
        live(app, 1)
        assert sweep(app).stuck == {"documents": 1}


@pytest.mark.parametrize(
    ("base", "cap", "did"), [("60", "3600", "rrrr"), ("700", "3600", "rsrs"), ("1600", "300", "rrrr")]
)
def test_base_and_longest_delay_decide_how_soon_it_is_tried_again(
    store_url: str, monkeypatch: pytest.MonkeyPatch, base: str, cap: str, did: str
) -> None:
    monkeypatch.setenv("RETRY_JOB_BASE_DELAY_SECONDS", base)
    monkeypatch.setenv("RETRY_JOB_MAX_DELAY_SECONDS", cap)
    with trial([books, notes], store=store_url) as app:
        put_aside(app)
        live(app, 25)
        found = ""
        for _ in did:
            found += "r" if sweep(app).requeued else "s"
            live(app, 600 / 3600)
        assert found == did


@pytest.mark.parametrize("collection", ["archives", "messages", "chunks", "threads"])
def test_the_attempts_of_a_collection_bound_what_the_sweep_tries(
    collection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"RETRY_JOB_MAX_ATTEMPTS_{collection.upper()}", "1")
    with trial(archives) as app:
        ids = {name: unanswered(app, name) for name in ("archives", "messages", "chunks", "threads")}
        live(app, 25)
        run = sweep(app)
        assert run.buried == {collection: 1}
        assert {name for name, id_ in ids.items() if app.status(id_).state == "dead"} == {collection}


def test_the_interval_decides_how_often_the_leader_looks(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRY_JOB_INTERVAL_SECONDS", "120")
    with trial([books, notes], store=store_url) as app:
        ran = []
        for _ in range(10):
            ran.append(app._call(app.sweeper.stuck.tick(app.clock.monotonic_s())) is not None)
            app.clock.advance(60)
        assert ran == [True, False] * 5
        assert told(app).runs["success"] == 5


def test_a_clock_that_was_ahead_and_is_put_right_stops_no_sweep(store_url: str) -> None:
    with trial([books, notes], store=store_url) as app:
        sweep(app)
        execute(app, "UPDATE retry_job SET value = value + 31536000000 WHERE label = 'ran_ms'")
        assert app._call(app.sweeper.stuck.tick(app.clock.monotonic_s())) is not None


# --- what cannot stop it ---------------------------------------------------------------------------


def test_an_audit_that_fails_keeps_nothing_from_being_pruned(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trial([books, notes], store=store_url) as app:
        app.add(text="a", pipeline=notes)
        drain(app)
        app.clock.advance(2 * 3600)

        async def broken() -> None:
            raise OSError("disk")

        monkeypatch.setattr(app.service.store, "look", broken)
        swept = app._call(app.sweeper.sweep(app.clock.monotonic_s()))
        assert (swept.pruned, swept.failed) == (1, ["look: OSError: disk"])


def test_a_row_that_cannot_be_read_stops_neither_sweep(store_url: str) -> None:
    with trial([books, notes], store=store_url) as app:
        bad, *good = put_aside(app, count=3)
        live(app, 25)
        execute(app, "UPDATE job SET policy = '{broken' WHERE document_id = $1", bad)

        run = sweep(app)

        assert (run.status, run.requeued, run.errors) == ("partial", {"documents": 2}, {"JSONDecodeError": 1})
        assert "cannot be read" in run.problems[0]
        counts = told(app)
        assert (counts.runs["partial"], counts.errors) == (1, {"JSONDecodeError": 1})

        execute(
            app,
            "UPDATE job SET state = 'running', token = id, worker = 99, claimed_ms = 1, lease_until_ms = $1",
            app.clock.now_ms() - 1_000,
        )
        swept = app._call(app.sweeper.sweep(0.0))
        assert swept.recovered == 2
        assert [where for where, _ in swept.problems] == [f"recover: job {run.problems[0].split()[1]}"]
        assert good


def test_a_row_that_cannot_be_read_does_not_keep_a_queue_from_its_workers(store_url: str) -> None:
    with trial([books, notes], store=store_url) as app:
        bad, good = (app.add(text=text, pipeline=books).id for text in ("bad", "good"))
        execute(app, "UPDATE job SET policy = '{broken' WHERE document_id = $1", bad)
        while tick(app):
            pass
        assert app.status(good).state == "done"
        app.clock.advance(60)
        swept = app._call(app.sweeper.sweep(0.0))
        assert [type(error).__name__ for _, error in swept.problems] == ["JSONDecodeError"]
        live(app, 25)
        assert sweep(app).status == "partial"


def test_a_write_that_is_refused_fails_alone(store_url: str) -> None:
    with trial([books, notes], store=store_url) as app:
        bad, *_ = put_aside(app, count=4)
        live(app, 25)
        broken = "UPDATE job SET queue = $1 WHERE document_id = $2"
        execute(app, broken, "other", bad)
        store = app.service.store
        real = store.requeue_stuck

        async def refusing(stuck: Any, skipped: Any) -> Any:
            if any(one.job.queue == "other" for one in stuck):
                raise ValueError("refused")
            return await real(stuck, skipped)

        store.requeue_stuck = refusing  # type: ignore[method-assign]
        run = sweep(app)
        assert (run.status, run.requeued, run.errors) == ("partial", {"documents": 3}, {"ValueError": 1})


def test_a_sweep_that_is_killed_is_finished_by_the_next_and_nothing_is_done_twice(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    with trial([books, notes], store=store_url) as app:
        put_aside(app, count=7)
        live(app, 25)
        store = app.service.store
        real, calls = store.requeue_stuck, []

        async def dying(stuck: Any, skipped: Any) -> Any:
            calls.append(len(stuck))
            if len(calls) == 3:
                raise asyncio.CancelledError
            return await real(stuck, skipped)

        store.requeue_stuck = dying  # type: ignore[method-assign]
        with pytest.raises(CancelledError):
            sweep(app)
        assert told(app).requeued["documents"] == 4
        assert told(app).runs == {"success": 0, "partial": 0, "failure": 0}

        run = sweep(app)

        assert (run.requeued, run.skipped) == ({"documents": 3}, {"documents": 4})
        assert told(app).requeued["documents"] == 7


def test_of_two_sweeps_at_once_each_document_is_handled_by_one(store_url: str) -> None:
    with (
        trial([books, notes], store=store_url) as app,
        trial([books, notes], store=store_url, clock=app.clock) as other,
    ):
        put_aside(app, count=20)
        live(app, 25)
        assert app._call(app.service.store.lead_stuck())
        second = StuckSweep(app.service.store, Events(), app.service.stuck_policy)
        assert other._call(other.sweeper.stuck.run()) is None, "one at a time"

        async def both() -> list[StuckRun]:
            # as if the one with the lock stood still and another went ahead
            return await asyncio.gather(
                *(one._run(lambda _: None, ()) for one in (app.sweeper.stuck, second))
            )

        runs = app._call(both())
        assert sum(run.requeued["documents"] for run in runs) == 20
        assert told(app).requeued["documents"] == 20


def test_who_has_the_lock_and_does_not_sweep_for_long_is_not_waited_for(store_url: str) -> None:
    with (
        trial([books, notes], store=store_url) as app,
        trial([books, notes], store=store_url, clock=app.clock) as other,
    ):
        put_aside(app)
        live(app, 25)
        assert sweep(app).status == "success"
        assert app._call(app.service.store.lead_stuck())
        assert other._call(other.sweeper.stuck.run()) is None
        app.clock.advance(4 * 900)
        assert other._call(other.sweeper.stuck.run()) is not None
