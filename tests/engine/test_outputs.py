"""What stages give: checked by its type, the same on both stores, and no neighbour suffers for what cannot be kept."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Context, Document, Permanent, Pipeline, Result, Row
from perdure.testing import drain, trial

NUL = "a\0b"
LONE = "a\ud800b"


def pipeline_giving(value: Any) -> Pipeline:
    pipeline = Pipeline("outputs")

    @pipeline.stage
    def give(doc: Document) -> Any:
        return value

    @pipeline.stage
    def take(doc: Document, give: Any) -> Any:
        return give

    return pipeline


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (NUL, NUL),
        (LONE, "a�b"),
        ({NUL: [LONE]}, {NUL: ["a�b"]}),
        ([float("inf"), -0.0, 2**80], [float("inf"), -0.0, 2**80]),
        ("𝄞 é ", "𝄞 é "),
        (None, None),
        ([], []),
        ("x" * 150_000, "x" * 150_000),
    ],
    ids=["nul", "surrogate", "nested", "numbers", "astral", "none", "empty", "large"],
)
def test_a_value_is_the_same_for_the_next_stage_and_after_a_resume(
    store_url: str, value: Any, kept: Any
) -> None:
    pipeline = pipeline_giving(value)
    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).done == 1
        assert app.output(id_, "give") == kept
        assert app.output(id_, "take") == kept


def test_rows_and_messages_with_nul_and_lone_surrogates_are_kept_alike(store_url: str) -> None:
    pipeline = Pipeline("outputs")

    @pipeline.stage
    def give(doc: Document, ctx: Context) -> Result[None]:
        ctx.emit(Row("words", word=NUL, data=LONE))
        return Result(None, rows=[Row("words", word=LONE, data=NUL)])

    @pipeline.stage
    def fail(doc: Document) -> None:
        raise Permanent(NUL, f"bad text {LONE} {NUL}")

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(data=NUL.encode(), pipeline=pipeline, meta={NUL: NUL}).id
        assert drain(app).dead == 1
        assert app.rows(id_, "words") == [({"word": NUL}, "a�b"), ({"word": "a�b"}, NUL)]
        status, (attempt,) = app.status(id_), app.attempts(id_)
        assert status.error_message == attempt.message == "bad text a���b a�b"
        assert status.error_code == attempt.error_code == "a�b"


def test_keys_of_items_and_rows_may_be_as_long_on_one_store_as_on_the_other(store_url: str) -> None:
    pipeline = Pipeline("outputs")
    words = "".join(chr(0x1F300 + n % 700) for n in range(500))

    @pipeline.stage
    def give(doc: Document, ctx: Context) -> None:
        for word in ctx.items([words], key=lambda word: word):
            ctx.emit(Row("words", word=word[: int(doc.text)]))

    with trial(pipeline, store=store_url) as app:
        fits = app.add(text="400", pipeline=pipeline, org="o" * 100).id
        too_long = app.add(text="500", pipeline=pipeline, org="o" * 100).id
        drain(app)
        assert app.status(fits).state == "done"
        assert (app.status(too_long).state, app.status(too_long).error_code) == ("dead", "row_invalid")


def test_one_output_that_cannot_be_stored_ends_its_document_and_no_other(store_url: str) -> None:
    pipeline = Pipeline("outputs")
    together = threading.Barrier(200, timeout=90)

    @pipeline.stage
    def give(doc: Document) -> Any:
        together.wait()
        return threading.Lock() if doc.text == "77" else doc.text

    with trial(pipeline, store=store_url, concurrency=200) as app:
        added = app.add_many([{"text": str(n)} for n in range(200)], pipeline=pipeline)
        summary = drain(app)
        assert (summary.done, summary.dead) == (199, 1)
        bad = app.status(added[77].id)
        assert (bad.state, bad.error_code) == ("dead", "unstorable")
        assert len(app.attempts(bad.id)) == 1


def test_a_statement_of_your_own_that_fails_is_charged_to_its_document_only(store_url: str) -> None:
    pipeline = Pipeline("outputs")

    @pipeline.stage
    async def give(doc: Document) -> Result[str]:
        broken = doc.text == "7"
        return Result(doc.text, sql=[("INSERT INTO no_such_table VALUES (1)", ())] if broken else [])

    with trial(pipeline, store=store_url, concurrency=20) as app:
        added = app.add_many([{"text": str(n)} for n in range(20)], pipeline=pipeline)
        summary = drain(app)
        assert (summary.done, summary.dead) == (19, 1)
        assert [a.outcome for a in app.attempts(added[7].id)] == ["retry", "retry", "dead"]
        assert "no_such_table" in (app.status(added[7].id).error_message or "")


def test_an_output_that_is_not_what_the_annotation_says_is_permanent(store_url: str) -> None:
    pipeline = Pipeline("outputs")

    @dataclass
    class Text:
        markdown: str
        pages: int

    @pipeline.stage
    def give(doc: Document) -> Text:
        return {"markdown": "x", "pages": "many"}  # type: ignore[return-value]

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).dead == 1
        status = app.status(id_)
        assert status.error_code == "output_invalid"
        assert "give" in (status.error_message or "")
        assert "pages" in (status.error_message or "")
        assert len(app.attempts(id_)) == 1


def test_types_come_back_as_they_were(store_url: str) -> None:
    pipeline = Pipeline("outputs")

    @dataclass
    class Text:
        markdown: str
        pages: tuple[int, ...]
        raw: bytes

    seen: list[Text] = []

    @pipeline.stage
    def give(doc: Document) -> Text:
        return Text("x", (1, 2), b"\xff\0")

    @pipeline.stage
    def take(doc: Document, give: Text) -> set[int]:
        seen.append(give)
        return set(give.pages)

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).done == 1
        assert seen == [Text("x", (1, 2), b"\xff\0")]
        assert app.output(id_, "give") == seen[0]
        assert app.output(id_, "take") == {1, 2}


def test_your_own_statements_commit_with_the_stage(store_url: str) -> None:
    pipeline = Pipeline("outputs")

    @pipeline.stage
    def prepare(doc: Document) -> Result[None]:
        return Result(None, sql=[("CREATE TABLE IF NOT EXISTS mine (word text)", ())])

    @pipeline.stage
    def write(doc: Document) -> Result[None]:
        return Result(None, sql=[("INSERT INTO mine (word) VALUES ($1)", (doc.text,))])

    @pipeline.stage
    def check(doc: Document) -> None: ...

    with trial(pipeline, store=store_url) as app:
        app.add(text="ours", pipeline=pipeline)
        assert drain(app).done == 1
        store = app.service.store
        assert app._call(store._rows("SELECT word FROM mine")) == [("ours",)]
