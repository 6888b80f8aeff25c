"""A stage that gathers waits, without a slot, until all that its document spawned has ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure import Context, Document, Gathered, Perdure, Permanent, Pipeline, Result, Row
from perdure.store.records import Tally
from perdure.testing import drain, failing, recording, tick, trial

archive, letters, tell = Pipeline("archive"), Pipeline("letters"), Pipeline("tell")
splits: list[str] = []


@letters.stage
def read(doc: Document) -> int:
    if doc.text == "bad":
        raise Permanent("letter_bad")
    return len(doc.text)


@tell.stage
def told() -> str:
    return "told"


def one(word: str) -> str:
    splits.append(word)
    return word


@archive.stage
def split(doc: Document, ctx: Context) -> int:
    """Each letter becomes a child with the item that found it."""
    n = 0
    for word in ctx.items(doc.text.split(), run=one):
        ctx.emit(letters.child(str(n), text=word, collection="letters"))
        ctx.emit(Row("found", n=n, data=word))
        n += 1
    return n


@archive.stage
def count(doc: Document, split: int, gathered: Gathered) -> Result[dict[str, int]]:
    states = gathered.documents.get("letters", {})
    return Result({**states, "all": split}, spawn=[tell.job(doc)])


@archive.stage
def close(count: dict[str, int], gathered: Gathered) -> dict[str, str]:
    return gathered.jobs


@close.ensure
def all_told(split: int, count: dict[str, int]) -> bool:
    return count["all"] == split == count.get("done", 0) + count.get("dead", 0)


APP = [archive, letters, tell]


def test_it_runs_when_the_last_child_has_ended_well_or_not(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        id_ = app.add(text="one two bad four", pipeline=archive).id
        assert tick(app) == 1  # the archive, which spawns four letters and waits
        status = app.status(id_)
        assert (status.state, status.stage, status.run_at_ms) == ("waiting", "count", None)
        assert app.attempts(id_)[0].outcome == "gather"
        summary = drain(app)
        assert (summary.done, summary.dead, summary.next_due) == (4, 1, None)
        assert app.output(id_, "count") == {"done": 3, "dead": 1, "all": 4}
        assert app.output(id_, "close") == {"tell": "done"}
        assert app.status(id_).attempts_made == 1  # waiting costs none


def test_a_child_that_waits_keeps_it_waiting(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        id_ = app.add(text="one two", pipeline=archive).id
        with failing(read, RuntimeError("not now"), RuntimeError("not now")):
            tick(app)
            for _ in range(3):
                tick(app)
            assert app.status(id_).stage == "count"
            assert drain(app).done == 3
        assert app.output(id_, "count") == {"done": 2, "all": 2}


def test_what_an_item_spawned_is_there_once_after_a_retry(store_url: str) -> None:
    splits.clear()
    with trial(APP, store=store_url) as app:
        id_ = app.add(text="a b c d", pipeline=archive).id
        real = archive.stages[0].fn

        def broken(doc: Document, ctx: Context) -> int:
            for n, word in enumerate(ctx.items(doc.text.split(), run=one)):
                ctx.emit(letters.child(str(n), text=word, collection="letters"))
                if n == 2:
                    raise RuntimeError("in the middle")
            return 0

        archive.stages[0].fn = broken
        try:
            tick(app)
        finally:
            archive.stages[0].fn = real
        assert len([d for d in app.documents() if d.pipeline == "letters"]) == 2
        assert drain(app).done == 5
        assert splits == ["a", "b", "c", "c", "d"]
        assert app.output(id_, "count") == {"done": 4, "all": 4}


def test_one_that_spawned_nothing_goes_on_at_once(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        events = recording(app)
        id_ = app.add(text=" ", pipeline=archive).id
        tick(app)
        assert app.output(id_, "count") == {"all": 0}
        assert events
        assert drain(app).done == 1


def test_a_job_that_failed_is_tried_again_when_its_document_is_requeued(store_url: str) -> None:
    """Not because its stage runs again: that is saved, and with it what it spawned."""
    with trial(APP, store=store_url) as app:
        id_ = app.add(text="one", pipeline=archive).id
        with failing(told, Permanent("dumb"), Permanent("dumb")) as runs:
            drain(app)
            assert app.output(id_, "close") == {"tell": "dead"}
            app.requeue(id_, from_stage="close")
            drain(app)
            assert (runs.count, app.output(id_, "close")) == (2, {"tell": "dead"})  # once in a generation
            app.requeue(id_, from_stage="close")
            drain(app)
            assert (runs.count, app.output(id_, "close")) == (3, {"tell": "done"})
            app.requeue(id_, from_stage="close")
            drain(app)
            assert (runs.count, app.output(id_, "close")) == (3, {"tell": "done"})


def test_what_is_spawned_anew_is_gathered_anew(store_url: str) -> None:
    """Although nothing that the gathering stage reads has changed."""
    book, pages = Pipeline("book"), Pipeline("pages")

    @pages.stage
    def turn() -> str:
        return "turned"

    @book.stage
    def open_(doc: Document) -> Result[str]:
        return Result("opened", spawn=[pages.job(doc)])

    @book.stage
    def shut(open_: str, gathered: Gathered) -> dict[str, str]:
        return gathered.jobs

    with trial([book, pages], store=store_url) as app:
        id_ = app.add(text="one", pipeline=book).id
        drain(app)
        assert app.output(id_, "shut") == {"pages": "done"}
        app.requeue(id_, from_stage="open_", only=True)
        with failing(turn, Permanent("torn")):
            drain(app)
        assert app.output(id_, "shut") == {"pages": "dead"}
        app.requeue(id_)
        drain(app)
        assert app.output(id_, "shut") == {"pages": "done"}


def test_what_other_content_does_not_spawn_is_not_gathered(store_url: str) -> None:
    some, words = Pipeline("some"), Pipeline("words")

    @words.stage
    def spell() -> str:
        raise Permanent("misspelt")

    @some.stage
    def ask(doc: Document) -> Result[str]:
        return Result(doc.text, spawn=[words.job(doc)] if doc.text == "words" else [])

    @some.stage
    def end(ask: str, gathered: Gathered) -> dict[str, str]:
        return gathered.jobs

    with trial([some, words], store=store_url) as app:
        id_ = app.add(text="words", pipeline=some, key="one").id
        drain(app)
        assert app.output(id_, "end") == {"words": "dead"}
        assert app.add(text="none", pipeline=some, key="one").id == id_
        drain(app)
        assert app.output(id_, "end") == {}
        assert [a.outcome for a in app.attempts(id_) if "/words" in a.job_key] == ["dead"]


def gathering(name: str, bits: Pipeline) -> Pipeline:
    """A pipeline for follow-up jobs that spawn a child and gather it."""
    pipeline = Pipeline(name)

    @pipeline.stage
    def cut() -> Result[int]:
        return Result(1, spawn=[bits.child(name, text=name)])

    @pipeline.stage
    def count(cut: int, gathered: Gathered) -> int:
        return gathered.documents["letters"]["done"]

    return pipeline


def test_jobs_that_gather_do_not_wait_for_each_other(store_url: str) -> None:
    whole, first, second = Pipeline("whole"), gathering("first", letters), gathering("second", letters)

    @whole.stage
    def begin(doc: Document) -> Result[int]:
        return Result(1, spawn=[first.job(doc), second.job(doc)])

    @whole.stage
    def end(begin: int, gathered: Gathered) -> dict[str, str]:
        return gathered.jobs

    with trial([whole, first, second, letters], store=store_url) as app:
        id_ = app.add(text="one", pipeline=whole).id
        assert drain(app).done == 3
        assert app.output(id_, "end") == {"first": "done", "second": "done"}


def test_real_time_and_idleness(store_url: str) -> None:
    with Perdure(store_url, pipelines=APP) as app:
        ids = [app.add(text=f"one two {n}", pipeline=archive).id for n in range(3)]
        assert app.run_until_idle().done == 12
        assert [app.output(id_, "close") for id_ in ids] == [{"tell": "done"}] * 3


@pytest.mark.parametrize("states", [{}, {"letters": {"done": 2, "dead": 1}}])
def test_counts(states: dict[str, dict[str, int]]) -> None:
    gathered = Gathered(states, {"tell": "dead", "other": "done"})
    assert gathered.count("done") == 1 + sum(s.get("done", 0) for s in states.values())
    assert gathered.failed == 1 + sum(s.get("dead", 0) for s in states.values())


def test_what_a_sweep_makes_due_while_somebody_asks_is_under_way(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trial(APP, store=store_url) as app:
        app.add(text="one", pipeline=archive)
        tick(app)
        tick(app)  # its only letter has ended, and no sweep has come by since
        store = app.service.store
        tally, gather = store.tally, store.gather
        looks = 0

        async def overtaken(queues: Sequence[str] | None = None) -> Tally:
            nonlocal looks
            found, looks = await tally(queues), looks + 1
            if looks == 1:
                assert await gather(10) == 1
            return found

        monkeypatch.setattr(store, "tally", overtaken)
        assert app._call(app.service.under_way(0))
        assert looks == 2
        drain(app)
        assert not app._call(app.service.under_way(0))
