"""Somebody moves here from a job that requeues stuck documents: its variables, collections, events, words and metrics.

Four collections are processed by other services, told by events. A failed attempt is repeated after 5, 10, 20, 40
minutes, at most 60; archives and messages have 3 attempts, chunks and threads 5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from perdure.pipelines.elsewhere import EVENTS, remote_pipelines
from perdure.settings import Settings
from perdure.testing import FakeClock, Trial, drain, trial
from tests.engine.test_remote import publish, waiting

HOUR_MS = 3_600_000
VARIABLES = {
    "RETRY_JOB_INTERVAL_SECONDS": "900",
    "RETRY_JOB_BASE_DELAY_SECONDS": "300",
    "RETRY_JOB_MAX_DELAY_SECONDS": "3600",
    "RETRY_JOB_STUCK_THRESHOLD_HOURS": "24",
    "RETRY_JOB_MAX_ATTEMPTS_ARCHIVES": "3",
    "RETRY_JOB_MAX_ATTEMPTS_MESSAGES": "3",
    "RETRY_JOB_MAX_ATTEMPTS_CHUNKS": "5",
    "RETRY_JOB_MAX_ATTEMPTS_THREADS": "5",
}
LIMITS = {"archives": 3, "messages": 3, "chunks": 5, "threads": 5}
TRIGGERS = {
    "archives": "ArchiveIngested",
    "messages": "JSONParsed",
    "chunks": "ChunksPrepared",
    "threads": "SummarizationRequested",
}
METRICS = {
    "retry_job_documents_requeued_total": "collection",
    "retry_job_documents_skipped_backoff_total": "collection",
    "retry_job_documents_max_retries_exceeded_total": "collection",
    "retry_job_runs_total": "status",
    "retry_job_errors_total": "error_type",
    "retry_job_stuck_documents": "collection",
    "retry_job_failed_documents": "collection",
    "retry_job_duration_seconds_bucket": "le",
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(store_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with trial(remote_pipelines(), store=store_url, clock=clock, settings=Settings()) as running:
        running.service.measure()
        yield running


def added(app: Trial) -> dict[str, str]:
    """One document of each collection, handed over to its service: collection → id."""
    ids = {name: app.add(text=name, pipeline=name, collection=name).id for name in LIMITS}
    drain(app)
    return ids


def numbers(app: Trial) -> dict[tuple[str, str], float]:
    """The metrics of the old job: (name, value of its label) → number."""
    text = app._call(app.service.measure().text()).decode()
    return {
        (sample.name, sample.labels.get(METRICS[sample.name], "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in METRICS
    }


def test_every_metric_is_there_from_the_start(app: Trial) -> None:
    found = numbers(app)
    assert {name for name, _ in found} == set(METRICS)
    for collection in LIMITS:
        assert found["retry_job_documents_requeued_total", collection] == 0
    for error in ("StoreBusy", "StoreUnavailable", "OSError", "other"):
        assert found["retry_job_errors_total", error] == 0
    assert [found["retry_job_runs_total", status] for status in ("success", "partial", "failure")] == [
        0,
        0,
        0,
    ]


def test_each_collection_is_started_by_its_event(app: Trial) -> None:
    ids = added(app)
    sent = {json.loads(event.payload)["document_id"]: event.name for event in waiting(app)}
    assert sent == {ids[name]: event for name, event in TRIGGERS.items()}
    for event in publish(app):
        assert event["attempts_max"] == LIMITS[event["collection"]]
        app.remote_finish(event["document_id"], event["token"], {"ok": True})
    drain(app)
    assert {one.state for one in app.documents()} == {"done"}
    assert len(app.documents(state="processed")) == 4


def test_documents_without_an_answer_are_stuck_after_a_day_and_skipped_while_the_broker_is_down(
    app: Trial, clock: FakeClock
) -> None:
    added(app)
    assert app.sweep().stuck == {}
    clock.advance(25 * 3_600)
    swept = app.sweep()
    assert swept.stuck == dict.fromkeys(LIMITS, 1)
    assert swept.skipped_backoff == dict.fromkeys(LIMITS, 1)
    found = numbers(app)
    for collection in LIMITS:
        assert found["retry_job_stuck_documents", collection] == 1
        assert found["retry_job_documents_skipped_backoff_total", collection] == 1
    assert found["retry_job_runs_total", "success"] >= 2
    assert found["retry_job_duration_seconds_bucket", "+Inf"] == found["retry_job_runs_total", "success"]


def test_failures_wait_and_are_dead_after_the_attempts_of_their_collection(
    app: Trial, tmp_path: Path
) -> None:
    ids = added(app)
    for _ in range(max(LIMITS.values())):
        for event in publish(app):
            if "token" in event:
                app.remote_fail(event["document_id"], event["token"], code="busy", message="not now")
        drain(app)
    for collection, id_ in ids.items():
        attempts = app.attempts(id_)
        assert (app.status(id_).state, len(attempts)) == ("dead", LIMITS[collection])
        minutes = [one.delay_ms / 60_000 for one in attempts if one.delay_ms is not None]
        assert minutes == [5, 10, 20, 40][: LIMITS[collection] - 1]
    found = numbers(app)
    for collection in LIMITS:
        assert found["retry_job_documents_max_retries_exceeded_total", collection] == 1
        assert found["retry_job_failed_documents", collection] == 1

    words = {
        "parsing.failed": "archives", "chunking.failed": "messages", "embedding.generation.failed": "chunks",
        "summarization.failed": "threads",
    }  # fmt: skip
    for word, collection in words.items():
        assert [one.id for one in app.dead(failed=word).documents] == [ids[collection]], word
        assert [one.id for one in app.dead(failed=f"{collection}.failed").documents] == [ids[collection]]
    file = tmp_path / "archives.jsonl"
    assert app.export(file, failed="archives.failed", reason="for the record").exported == 1
    assert json.loads(file.read_text().splitlines()[-1])
    again = app.requeue_dead(failed="parsing.failed", how={"reason": "the parser is back"})
    assert again.requeued == 1
    drain(app)
    assert EVENTS["archives"].event in [event.name for event in waiting(app)]
