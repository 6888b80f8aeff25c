"""`why` as a table: a situation, and the one sentence that is said of it; and with real stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perdure import Document, Permanent, Pipeline, Result, Transient
from perdure.core.handover import Handover
from perdure.core.model import GATHERING_MS
from perdure.core.pace import Pace
from perdure.core.token import new_token
from perdure.errors import DocumentUnknown
from perdure.operate.advice import Action, Advice
from perdure.operate.situation import Situation
from perdure.operate.why import explain
from perdure.store.base import BREAKER, Query
from perdure.store.inspecting import ChildRecord, JobRecord, PendingEvent
from perdure.store.operations import Claim
from perdure.store.records import Act, Attempt, DependencyRecord, LimitRecord, Status, WorkerRecord
from perdure.testing import drain, failing, tick, trial

NOW = 1_800_000_000_000  # 2027-01-15 08:00:00Z
ID = "d1"
STATUS = Status(
    ID, "acme", "documents", "books", "dune.epub", "queued", "embed", 1, 1, 3, 1, False, False, None, None,
    NOW - 60_000, None, None, None,
)  # fmt: skip
JOB = JobRecord(
    7, f"doc-{ID}", "books", "documents", "", "embed", "queued", False, 0, 1.0, NOW - 60_000, None, None, None, None,
    None, 1, 1, 3, 1, 0, 0, None, None, None, NOW - 60_000, None,
)  # fmt: skip
FAILED = Attempt(
    ID, f"doc-{ID}", 1, 1, 1, True, "embed", 3, NOW - 9_000, NOW - 5_000, "retry", "Transient", "transient", 503,
    "the line\nis busy", "f", 8_000, "backoff after attempt 1 of 3",
)  # fmt: skip
WORKER = WorkerRecord(3, "worker", "host:12", ("documents",), NOW - 99_000, NOW - 1_000, 1, 0)
HERE = Situation(NOW, STATUS, JOB, serving=(WORKER,))
RUNNING = replace(
    JOB, state="running", worker=3, claimed_ms=NOW - 250_000, lease_until_ms=NOW + 9_000, beat_ms=NOW - 2_000
)
OPENAI = DependencyRecord("openai", "down", NOW - 780_000, "connection refused", BREAKER, 41, NOW + 20_000)
PAUSE = Act(1, NOW - 7_200_000, "ann", "pause", None, "documents", "disk full")
CANCEL = Act(2, NOW - 3_000, "ann", "cancel", "acme", ID, "not wanted")
HANDED = Handover(
    "embed", "ChunksPrepared", "EmbeddingsGenerated", "EmbeddingFailed", "chunks", 1, "h", 60_000, 3, 1
)
REMOTE = replace(RUNNING, worker=0, remote=HANDED.to_text())
FOLLOWER = replace(JOB, id=8, key=f"doc-{ID}/detect_connections", state="dead", finished_ms=NOW)


def said(state: str, known: Situation = HERE, *, job: JobRecord | None = JOB, **more: Any) -> str:
    """What is said of it. What belongs to the status is told apart by name."""
    of_status = {name: more.pop(name) for name in list(more) if hasattr(STATUS, name) and name != "attempts"}
    status = replace(STATUS, state=state, **of_status)
    return explain(replace(known, status=status, job=job, **more)).sentence


SILENT = replace(WORKER, silent_since_ms=NOW - 40_000)


def test_a_worker_that_does_not_answer_is_not_at_work() -> None:
    running = said("running", job=RUNNING, worker=SILENT)
    assert "but that worker has not answered for 40 s" in running
    assert "it is at work" not in running
    assert "is at work" in said("running", job=RUNNING, worker=WORKER)

    queued = said("queued", serving=(SILENT,))
    assert "because worker 3 (host:12) of queue documents has not answered for 40 s" in queued
    both = (replace(SILENT, id=4, silent_since_ms=NOW - 20_000), SILENT)
    assert "of queue documents have not answered for 40 s" in said("queued", serving=both)
    assert "not answered" not in said("queued", serving=(SILENT, WORKER))


def test_queued() -> None:
    assert said("queued") == (
        "It is next in queue documents after 1.0 min and begins as soon as a slot is free."
    )
    assert said("queued", ahead=12) == (
        "It has waited for 1.0 min in queue documents: 12 are before it and 1 worker serves the queue; it begins by "
        "itself."
    )
    assert "more than 9,999 are before it" in said("queued", ahead=10_000)
    assert said("queued", paused=PAUSE) == (
        "It has waited for 1.0 min because ann paused queue documents (disk full) 2.0 h ago: press "
        "`perdure resume documents`."
    )
    assert said("queued", serving=()) == (
        "It has waited for 1.0 min because no worker serves queue documents: press `perdure worker`."
    )
    assert "alone because a worker died or stood still with it in hand" in said(
        "queued", job=replace(JOB, suspect=True)
    )
    assert "finds out whether ocr is back" in said("queued", job=replace(JOB, probe="ocr"))
    assert said("queued", job=None) == "It is in no queue although it has not ended: press `perdure audit`."


def test_over_a_limit() -> None:
    parked = replace(JOB, state="parked", limit_key="slow.example")
    limit = LimitRecord("slow.example", 2, None, 2, 5)
    assert said("queued", job=parked, limit=limit) == (
        "It has waited for 1.0 min for room under the limit of slow.example (2 of 2 are let in, 5 wait); it goes on by "
        "itself, or sooner with `perdure limit slow.example --concurrency N`."
    )
    assert "0.5 may start per second" in said("queued", job=parked, limit=replace(limit, rate_per_s=0.5))
    assert "let in within seconds" in said("queued", job=parked)


def test_running() -> None:
    assert said("running", job=RUNNING, worker=WORKER, items=120) == (
        "It has run stage embed for 4.2 min in worker 3 (host:12), attempt 1 of 3: 120 items saved, last beat 2.0 s "
        "ago; it is at work, there is nothing to do."
    )
    progressed = replace(RUNNING, progress_ms=NOW - 4_000)
    assert "for 4.0 s in worker 3" in said("running", job=progressed, worker=WORKER)
    within = said("running", job=progressed, worker=WORKER, items=120)
    assert within.startswith(
        "It runs stage embed, claimed 4.2 min ago, in worker 3 (host:12), attempt 1 of 3: 120 items"
    )
    lost = said("running", job=RUNNING, worker=WORKER, worker_gone=True)
    assert lost.endswith("but that worker is gone; another takes it back within seconds.")
    alone = said("running", job=RUNNING, worker=WORKER, worker_gone=True, serving=())
    assert alone.endswith("there is no other to take it back: press `perdure worker`.")
    frozen = replace(RUNNING, lease_until_ms=NOW - 60_000)
    assert "does not renew its lease" in said("running", job=frozen, worker=WORKER)
    assert "it runs alone" in said("running", job=replace(RUNNING, suspect=True), worker=WORKER)


def test_in_another_service() -> None:
    assert said("running", job=REMOTE, remote=True) == (
        "It has waited for 4.2 min for another service at stage embed: ChunksPrepared is published, "
        "EmbeddingsGenerated has not come; without an answer in 9.0 s attempt 2 begins."
    )
    assert "it fails for good" in said("running", job=replace(REMOTE, attempts=3), remote=True)
    event = PendingEvent("ChunksPrepared", NOW - 60_000, 3, "connection refused", True)
    told = said("running", job=replace(REMOTE, lease_until_ms=None), remote=True, events=(event,))
    assert "event ChunksPrepared is not published yet; tried 3 times (connection refused)" in told


def test_waiting() -> None:
    waits = replace(JOB, state="waiting", run_at_ms=NOW + 3_000)
    due: dict[str, Any] = {"job": waits, "run_at_ms": NOW + 3_000}
    assert said("waiting", attempts=(FAILED,), **due) == (
        "It has waited for 5.0 s because attempt 1 of 3 failed at stage embed with transient (the line is busy) "
        "(HTTP 503); attempt 2 begins in 3.0 s (08:00:03Z)."
    )
    later = replace(FAILED, outcome="later", error_code="rate_limited", why="asked to wait: rate_limited")
    told = said("waiting", attempts=(later,), **due)
    assert (
        "at stage embed: it was asked to wait, rate_limited (the line is busy) (HTTP 503); it goes on" in told
    )
    by = said("waiting", attempts=(replace(later, requests={"openai": 1}),), **due)
    assert "it was asked to wait by openai, rate_limited" in by
    away = replace(later, error_code="store_busy", why="the store was away")
    assert "the store was away, store_busy (the line is busy)" in said("waiting", attempts=(away,), **due)
    told_when = replace(FAILED, why="backoff after attempt 1 of 3, asked to wait", requests={"openai": 2})
    asked = said("waiting", attempts=(told_when,), **due)
    assert asked.endswith("attempt 2 begins in 3.0 s (08:00:03Z), as it was asked to by openai.")
    assert told.endswith("it goes on in 3.0 s (08:00:03Z) and no attempt was used.")
    assert said("waiting", **due) == "It is scheduled and begins in 3.0 s (08:00:03Z)."
    requeued = Act(3, NOW - 9_000, "ann", "requeue", "acme", ID, "when it is quiet")
    told = said("waiting", acts=(requeued,), generation=2, **due)
    assert told == "It is scheduled by ann (when it is quiet) and begins in 3.0 s (08:00:03Z)."
    neglected = said("waiting", job=waits, run_at_ms=NOW - 60_000, serving=())
    assert (
        neglected
        == "It has been due for 1.0 min and no worker is there to take it up: press `perdure worker`."
    )
    assert "ann paused queue documents" in said("waiting", paused=PAUSE, **due)


def test_waiting_for_what_it_spawned() -> None:
    gathering = replace(JOB, state="waiting", run_at_ms=GATHERING_MS)
    children = tuple(
        ChildRecord("message", s, n, NOW, NOW, None) for s, n in (("done", 57), ("dead", 1), ("open", 3))
    )
    follower = replace(FOLLOWER, state="queued", finished_ms=None)
    assert said("waiting", job=gathering, children=children).startswith(
        "It has waited for 1.0 min for what it spawned: 3 of 61 documents have not ended (1 died); then it goes on by "
        "itself"
    )
    assert "1 follow-up job has not ended" in said("waiting", job=gathering, followers=(follower,))


def test_no_worker_knows_its_pipeline() -> None:
    why = "no pipeline 'books' in this worker (it has mail)"
    aside = replace(FAILED, outcome="hold", why=why, error_code=None, charged=False)
    job = replace(JOB, state="waiting", holds=2, run_at_ms=NOW + 4_000)
    assert said("waiting", job=job, attempts=(aside,), run_at_ms=NOW + 4_000) == (
        f"It has waited for 5.0 s because no worker that took it could run it ({why}); it is offered again in 4.0 s: "
        "start one whose app has pipeline books: press `perdure worker MODULE:APP`."
    )


def test_a_worker_with_an_invalid_setting_is_not_the_fault_of_the_document() -> None:
    why = "OPENAI_RETRY_MAX is 'x'; it must be a whole number, 0 or more"
    aside = replace(FAILED, outcome="hold", why=why, error_code="setting_invalid", charged=False)
    job = replace(JOB, state="waiting", holds=2, run_at_ms=NOW + 4_000)
    told = said("waiting", job=job, attempts=(aside,), run_at_ms=NOW + 4_000)
    assert f"({why}); it is offered again in 4.0 s and no attempt was used: correct that setting" in told


def test_held() -> None:
    job = replace(JOB, lane="openai")
    assert said("held", job=job, down=(OPENAI,)) == (
        "It has been held for 1.0 min because stage embed needs openai, which has been down for 13 min (connection "
        "refused): 41 documents wait; the next probe is in 20 s and, if it succeeds, they go on by themselves; "
        "`perdure release openai` lets them go now."
    )
    by_hand = replace(OPENAI, held_by="ann", reason="maintenance", held=1)
    assert said("held", job=job, down=(by_hand,)) == (
        "It has been held for 1.0 min because stage embed needs openai, which ann has held for 13 min (maintenance): "
        "1 document waits until somebody releases it: press `perdure release openai`."
    )
    missing = replace(OPENAI, held_by="configuration", reason="PERDURE_VISION_URL is not set")
    told = said("held", job=job, down=(missing,))
    assert "which no worker is configured for (PERDURE_VISION_URL is not set)" in told
    ramping = replace(OPENAI, state="ramping", ramp_per_s=3.0)
    assert "which is back after 13 min: documents go on at 3 per second" in said(
        "held", job=job, down=(ramping,)
    )
    both = said("held", job=job, down=(OPENAI, replace(by_hand, name="ocr")))
    assert "needs ocr (and openai), which ann has held" in both
    assert "just coming back" in said("held", job=job)


def test_done() -> None:
    assert said("done", finished_ms=NOW - 180_000) == "It is done, 3.0 min ago."
    tried = (FAILED, replace(FAILED, claim=2, attempt=2, outcome="done"))
    assert said("done", finished_ms=NOW - 1_000, attempts=tried) == "It is done after 2 attempts, 1.0 s ago."
    degraded = said("done", finished_ms=NOW - 1_000, degraded=True)
    assert degraded.endswith("nothing repairs it by itself: press `perdure requeue d1`.")
    repair = replace(JOB, key=f"doc-{ID}/repair-describe", state="waiting", run_at_ms=NOW + 60_000)
    told = said("done", finished_ms=NOW - 1_000, degraded=True, followers=(repair,))
    assert told == (
        "It is done, 1.0 s ago, but degraded: a fallback stands in until its repair succeeds; its follow-up job "
        "repair-describe is waiting and goes on in 1.0 min."
    )
    held = replace(repair, state="queued", lane="openai")
    told = said("done", finished_ms=NOW - 1_000, degraded=True, followers=(held,), down=(OPENAI,))
    assert told.endswith("repair-describe is held because openai is down (connection refused).")


def test_a_follow_up_that_failed_is_said() -> None:
    cause = replace(FAILED, job_key=FOLLOWER.key, outcome="dead", error_code="bad_vectors", status_code=None)
    assert said("done", finished_ms=NOW - 1_000, followers=(FOLLOWER,), attempts=(cause,)) == (
        "It is done, 1.0 s ago; its follow-up job detect_connections failed: bad_vectors (the line is busy): press "
        "`perdure dead requeue d1`."
    )
    well = replace(FOLLOWER, state="done")
    assert said("done", finished_ms=NOW - 1_000, followers=(well,)) == "It is done, 1.0 s ago."


def test_dead_and_cancelled() -> None:
    last = replace(FAILED, outcome="dead", why="attempt 3 of 3 failed", attempt=3)
    died: dict[str, Any] = {
        "finished_ms": NOW - 7_200_000,
        "error_code": "http_503",
        "error_message": "the line is busy",
    }
    assert said("dead", attempts=(last,), alike=42, **died) == (
        "It has been dead for 2.0 h at stage embed: http_503: the line is busy (attempt 3 of 3 failed); 41 more died "
        "of the same; nothing happens by itself: press `perdure requeue d1`."
    )
    for action, press in (
        (Action.REQUEUE, "perdure requeue d1"),
        (Action.WAIT, "perdure dependencies"),
        (Action.FIX, "perdure dead inspect d1"),
    ):
        told = said("dead", attempts=(last,), alike=1, advice=Advice(action, "do this"), **died)
        assert told.endswith(f"failed); nothing happens by itself: do this: press `{press}`.")
    ended: dict[str, Any] = {
        "finished_ms": NOW - 3_000,
        "error_code": "cancelled",
        "error_message": "not wanted",
    }
    assert said("cancelled", acts=(CANCEL,), **ended) == (
        "It was cancelled 3.0 s ago by ann (not wanted) and stays so; `perdure requeue d1` starts it again."
    )


# --- with real stores ----------------------------------------------------------------------------

books = Pipeline("books", backoff_s=30, concurrency_key=lambda doc: doc.meta.get("host"))
connect = Pipeline("connect", attempts=1)


@connect.stage
def join(doc: Document) -> int:
    raise Permanent("bad_vectors", "they do not fit")


@books.stage
def read(doc: Document) -> str:
    if doc.text == "bad":
        raise Permanent("no_letters", "there is not a letter in it")
    return doc.text


@books.stage(needs=["ocr"])
def look(doc: Document, read: str) -> Result[int]:
    return Result(1, spawn=[connect.job(doc)] if read == "joined" else [])


def test_every_state_of_a_real_store_has_its_sentence(store_url: str) -> None:
    with trial([books, connect], store=store_url) as app:
        store = app.service.store
        good, bad = (app.add(text=text, pipeline=books).id for text in ("good", "bad"))
        assert "no worker serves queue documents" in app.why(good).sentence
        app._call(store.register("worker", "host:1", ["documents"]))
        assert app.why(good).sentence.startswith("It is next in queue documents")
        assert "1 is before it" in app.why(bad).sentence
        app.pause("documents", reason="disk full", who="ann")
        assert app.why(bad).press == "perdure resume documents"
        app.resume("documents")
        app.hold("ocr", "maintenance", who="ann")
        tick(app)
        assert "which ann has held" in app.why(good).sentence
        dead = app.why(bad)
        assert (dead.state, dead.press) == ("dead", f"perdure dead inspect {bad}")
        assert "no_letters: there is not a letter in it" in dead.sentence
        worse = app.add(text="bad", pipeline=books, dedupe=False).id
        tick(app)
        assert "1 more died of the same" in app.why(worse).sentence
        app.release("ocr")
        app.limit("h", concurrency=1, new=True)
        first, second = (app.add(text=t, pipeline=books, meta={"host": "h"}).id for t in "xy")
        assert "1 of 1 are let in, 1 waits" in app.why(second).sentence
        app.cancel(first, reason="not wanted", who="ann")
        assert "by ann (not wanted)" in app.why(first).sentence
        with failing(read, Transient("busy")):
            tick(app)
        assert "attempt 1 of 3 failed at stage read with transient (busy)" in app.why(second).sentence
        drain(app)
        joined = app.add(text="joined", pipeline=books).id
        drain(app)
        assert "its follow-up job connect failed: bad_vectors (they do not fit)" in app.why(joined).sentence
        assert app.why(good).sentence.startswith("It is done")
        with pytest.raises(DocumentUnknown):
            app.why("nobody")


def test_a_document_that_runs(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        id_ = app.add(text="good", pipeline=books).id
        store = app.service.store
        worker = app._call(store.register("worker", "host:1", ["documents"]))
        app._call(store.claim(Claim(worker, ("documents",), new_token(), 1)))
        app.clock.advance(7)
        assert f"in worker {worker} (host:1), attempt 1 of 3: last beat 7.0 s ago" in app.why(id_).sentence
        assert app.why(id_).press is None


PRESSED = DependencyRecord(
    "openai",
    "pressed",
    reason="it fails when it is asked more: requests wait for their turn",
    limit_per_s=5.0,
)
PAUSING = DependencyRecord(
    "ocr", "paused", reason="it refuses all requests and asked to wait", paused_until_ms=NOW + 40_000
)


def test_requests_that_wait_for_their_turn_are_told_of_with_the_reason() -> None:
    at = (
        "openai, which is pressed (it fails when it is asked more: requests wait for their turn; all workers "
        "together may make 5 requests a second)"
    )
    running = said("running", job=RUNNING, worker=WORKER, slow=(PRESSED,))
    assert running.endswith(f"; its requests wait for their turn at {at}, there is nothing to do.")
    assert "at work" not in running
    queued = said("queued", slow=(PRESSED, PAUSING))
    assert queued.endswith(
        f"; its requests then wait for their turn at {at} and at ocr, which is paused (it refuses all requests "
        "and asked to wait; requests go out again in 40 s)."
    )
    assert "is at work" in said("running", job=RUNNING, worker=WORKER)
    assert "it finds out whether openai is back" in said(
        "running", job=replace(RUNNING, probe="openai"), worker=WORKER
    )


asking = Pipeline("asking")


@asking.stage(needs=["openai"])
def ask(doc: Document) -> str:
    return "fine"


def test_a_document_that_needs_a_pressed_service_waits_for_its_turn_there(store_url: str) -> None:
    with trial(asking, store=store_url) as app:
        store = app.service.store
        id_ = app.add(text="a", pipeline=asking).id
        worker = app._call(store.register("worker", "host:1", ["documents"]))
        now_ms = app._call(store.now_ms())
        pressed = Pace("pressed", now_ms, 1.0, 5.0, 9.0, good=2.0, counted_ms=now_ms).to_text()
        app._call(store._change(Query(store.sql.DEPENDENCY_ADD, ("openai", now_ms))))
        app._call(store._change(Query(store.sql.DEPENDENCY_TOLD, ("openai", 10.0, None, 0, now_ms, pressed))))
        assert "its requests then wait for their turn at openai, which is pressed" in app.why(id_).sentence
        app._call(store.claim(Claim(worker, ("documents",), new_token(), 1)))
        running = app.why(id_).sentence
        assert "its requests wait for their turn at openai, which is pressed" in running
        assert "at work" not in running
