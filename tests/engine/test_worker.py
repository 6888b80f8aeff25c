"""Workers in real time: until idle, in plain and awaited code, several at once, stopped in the middle."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import AsyncPerdure, Context, Document, Perdure, Pipeline, RetryLater, Transient
from perdure.engine.worker import Worker
from perdure.settings import Settings
from perdure.testing import failing

QUICK = Settings(poll_s=0.2, grace_s=0.3)


def until(condition: Callable[[], Any], within_s: float = 90) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.01)


def notes(name: str = "notes", **options: Any) -> Pipeline:
    pipeline = Pipeline(name, **options)

    @pipeline.stage
    def read(doc: Document) -> str:
        return doc.text

    @pipeline.stage(needs=["openai"])
    async def embed(doc: Document, read: str) -> str:
        return read.upper()

    return pipeline


def test_until_idle_runs_what_is_ready_and_falls_due_within_the_wait(store_url: str) -> None:
    pipeline = notes(backoff_s=0.1)
    with (
        Perdure(store_url, pipelines=[pipeline], settings=QUICK) as app,
        failing(pipeline.stages[1], Transient("busy")),
    ):
        ids = [app.add(text=str(n), pipeline=pipeline).id for n in range(5)]
        summary = app.run_until_idle(wait=5)
        assert (summary.done, summary.dead, summary.waiting, summary.next_due) == (5, 0, 0, None)
        assert [app.output(id_, "embed") for id_ in ids] == list("01234")
        assert app.run_until_idle().done == 0


def test_until_idle_does_not_wait_for_what_is_held_paused_scheduled_or_later(store_url: str) -> None:
    held, paused, later = notes("held"), notes("paused", queue="paused"), notes("later", queue="later")
    with (
        Perdure(store_url, pipelines=[held, paused, later], settings=QUICK) as app,
        failing(later.stages[0], RetryLater(delay_s=3600)),
    ):
        app.hold("openai")
        app.pause("paused")
        app.add(text="a", pipeline=held)
        app.add(text="b", pipeline=paused)
        app.add(text="c", pipeline=later)
        app.add(text="d", pipeline=later, run_at=datetime.now(UTC) + timedelta(hours=3))
        summary = app.run_until_idle(wait=1)
        assert (summary.done, summary.dead, summary.held, summary.waiting) == (0, 0, 1, 2)
        assert summary.next_due is not None
        assert timedelta(minutes=50) < summary.next_due - datetime.now(UTC) < timedelta(minutes=70)


def test_a_worker_that_has_not_asked_yet_holds_what_is_down(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(worker: Worker) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Worker, "_tend", never)  # as if the first answer took longer than the first stage
    pipeline = notes()
    with Perdure(store_url, pipelines=[pipeline], settings=QUICK) as app:
        app.hold("openai")
        id_ = app.add(text="a", pipeline=pipeline).id
        assert app.run_until_idle(wait=1).held == 1
        assert (app.status(id_).state, app.status(id_).stage) == ("held", "embed")


def test_until_idle_does_not_wait_for_a_pipeline_that_nobody_here_knows(store_url: str) -> None:
    known, unknown = notes("known"), notes("unknown")
    with Perdure(store_url, pipelines=[known, unknown], settings=QUICK) as app:
        id_ = app.add(text="a", pipeline=unknown).id
    with Perdure(store_url, pipelines=[known], settings=QUICK) as app:
        assert app.run_until_idle().done == 0
        assert (app.status(id_).state, app.status(id_).claims) == ("queued", 0)
    with Perdure(store_url, pipelines=[known, unknown], settings=QUICK) as app:
        assert app.run_until_idle(wait=5).done == 1


def test_awaited_code_has_the_same_verbs(store_url: str) -> None:
    pipeline = notes()

    async def scene() -> None:
        async with Perdure(store_url, pipelines=[pipeline], settings=QUICK) as app:
            assert isinstance(app, AsyncPerdure)
            added = await asyncio.gather(*(app.add(text=str(n), pipeline=pipeline) for n in range(10)))
            assert {a.answer for a in added} == {"added"}
            assert (await app.run_until_idle()).done == 10
            assert (await app.status(added[3].id)).state == "done"
            assert await app.output(added[3].id, "embed") == "3"
            assert await app.requeue(added[3].id) == "requeued"
            assert await app.cancel(added[3].id) == "cancelled"

    asyncio.run(scene())


def test_two_apps_in_one_process_share_the_work_and_never_a_document(store_url: str) -> None:
    pipeline = notes()
    lock, ran, go = threading.Lock(), [], threading.Event()

    @pipeline.stage
    def count(doc: Document) -> None:
        go.wait(90)
        with lock:
            ran.append(doc.text)

    with (
        Perdure(store_url, pipelines=[pipeline], settings=QUICK) as one,
        Perdure(store_url, pipelines=[pipeline], settings=QUICK) as two,
    ):
        one.add_many([{"text": str(n)} for n in range(60)], pipeline=pipeline)
        threads = [threading.Thread(target=app.run_until_idle) for app in (one, two)]
        for thread in threads:
            thread.start()
        until(lambda: sum(worker.running > 0 for worker in one._call(one.service.store.workers())) == 2)
        go.set()
        for thread in threads:
            thread.join(90)
        assert sorted(ran, key=int) == [str(n) for n in range(60)]
        assert {s.state for s in two.documents()} == {"done"}
        workers = {a.worker for s in one.documents() for a in one.attempts(s.id)}
        assert len(workers) == 2


def test_a_worker_that_is_told_to_stop_gives_back_what_it_cannot_finish(store_url: str) -> None:
    pipeline = Pipeline("slow")
    started = threading.Event()

    @pipeline.stage
    def first(doc: Document) -> str:
        return doc.text

    @pipeline.stage
    async def second(doc: Document, first: str) -> str:
        if not started.is_set():
            started.set()
            await asyncio.sleep(60)
        return first

    with Perdure(store_url, pipelines=[pipeline], settings=QUICK) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        running = threading.Thread(target=app.run)
        running.start()
        assert started.wait(90)
        assert app.status(id_).state == "running"
        assert app.status(id_).stage == "second"
        app._call(app.service.stop())
        running.join(90)
        assert not running.is_alive()
        status = app.status(id_)
        assert (status.state, status.attempts_made, status.suspect) == ("queued", 0, False)
        assert app.run_until_idle().done == 1
        assert [(a.outcome, a.charged) for a in app.attempts(id_)] == [("later", False), ("done", True)]


def test_a_stopping_worker_lets_short_stages_finish_and_stops_before_the_next(store_url: str) -> None:
    pipeline = Pipeline("slow")
    started, go = threading.Event(), threading.Event()

    @pipeline.stage
    def first(doc: Document) -> str:
        started.set()
        go.wait(90)
        return doc.text

    @pipeline.stage
    def second(doc: Document, first: str) -> str:
        return first

    patient = Settings(poll_s=0.2, grace_s=10)
    with Perdure(store_url, pipelines=[pipeline], settings=patient) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        running = threading.Thread(target=app.run)
        running.start()
        assert started.wait(90)
        app._call(app.service.stop())
        go.set()
        running.join(90)
        status = app.status(id_)
        assert (status.state, status.stage, status.attempts_made) == ("queued", "second", 0)
        assert app.output(id_, "first") == "a"


def test_leases_are_renewed_while_a_stage_takes_longer_than_one(store_url: str) -> None:
    pipeline = Pipeline("slow", lease_s=2)

    @pipeline.stage
    def long(doc: Document, ctx: Context) -> int:
        time.sleep(5)
        return ctx.attempt

    with (
        Perdure(store_url, pipelines=[pipeline], settings=QUICK) as one,
        Perdure(store_url, pipelines=[pipeline], settings=QUICK) as two,
    ):
        id_ = one.add(text="a", pipeline=pipeline).id
        other = threading.Thread(target=two.run_until_idle)
        other.start()
        one.run_until_idle()
        other.join(90)
        assert one.status(id_).claims == 1
        assert one.output(id_, "long") == 1


def test_an_idle_worker_notices_a_new_document_at_once(store_url: str) -> None:
    pipeline = notes()
    slow_poll = Settings(poll_s=600, grace_s=1)
    with (
        Perdure(store_url, pipelines=[pipeline], settings=slow_poll) as working,
        Perdure(store_url, pipelines=[pipeline], settings=slow_poll) as adding,
    ):
        running = threading.Thread(target=working.run)
        running.start()
        until(lambda: any(worker.kind == "worker" for worker in adding._call(adding.service.store.workers())))
        id_ = adding.add(text="first", pipeline=pipeline).id
        until(lambda: adding.status(id_).state == "done")
        id_ = adding.add(text="second", pipeline=pipeline).id
        until(lambda: adding.status(id_).state == "done")
        working._call(working.service.stop())
        running.join(90)
        assert not running.is_alive()
