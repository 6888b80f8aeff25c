"""Attempts and waits by collection hold in every pipeline, for remote stages too, unless somebody says otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure import Document, Pipeline, Transient
from perdure.pipelines.elsewhere import EVENTS, remote_pipelines
from perdure.service import AddOptions
from perdure.settings import Settings
from perdure.testing import Trial, drain, tick, trial
from tests.engine.test_remote import publish, waiting

LIMITS = {"archives": 3, "messages": 3, "chunks": 5, "threads": 5}
MINUTES = {3: [5, 10], 5: [5, 10, 20, 40]}


def own(**options: object) -> Pipeline:
    pipeline = Pipeline("own", **options)  # type: ignore[arg-type]

    @pipeline.stage
    def busy(doc: Document) -> str:
        raise Transient("busy")

    return pipeline


def waits(app: Trial, id_: str) -> list[float]:
    """In minutes."""
    return [one.delay_ms / 60_000 for one in app.attempts(id_) if one.delay_ms is not None]


@pytest.mark.parametrize("collection", LIMITS)
def test_a_pipeline_of_ones_own_is_as_patient_as_the_collection(collection: str, store_url: str) -> None:
    with trial(own(), store=store_url) as app:
        id_ = app.add(text="a", pipeline="own", collection=collection).id
        drain(app)
        assert (app.status(id_).state, len(app.attempts(id_))) == ("dead", LIMITS[collection])
        assert waits(app, id_) == MINUTES[LIMITS[collection]]


def test_another_collection_keeps_three_attempts_and_six_seconds(store_url: str) -> None:
    with trial(own(), store=store_url) as app:
        id_ = app.add(text="a", pipeline="own").id
        drain(app)
        assert [one.delay_ms for one in app.attempts(id_)] == [2_000, 4_000, None]


@pytest.mark.parametrize(
    ("pipeline", "document", "attempts"),
    [({"attempts": 2}, {}, 2), ({}, {"attempts": 4}, 4), ({"attempts": 2}, {"attempts": 4}, 4)],
)
def test_pipeline_and_document_may_say_otherwise(
    pipeline: dict[str, int], document: dict[str, int], attempts: int
) -> None:
    with trial(own(**pipeline)) as app:
        entry: AddOptions = {"text": "a", "collection": "threads"}
        if document:
            entry["attempts"] = document["attempts"]
        id_ = app.add(pipeline="own", **entry).id
        drain(app)
        assert len(app.attempts(id_)) == attempts


def test_a_stage_may_say_otherwise(store_url: str) -> None:
    made = Pipeline("own")

    @made.stage
    def read(doc: Document) -> str:
        if "read" in doc.text:
            raise Transient("busy")
        return doc.text

    @made.stage(attempts=2, backoff_s=7)
    def hasty(read: str) -> str:
        raise Transient("busy")

    with trial(made, store=store_url) as app:
        first, second = (
            app.add(text=text, pipeline="own", collection="threads").id for text in ("read", "go")
        )
        drain(app)
        assert waits(app, first) == MINUTES[LIMITS["threads"]]
        assert [one.delay_ms for one in app.attempts(second)] == [7_000, None]


def test_the_variables_reach_ones_own_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRY_JOB_MAX_ATTEMPTS_CHUNKS", "2")
    monkeypatch.setenv("RETRY_JOB_BASE_DELAY_SECONDS", "60")
    with trial(own(), settings=Settings()) as app:
        id_ = app.add(text="a", pipeline="own", collection="chunks").id
        drain(app)
        assert [one.delay_ms for one in app.attempts(id_)] == [60_000, None]


def test_a_requeued_document_has_the_attempts_of_its_collection(store_url: str) -> None:
    with trial(own(), store=store_url) as app:
        id_ = app.add(text="a", pipeline="own", collection="threads").id
        drain(app)
        requeues: list[Callable[[], object]] = [lambda: app.requeue(id_), lambda: app.requeue_dead([id_])]
        for again in requeues:
            again()
            drain(app)
        assert len(app.attempts(id_)) == 3 * LIMITS["threads"]


@pytest.mark.parametrize("collection", EVENTS)
def test_every_collection_has_its_event_ready(collection: str, store_url: str) -> None:
    """Nobody answers: as many events as the collection has attempts, then the event of the failure."""
    given = EVENTS[collection]
    with trial(remote_pipelines(), store=store_url) as app:
        id_ = app.add(text="a", pipeline=collection, collection=collection).id
        sent: list[str] = []
        while app.status(id_).state != "dead":
            drain(app)
            sent += [event.name for event in waiting(app)]
            (event,) = publish(app)
            assert (event["attempts_max"], event["collection"]) == (LIMITS[collection], collection)
            app.remote_fail(id_, event["token"], code="busy")
        sent += [event.name for event in waiting(app)]
        assert sent == [given.event] * LIMITS[collection] + [given.failed]
        assert waits(app, id_) == MINUTES[LIMITS[collection]]


def test_the_variables_reach_remote_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRY_JOB_MAX_ATTEMPTS_THREADS", "2")
    monkeypatch.setenv("RETRY_JOB_BASE_DELAY_SECONDS", "7")
    with trial(remote_pipelines(["threads"]), settings=Settings()) as app:
        id_ = app.add(text="a", pipeline="threads", collection="threads").id
        tick(app)
        (event,) = publish(app)
        assert event["attempts_max"] == 2
        app.remote_fail(id_, event["token"], code="busy")
        assert [one.delay_ms for one in app.attempts(id_)] == [7_000]
