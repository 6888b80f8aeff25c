"""What a later attempt, and a later generation, takes up instead of running it again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from perdure import Context, Document, Permanent, Pipeline, Row, Transient
from perdure.core.events import StageSaved, StageSkipped
from perdure.errors import StageUnknown
from perdure.store.base import Query, Steps
from perdure.testing import Trial, drain, recording, tick, trial

LARGE = "x" * 140_000  # more than fits into a row


def execute(app: Trial, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """A statement behind Perdure's back."""

    def steps() -> Steps[list[tuple[Any, ...]]]:
        return (yield Query(sql, params))

    return app._call(app.service.store.driver.write(steps))


def lose_blobs(app: Trial) -> None:
    async def lose() -> None:
        async for digest, _ in app.service.blobs.list():
            await app.service.blobs.delete(digest)

    app._call(lose())


class Paid:
    """A pipeline whose runs are counted, as if each cost money."""

    def __init__(self, output: str = "small") -> None:
        self.runs: Counter[str] = Counter()
        self.broken = 0
        self.output = output
        self.model = "old"
        self.pipeline = pipeline = Pipeline("paid")

        @pipeline.stage
        def extract(doc: Document) -> str:
            self.runs["extract"] += 1
            return doc.text + output

        @pipeline.stage(model=lambda: self.model)
        def describe(doc: Document, extract: str) -> str:
            self.runs["describe"] += 1
            return f"{self.model[:1]}:{len(extract)}"

        @pipeline.stage
        def index(doc: Document, describe: str) -> str:
            self.runs["index"] += 1
            return describe.upper()

        @pipeline.stage
        def store(doc: Document, extract: str) -> int:
            self.runs["store"] += 1
            if self.broken:
                self.broken -= 1
                raise Transient("disk")
            return len(extract)

        self.extract, self.describe, self.store = extract, describe, store


def test_a_retry_runs_only_what_is_not_saved(store_url: str) -> None:
    paid = Paid()
    paid.broken = 2
    with trial(paid.pipeline, store=store_url) as app:
        events = recording(app)
        id_ = app.add(text="a", pipeline=paid.pipeline).id
        assert drain(app).done == 1
        assert paid.runs == {"extract": 1, "describe": 1, "index": 1, "store": 3}
        assert [e.stage for e in events.of(StageSkipped)] == ["extract", "describe", "index"] * 2
        assert [e.stage for e in events.of(StageSaved)] == ["extract", "describe", "index", "store"]
        assert app.output(id_, "store") == 6


def test_items_that_are_saved_are_not_paid_for_again(store_url: str) -> None:
    pipeline = Pipeline("pages")
    paid: Counter[int] = Counter()
    failures = [Transient("connection reset")]

    def read(page: int) -> str:
        paid[page] += 1
        if page == 4 and failures:
            raise failures.pop()
        return f"page {page}"

    @pipeline.stage
    def extract(doc: Document, ctx: Context) -> list[str]:
        texts = []
        for text in ctx.items(range(1, 6), key=lambda n: n, run=read):
            ctx.emit(Row("pages", text=text, data={"restored": ctx.restored, "attempt": ctx.attempt}))
            texts.append(text)
        return texts

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        tick(app)
        assert [key["text"] for key, _ in app.rows(id_, "pages")] == ["page 1", "page 2", "page 3"]
        assert drain(app).done == 1
        assert paid == {1: 1, 2: 1, 3: 1, 4: 2, 5: 1}
        assert app.output(id_, "extract") == [f"page {n}" for n in range(1, 6)]
        rows = app.rows(id_, "pages")
        assert [(key["text"], data["attempt"]) for key, data in rows] == [
            ("page 1", 1),
            ("page 2", 1),
            ("page 3", 1),
            ("page 4", 2),
            ("page 5", 2),
        ]


def test_items_larger_than_a_row_are_taken_up_too(store_url: str) -> None:
    pipeline = Pipeline("pages")
    paid: Counter[str] = Counter()

    async def ask(word: str) -> str:
        paid[word] += 1
        return word * 150_000

    @pipeline.stage
    async def embed(doc: Document, ctx: Context) -> int:
        n = 0
        async for answer in ctx.aitems("abc", run=ask):
            n += len(answer)
        if ctx.attempt == 1:
            raise Transient("after the last item")
        return n

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).done == 1
        assert paid == {"a": 1, "b": 1, "c": 1}
        assert app.output(id_, "embed") == 450_000
        app.requeue(id_, from_stage="embed")
        drain(app)
        assert paid == {"a": 2, "b": 2, "c": 2}


def test_a_large_output_is_taken_up_from_its_blob(store_url: str) -> None:
    paid = Paid(LARGE)
    paid.broken = 1
    with trial(paid.pipeline, store=store_url) as app:
        id_ = app.add(text=LARGE, pipeline=paid.pipeline).id
        assert drain(app).done == 1
        assert paid.runs == {"extract": 1, "describe": 1, "index": 1, "store": 2}
        assert app.output(id_, "extract") == LARGE + LARGE


@pytest.mark.parametrize("how", ["its blob is gone", "it is no JSON", "it is of another type"])
def test_a_saved_output_that_cannot_be_read_is_made_again(store_url: str, how: str) -> None:
    paid = Paid(LARGE if how == "its blob is gone" else "small")
    paid.broken = 1
    with trial(paid.pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=paid.pipeline).id
        tick(app)
        if how == "its blob is gone":
            lose_blobs(app)
        else:
            spoilt = b'{"' if how == "it is no JSON" else b"[1]"
            execute(app, "UPDATE saved SET inline = $1 WHERE stage = 'extract'", spoilt)
        assert drain(app).done == 1
        # what it gives is the same as before, so what was made of it still counts
        assert paid.runs == {"extract": 2, "describe": 1, "index": 1, "store": 2}
        assert app.output(id_, "extract") == "a" + paid.output


def test_a_raised_version_runs_that_stage_and_what_depends_on_what_it_gives(store_url: str) -> None:
    paid = Paid()
    with trial(paid.pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=paid.pipeline).id
        drain(app)
        paid.extract.version = 2
        app.requeue(id_)
        drain(app)
        # extract gives the same text as before, so nothing that reads it runs again
        assert paid.runs == {"extract": 2, "describe": 1, "index": 1, "store": 1}


def test_another_model_runs_that_stage_and_what_depends_on_what_it_gives(store_url: str) -> None:
    paid = Paid()
    with trial(paid.pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=paid.pipeline).id
        drain(app)
        paid.model = "new"
        app.requeue(id_)
        drain(app)
        assert paid.runs == {"extract": 1, "describe": 2, "index": 2, "store": 1}
        assert app.output(id_, "index") == "N:6"


def test_requeueing_a_dead_document_starts_a_generation_with_a_fresh_budget(store_url: str) -> None:
    paid = Paid()
    paid.broken = 4
    with trial(paid.pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=paid.pipeline).id
        assert drain(app).dead == 1
        assert app.requeue(id_, reason="disk replaced") == "requeued"
        status = app.status(id_)
        assert (status.state, status.generation, status.attempts_made) == ("queued", 2, 0)
        assert (status.error_code, status.finished_ms) == (None, None)
        assert app.requeue(id_).startswith("refused: ")
        assert drain(app).done == 1
        assert [(a.generation, a.attempt, a.outcome) for a in app.attempts(id_)] == [
            (1, 1, "retry"),
            (1, 2, "retry"),
            (1, 3, "dead"),
            (2, 1, "retry"),
            (2, 2, "done"),
        ]
        assert paid.runs == {"extract": 1, "describe": 1, "index": 1, "store": 5}


def test_requeueing_from_a_stage_runs_it_and_all_after_it(store_url: str) -> None:
    paid = Paid()
    with trial(paid.pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=paid.pipeline).id
        drain(app)
        paid.broken = 1
        assert app.requeue(id_, from_stage="index") == "requeued"
        assert drain(app).done == 1
        # index ran once in this generation, although store had to be tried twice
        assert paid.runs == {"extract": 1, "describe": 1, "index": 2, "store": 3}
        with pytest.raises(StageUnknown, match="no stage 'indx'"):
            app.requeue(id_, from_stage="indx")


def test_items_of_a_dead_generation_are_taken_up_unless_asked_otherwise(store_url: str) -> None:
    pipeline = Pipeline("pages")
    paid: Counter[int] = Counter()

    def read(page: int) -> int:
        paid[page] += 1
        return page

    @pipeline.stage
    def extract(doc: Document, ctx: Context) -> int:
        total = sum(ctx.items([1, 2], run=read))
        if ctx.generation == 1:
            raise Permanent("broken_table")
        return total

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).dead == 1
        app.requeue(id_)
        assert drain(app).done == 1
        assert paid == {1: 1, 2: 1}
        app.requeue(id_, from_stage="extract")
        drain(app)
        assert paid == {1: 2, 2: 2}


def test_a_document_whose_content_is_gone_ends_with_that_as_its_reason(store_url: str) -> None:
    paid = Paid()
    with trial(paid.pipeline, store=store_url) as app:
        id_ = app.add(text=LARGE, pipeline=paid.pipeline).id
        lose_blobs(app)
        assert drain(app).dead == 1
        assert paid.runs == {}
        assert [a.error_code for a in app.attempts(id_)] == ["content_missing"]
