"""What stages saved for generations that nobody can go back to is dropped, so a requeue costs the same each time."""

from __future__ import annotations

import pytest

from perdure import Document, Pipeline, Transient
from perdure.store.records import AttemptPlace
from perdure.testing import Trial, drain, failing, tick, trial

books = Pipeline("books", attempts=5)
seen: list[str | None] = []


@books.stage
def read(doc: Document, previous: str | None) -> str:
    seen.append(previous)
    return doc.text * 100


@books.stage
def count(read: str) -> int:
    return len(read)


def saved(app: Trial, id_: str) -> list[tuple[str, int]]:
    store, org = app.service.store, app.status(id_).org
    return sorted((save.stage, save.generation) for save in app._call(store.saved_of(org, id_)))


def again(app: Trial, id_: str, times: int) -> None:
    for _ in range(times):
        assert app.requeue(id_, from_stage="read") == "requeued"
        drain(app)


@pytest.mark.on_both
def test_old_generations_keep_their_attempts_and_nothing_else(store_url: str) -> None:
    seen.clear()
    with trial(books, store=store_url) as app:
        id_ = app.add(text="dune", pipeline=books).id
        drain(app)
        again(app, id_, 6)
        assert saved(app, id_) == [("count", 6), ("count", 7), ("read", 6), ("read", 7)]
        assert [a.generation for a in app.attempts(id_)] == [1, 2, 3, 4, 5, 6, 7]
        assert seen == [None, *["dune" * 100] * 6]
        assert app.output(id_, "count") == 400


@pytest.mark.on_both
def test_what_was_not_made_anew_is_kept_however_old(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        id_ = app.add(text="dune", pipeline=books).id
        drain(app)
        for _ in range(3):
            assert app.requeue(id_, from_stage="count") == "requeued"
            drain(app)
        assert saved(app, id_) == [("count", 3), ("count", 4), ("read", 1)]


@pytest.mark.on_both
def test_a_run_reads_what_it_may_use_and_nothing_older(store_url: str) -> None:
    """Also of a document whose generations are from before anything was dropped."""
    with trial(books, store=store_url) as app:
        id_ = app.add(text="dune", pipeline=books).id
        drain(app)
        again(app, id_, 2)
        app.requeue(id_, from_stage="read")
        with failing(count, Transient("not yet")):
            tick(app)
        store, org = app.service.store, app.status(id_).org
        found = app._call(store.saves(org, id_, "books", 4))
        assert [(save.stage, save.generation) for save in found] == [("count", 3), ("read", 3), ("read", 4)]
        newest = app._call(store.saves(org, id_, "books"))
        assert [(save.stage, save.generation) for save in newest] == [("count", 3), ("read", 4)]


@pytest.mark.on_both
def test_attempts_have_pages(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        id_ = app.add(text="dune", pipeline=books).id
        drain(app)
        again(app, id_, 4)
        newest = app.attempts(id_, limit=2)
        assert [a.generation for a in newest] == [4, 5]
        older = app.attempts(id_, limit=2, after=str(newest[0].place))
        assert [a.generation for a in older] == [2, 3]
        assert AttemptPlace.of(str(older[0].place)) == older[0].place


@pytest.mark.on_both
def test_pages_of_a_timeline_are_the_whole_of_it(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        id_ = app.add(text="dune", pipeline=books).id
        drain(app)
        for _ in range(6):
            app.clock.advance(10)
            again(app, id_, 1)
        whole = app.timeline(id_)
        assert [one.kind for one in whole].count("act") == 6
        pages = [app.timeline_page(id_, limit=2)]
        while (after := pages[-1].next) is not None:
            pages.append(app.timeline_page(id_, limit=2, after=after))
        assert len(pages) > 3
        assert [one for page in reversed(pages) for one in page.timeline if one.kind != "wait"] == [
            one for one in whole if one.kind != "wait"
        ]


@pytest.mark.on_both
def test_pages_of_many_acts_are_in_order_among_each_other(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        id_ = app.add(text="dune", pipeline=books).id
        for number in range(5):
            app.clock.advance(10)
            app.priority(id_, number)
        drain(app)
        for _ in range(2):
            app.clock.advance(10)
            again(app, id_, 1)
        pages = [app.timeline_page(id_, limit=2)]
        while (after := pages[-1].next) is not None:
            pages.append(app.timeline_page(id_, limit=2, after=after))
        told = [one for page in reversed(pages) for one in page.timeline]
        assert [one.at_ms for one in told] == sorted(one.at_ms for one in told)
        assert sorted(one.text for one in told if one.kind != "wait") == sorted(
            one.text for one in app.timeline(id_) if one.kind != "wait"
        )
