"""How an attempt ends and what follows: retries, endings without retry, budgets, contracts, late writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Document, Perdure, Permanent, Pipeline, RetryLater, Transient
from perdure.core.events import AttemptEnded, DocumentDead, WriteFenced
from perdure.engine.stage import Stage
from perdure.store.records import Attempt
from perdure.testing import Trial, drain, failing, recording, tick, trial


@dataclass
class Notes:
    """A pipeline of two stages and how it is usually broken: in the second one."""

    pipeline: Pipeline
    first: Stage[..., Any]
    second: Stage[..., Any]


def notes(**options: Any) -> Notes:
    pipeline = Pipeline("notes", **options)

    @pipeline.stage
    def first(doc: Document) -> str:
        return doc.text

    @pipeline.stage
    async def second(doc: Document, first: str) -> str:
        return first.upper()

    return Notes(pipeline, first, second)


def outcomes(app: Perdure, id_: str) -> list[str]:
    return [attempt.outcome for attempt in app.attempts(id_)]


def last(app: Perdure, id_: str) -> Attempt:
    return app.attempts(id_)[-1]


def test_three_attempts_two_and_four_seconds_apart_then_dead(store_url: str) -> None:
    made = notes()
    with trial(made.pipeline, store=store_url) as app, failing(made.second, *[Transient("busy")] * 9) as runs:
        id_ = app.add(text="a", pipeline=made.pipeline).id
        begin_ms = app.clock.now_ms()
        states = []
        for _ in range(12):
            if tick(app):
                states.append((app.clock.now_ms() - begin_ms, app.status(id_).state))
            app.clock.advance(1)
        assert states == [(0, "waiting"), (2_000, "waiting"), (6_000, "dead")]
        assert runs.count == 3
        status = app.status(id_)
        assert (status.attempts_made, status.attempts_max, status.stage) == (3, 3, "second")
        assert (status.error_code, status.error_message) == ("transient", "busy")
        assert status.finished_ms == begin_ms + 6_000
        assert [(a.attempt, a.outcome, a.delay_ms) for a in app.attempts(id_)] == [
            (1, "retry", 2_000),
            (2, "retry", 4_000),
            (3, "dead", None),
        ]


def test_nothing_terminal_is_shown_between_attempts(store_url: str) -> None:
    made = notes()
    with trial(made.pipeline, store=store_url) as app, failing(made.second, Transient("busy")):
        events = recording(app)
        id_ = app.add(text="a", pipeline=made.pipeline).id
        assert app.status(id_).state == "queued"
        tick(app)
        status = app.status(id_)
        assert (status.state, status.finished_ms, status.error_code) == ("waiting", None, "transient")
        assert status.run_at_ms == app.clock.now_ms() + 2_000
        assert not events.of(DocumentDead)
        assert tick(app) == 0
        assert drain(app).done == 1
        assert app.status(id_).error_code is None
        assert [e.outcome for e in events.of(AttemptEnded)] == ["retry", "done"]


def test_a_permanent_error_ends_it_with_its_code(store_url: str) -> None:
    made = notes()
    with trial(made.pipeline, store=store_url) as app, failing(made.second, Permanent("no_text")) as runs:
        id_ = app.add(text="a", pipeline=made.pipeline).id
        assert drain(app).dead == 1
        assert runs.count == 1
        assert (app.status(id_).state, app.status(id_).error_code) == ("dead", "no_text")


def test_an_unknown_exception_counts_and_its_class_is_recorded(store_url: str) -> None:
    made = notes()
    with trial(made.pipeline, store=store_url) as app, failing(made.second, *[ZeroDivisionError("1/0")] * 3):
        id_ = app.add(text="a", pipeline=made.pipeline).id
        assert drain(app).dead == 1
        attempt = last(app, id_)
        assert (attempt.error_type, attempt.error_code, attempt.message) == (
            "ZeroDivisionError",
            "unexpected",
            "1/0",
        )
        assert attempt.fingerprint
        assert len({a.fingerprint for a in app.attempts(id_)}) == 1


def test_retry_after_is_never_undercut(store_url: str) -> None:
    made = notes()
    with (
        trial(made.pipeline, store=store_url) as app,
        failing(made.second, Transient("busy", retry_after_s=90)),
    ):
        id_ = app.add(text="a", pipeline=made.pipeline).id
        drain(app)
        assert [a.delay_ms for a in app.attempts(id_)] == [90_000, None]


def test_retry_later_costs_no_attempt(store_url: str) -> None:
    made = notes(attempts=2)
    script = [RetryLater(delay_s=60)] * 5 + [Transient("busy")]
    with trial(made.pipeline, store=store_url) as app, failing(made.second, *script) as runs:
        id_ = app.add(text="a", pipeline=made.pipeline).id
        begin_ms = app.clock.now_ms()
        assert drain(app).done == 1
        assert runs.count == 7
        assert outcomes(app, id_) == ["later"] * 5 + ["retry", "done"]
        assert [a.charged for a in app.attempts(id_)] == [False] * 5 + [True] * 2
        assert app.status(id_).attempts_made == 2
        assert app.clock.now_ms() - begin_ms == 302_000


def test_retry_later_does_not_go_on_for_ever(store_url: str) -> None:
    made = notes(postpones_max=4)
    with (
        trial(made.pipeline, store=store_url) as app,
        failing(made.second, *[RetryLater(delay_s=1)] * 99) as runs,
    ):
        id_ = app.add(text="a", pipeline=made.pipeline).id
        assert drain(app).dead == 1
        assert runs.count == 5
        assert app.status(id_).error_code == "postpones_exhausted"
        assert app.status(id_).attempts_made == 0


def test_waiting_longer_than_the_age_limit_ends_it(store_url: str) -> None:
    made = notes(age_max_s=100)
    with (
        trial(made.pipeline, store=store_url) as app,
        failing(made.second, *[RetryLater(delay_s=40)] * 9) as runs,
    ):
        id_ = app.add(text="a", pipeline=made.pipeline).id
        assert drain(app).dead == 1
        assert runs.count == 3
        assert app.status(id_).error_code == "age_exceeded"


def test_a_document_brings_its_own_attempts_and_backoff(store_url: str) -> None:
    made = notes()
    with trial(made.pipeline, store=store_url) as app, failing(made.second, *[Transient("busy")] * 99):
        once = app.add(text="a", pipeline=made.pipeline, attempts=1).id
        often = app.add(text="b", pipeline=made.pipeline, attempts=4, backoff_s=10).id
        drain(app)
        assert outcomes(app, once) == ["dead"]
        assert [a.delay_ms for a in app.attempts(often)] == [10_000, 20_000, 40_000, None]


def test_a_stage_has_its_own_attempts_and_backoff(store_url: str) -> None:
    pipeline = Pipeline("notes", attempts=2)

    @pipeline.stage
    def plain(doc: Document) -> str:
        return doc.text

    @pipeline.stage(attempts=4, backoff_s=1)
    def patient(doc: Document) -> str:
        return doc.text

    with (
        trial(pipeline, store=store_url, concurrency=1) as app,
        failing(patient, *[Transient("busy")] * 9),
        failing(plain, None, *[Transient("busy")] * 9),
    ):
        first = app.add(text="a", pipeline=pipeline).id
        tick(app)
        second = app.add(text="b", pipeline=pipeline).id
        drain(app)
        assert [a.delay_ms for a in app.attempts(first)] == [1_000, 2_000, 4_000, None]
        assert [a.delay_ms for a in app.attempts(second)] == [2_000, None]


def test_a_documents_own_attempts_win_over_the_stages(store_url: str) -> None:
    pipeline = Pipeline("notes")

    @pipeline.stage(attempts=2, backoff_s=1)
    def only(doc: Document) -> str:
        return doc.text

    with trial(pipeline, store=store_url) as app, failing(only, *[Transient("busy")] * 9):
        id_ = app.add(text="a", pipeline=pipeline, attempts=3, backoff_s=7).id
        drain(app)
        assert [a.delay_ms for a in app.attempts(id_)] == [7_000, 14_000, None]


def test_a_broken_contract_is_not_done_and_in_the_end_dead(store_url: str) -> None:
    pipeline = Pipeline("notes")
    kept: list[int] = []

    @pipeline.stage
    def chunk(doc: Document) -> list[str]:
        return doc.text.split()

    @pipeline.stage
    def embed(doc: Document, chunk: list[str]) -> int:
        return kept.pop() if kept else 0

    @embed.ensure
    def all_embedded(chunk: list[str], embed: int) -> bool:
        return len(chunk) == embed

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a b", pipeline=pipeline).id
        tick(app)
        assert app.status(id_).state == "waiting"
        assert drain(app).dead == 1
        assert app.status(id_).error_code == "contract_broken"
        kept.append(2)
        app.requeue(id_)
        assert drain(app).done == 1
        assert app.output(id_, "embed") == 2


def test_what_a_cancelled_document_still_saves_is_refused(store_url: str) -> None:
    pipeline = Pipeline("notes")
    apps: list[Trial] = []

    @pipeline.stage
    def work(doc: Document) -> str:
        assert apps[0].cancel(doc.id, reason="not wanted") == "cancelled"
        return "too late"

    with trial(pipeline, store=store_url) as app:
        apps.append(app)
        events = recording(app)
        id_ = app.add(text="a", pipeline=pipeline).id
        summary = drain(app)
        assert (summary.done, summary.dead) == (0, 0)
        assert app.status(id_).state == "cancelled"
        assert len(events.of(WriteFenced)) == 1
        with pytest.raises(Exception, match="not saved"):
            app.output(id_, "work")
        assert app.cancel(id_) == "refused: the document is cancelled"
        assert app.requeue(id_) == "requeued"
