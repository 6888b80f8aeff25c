"""The timeline: everything that happened to a document, in order, whoever did it."""

from __future__ import annotations

import pytest

from perdure import Context, Document, Gathered, Permanent, Pipeline, Result, RetryLater, Transient
from perdure.errors import DocumentUnknown
from perdure.store.base import BREAKER
from perdure.testing import Trial, drain, tick, trial
from tests.doors.command import succeeded

books = Pipeline("books", backoff_s=30)
pages = Pipeline("pages")
connect = Pipeline("connect", attempts=1)


@pages.stage
def keep(doc: Document) -> int:
    return 1


@connect.stage
def join(doc: Document) -> int:
    raise Permanent("bad_vectors", "they do not fit")


@books.stage(model="reader-1")
def read(doc: Document, ctx: Context) -> list[str]:
    if ctx.attempt == 1 and ctx.generation == 1:
        raise Transient("the line is busy")
    return list(ctx.items(["a", "b", "c"], run=str.upper))


@books.stage(needs=["ocr"])
def look(doc: Document, read: list[str]) -> Result[int]:
    children = [pages.child(page, text=page) for page in read]
    return Result(len(read), spawn=[*children, connect.job(doc)])


def lines(app: Trial, id_: str) -> list[str]:
    """Kind and text of what happened, without numbers of workers."""
    return [f"{one.kind} {one.job + ': ' if one.job else ''}{one.text}" for one in app.timeline(id_)]


def test_everything_is_told_in_order(store_url: str) -> None:
    with trial([books, pages, connect], store=store_url) as app:
        store = app.service.store
        id_ = app.add(text="dune", name="dune.epub", pipeline=books).id
        app.clock.advance(5)
        tick(app)
        app.clock.advance(1)
        app._call(store.hold("ocr", "connection refused", BREAKER))
        app.clock.advance(30)
        tick(app)
        app.clock.advance(600)
        app.release("ocr", "it answers", who="ann")
        drain(app)
        app.clock.advance(60)
        assert app.requeue(id_, from_stage="look", reason="another look", who="bob") == "requeued"
        drain(app)
        told = lines(app, id_)
        found = app.timeline(id_)
    assert told[0] == "added added: dune.epub, 4 B, pipeline books, collection documents"
    assert [one.at_ms for one in found] == sorted(one.at_ms for one in found)

    def at(words: str) -> int:
        return next((n for n, line in enumerate(told) if words in line), -1)

    in_order = [
        "waited for its turn",
        "retry at stage read: transient: the line is busy – backoff after attempt 1 of 3",
        "waited: backoff after attempt 1 of 3",
        "stage read saved: ",
        "hold at stage look",
        "waited: stage look needs ocr",
        "begins, goes on after read",
        "spawned 3 documents of pipeline pages",
        "act requeue by bob: another look, generation 2 begins",
        "stage look saved again",
        "state done",
    ]
    places = [at(words) for words in in_order]
    assert -1 not in places, dict(zip(in_order, places, strict=True))
    assert places == sorted(places), told
    assert any("reader-1, 3 items" in line for line in told), told
    assert at("its documents of pipeline pages, all ended: 3 done") > at("spawned 3 documents")
    assert any("bad_vectors: they do not fit" in line for line in told)
    held = next(one for one in found if one.text.startswith("waited: stage look needs ocr"))
    assert held.took_ms == 600_000
    assert {one.generation for one in found} == {1, 2}


def test_a_wait_is_not_blamed_on_a_service_that_it_did_not_need_yet(store_url: str) -> None:
    two = Pipeline("two")

    @two.stage
    def first(doc: Document) -> int:
        return 1

    @two.stage(needs=["ocr"])
    def second(first: int) -> int:
        return 2

    with trial(two, store=store_url) as app:
        app.hold("ocr", "cleaning", who="ann")
        id_ = app.add(text="x", pipeline=two).id
        app.clock.advance(60)
        tick(app)
        app.clock.advance(300)
        app.release("ocr", who="ann")
        drain(app)
        waits = [(one.text, one.took_ms) for one in app.timeline(id_) if one.kind == "wait"]
    assert waits[0] == ("waited for its turn", 60_000)
    assert waits[1][0].endswith("held for 5.0 min of it: ocr was down (cleaning)")


def test_a_rerun_does_not_go_on_after_saves_of_earlier_generations_or_of_follow_up_jobs(
    store_url: str,
) -> None:
    again, after = Pipeline("again"), Pipeline("after")

    @after.stage
    def link(doc: Document) -> int:
        return 1

    @again.stage
    def extract(doc: Document, ctx: Context) -> Result[int]:
        if ctx.generation == 2 and ctx.attempt == 1:
            raise Transient("the line is busy")
        return Result(1, spawn=[after.job(doc)])

    with trial([again, after], store=store_url) as app:
        id_ = app.add(text="x", pipeline=again).id
        drain(app)
        app.clock.advance(60)
        app.requeue(id_, from_stage="extract")
        drain(app)
        told = [one.text for one in app.timeline(id_)]
    assert any("attempt 2" in text and "goes on at extract" in text for text in told), told
    assert not any("goes on after" in text for text in told), told


def test_a_parent_waits_for_what_it_spawned(store_url: str) -> None:
    parent = Pipeline("parent")

    @parent.stage
    def split(doc: Document) -> Result[int]:
        return Result(1, spawn=[pages.child("a", text="a")])

    @parent.stage
    def close(gathered: Gathered) -> int:
        return 1

    with trial([parent, pages], store=store_url) as app:
        id_ = app.add(text="x", pipeline=parent).id
        tick(app)
        app.clock.advance(60)
        drain(app)
        told = [one.text for one in app.timeline(id_) if one.kind == "wait"]
    assert told == ["waited: for what it spawned to end"]


def test_it_is_told_at_80_columns_and_repeats_are_folded(store_url: str) -> None:
    patient = Pipeline("patient")

    @patient.stage
    def never(doc: Document) -> int:
        raise RetryLater("come back later, " * 9, delay_s=100)

    with trial(patient, store=store_url) as app:
        id_ = app.add(text="x", pipeline=patient).id
        for _ in range(12):
            tick(app)
            app.clock.advance(1_000)
        everything = app.timeline(id_)
    said = succeeded("timeline", id_, "--store", store_url)
    assert max(map(len, said.splitlines())) <= 80
    assert said.splitlines()[0] == "2027-01-15 (UTC)"
    assert "\x1b" not in said
    assert len([one for one in everything if one.kind == "ended"]) == 12
    assert "… and 18 more like these" in said
    why = succeeded("why", id_, "--store", store_url)
    assert why.count("\n") == 1


def test_one_that_is_deleted_while_it_is_looked_at_is_unknown(store_url: str) -> None:
    with trial([books, pages, connect], store=store_url) as app:
        store = app.service.store
        id_, read = app.add(text="dune", pipeline=pages).id, store.document
        drain(app)

        async def just_before(org: str, document_id: str) -> object:
            await store.purge([(org, document_id)], ("done",))
            return await read(org, document_id)

        store.document = just_before  # type: ignore[method-assign,assignment]
        with pytest.raises(DocumentUnknown, match="deleted just now"):
            app.timeline(id_)
