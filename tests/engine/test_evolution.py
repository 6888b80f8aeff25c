"""Pipelines that change while documents are in flight. The rules:

- A saved stage counts as long as its name (or `was`), version, model and input are the same; its place does not matter.
- A stage that was added runs, wherever it stands, also for documents past that place; what reads it runs again.
- A stage that was removed is not waited for; a document that had everything else is done.
- A stage renamed with `was=` keeps what it saved, items included; without it, it is a new stage.
- A stage that reads other stages than before, or whose saved output no longer has its type, runs again.
- Finished documents stay finished; a requeue runs what they lack.
- Attempts, hooks and the queue are those of the day the document was added; a contract holds for runs from now on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Context, Document, Perdure, Pipeline, Transient
from perdure.engine.pipeline import AnyStage
from perdure.testing import FakeClock, drain, failing, tick, trial

ran: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _forget_runs() -> None:
    ran.clear()


def stage(name: str, *, reads: str = "") -> Callable[..., str]:
    """A stage function of that name which counts its runs; it reads at most one other stage."""

    def act(given: str = "") -> str:
        ran[name] += 1
        return f"{given}>{name}"

    namespace: dict[str, Any] = {"act": act, "Document": Document, "__name__": __name__}
    parameter = f", {reads}: str" if reads else ""
    exec(f"def {name}(doc: Document{parameter}) -> str: return act({reads})", namespace)
    function: Callable[..., str] = namespace[name]
    return function


def books(*functions: Any, **options: Any) -> Pipeline:
    """A pipeline of these functions, or (function, options of the stage) pairs."""
    pipeline = Pipeline("books", **options)
    for entry in functions:
        function, given = entry if isinstance(entry, tuple) else (entry, {})
        pipeline.stage(**given)(function)
    return pipeline


def find(pipeline: Pipeline, name: str) -> AnyStage:
    found = pipeline.at(name)
    assert found is not None
    return found


def start(store_url: str, pipeline: Pipeline, stop_at: str | None) -> tuple[str, FakeClock]:
    """A document that waits at a stage of the old pipeline, or is done with it."""
    clock = FakeClock()
    with trial(pipeline, store=store_url, clock=clock) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        if stop_at is None:
            assert drain(app).done == 1
        else:
            with failing(find(pipeline, stop_at), Transient("busy")):
                tick(app)
            assert app.status(id_).state == "waiting"
    ran.clear()
    return id_, clock


def finish(store_url: str, pipeline: Pipeline, clock: FakeClock, id_: str) -> None:
    """The rest, by the new pipeline."""
    with trial(pipeline, store=store_url, clock=clock) as app:
        assert drain(app).done == 1
        assert app.status(id_).state == "done"


EXTRACT, CHUNK, EMBED = stage("extract"), stage("chunk", reads="extract"), stage("embed", reads="chunk")
CLEAN = stage("clean", reads="extract")
OLD = (EXTRACT, CHUNK, EMBED)

CHANGES: dict[str, tuple[tuple[Any, ...], dict[str, int]]] = {
    "nothing": (OLD, {"embed": 1}),
    "one added at the end": ((*OLD, stage("index", reads="embed")), {"embed": 1, "index": 1}),
    "one added in the middle": ((EXTRACT, CLEAN, CHUNK, EMBED), {"clean": 1, "embed": 1}),
    "one added in the middle and read": (
        (EXTRACT, CLEAN, stage("chunk", reads="clean"), EMBED),
        {"clean": 1, "chunk": 1, "embed": 1},
    ),
    "one added at the start": ((stage("fetch"), *OLD), {"fetch": 1, "embed": 1}),
    "the one it waits at removed": ((EXTRACT, CHUNK), {}),
    "one that is saved removed": ((EXTRACT, stage("embed", reads="extract")), {"embed": 1}),
    "one that is saved renamed": (
        (EXTRACT, (stage("split", reads="extract"), {"was": "chunk"}), stage("embed", reads="split")),
        {"embed": 1},
    ),
    "one that is saved renamed without a word": (
        (EXTRACT, stage("split", reads="extract"), stage("embed", reads="split")),
        {"split": 1, "embed": 1},
    ),
    "the one it waits at renamed": (
        (EXTRACT, CHUNK, (stage("vectors", reads="chunk"), {"was": "embed"})),
        {"vectors": 1},
    ),
    "another order": ((EXTRACT, stage("embed", reads="extract"), CHUNK), {"embed": 1}),
    "a raised version": (((EXTRACT, {"version": 2}), CHUNK, EMBED), {"extract": 1, "embed": 1}),
    "one that reads less": ((EXTRACT, stage("chunk"), EMBED), {"chunk": 1, "embed": 1}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_document_in_flight_finishes_and_runs_only_what_it_must(store_url: str, change: str) -> None:
    functions, expected = CHANGES[change]
    id_, clock = start(store_url, books(*OLD), stop_at="embed")
    finish(store_url, books(*functions), clock, id_)
    assert ran == expected


def test_a_saved_output_that_no_longer_has_its_type_is_made_again(store_url: str) -> None:
    id_, clock = start(store_url, books(EXTRACT, stage("count", reads="extract")), stop_at="count")
    new = Pipeline("books")

    @new.stage
    def extract(doc: Document) -> list[str]:
        ran["extract"] += 1
        return [doc.text]

    @new.stage
    def count(doc: Document, extract: list[str]) -> int:
        return len(extract)

    finish(store_url, new, clock, id_)
    assert ran == {"extract": 1}


def test_finished_documents_stay_finished_and_a_requeue_runs_what_they_lack(store_url: str) -> None:
    id_, clock = start(store_url, books(*OLD), stop_at=None)
    new = books(*OLD, stage("index", reads="embed"))
    with trial(new, store=store_url, clock=clock) as app:
        assert tick(app) == 0
        assert app.status(id_).state == "done"
        assert app.requeue(id_) == "requeued"
        assert drain(app).done == 1
        assert ran == {"index": 1}
        assert app.output(id_, "index") == ">extract>chunk>embed>index"


def test_a_renamed_stage_keeps_its_output_and_its_items(store_url: str) -> None:
    paid: Counter[int] = Counter()

    def ask(n: int) -> int:
        paid[n] += 1
        return n

    old, new = Pipeline("books"), Pipeline("books")

    @old.stage
    def embed(doc: Document, ctx: Context) -> int:
        total = sum(ctx.items([1, 2, 3], run=ask))
        raise Transient(f"after {total}")

    @new.stage(was="embed")
    def vectors(doc: Document, ctx: Context) -> int:
        return sum(ctx.items([1, 2, 3, 4], run=ask))

    clock = FakeClock()
    with trial(old, store=store_url, clock=clock) as app:
        id_ = app.add(text="a", pipeline=old).id
        tick(app)
    with trial(new, store=store_url, clock=clock) as app:
        assert drain(app).done == 1
        assert app.output(id_, "vectors") == app.output(id_, "embed") == 10
    assert paid == {1: 1, 2: 1, 3: 1, 4: 1}


def test_a_requeue_from_a_stage_by_its_old_name_runs_it(store_url: str) -> None:
    id_, clock = start(store_url, books(*OLD), stop_at=None)
    renamed = (EXTRACT, (stage("split", reads="extract"), {"was": "chunk"}), stage("embed", reads="split"))
    with trial(books(*renamed), store=store_url, clock=clock) as app:
        app.requeue(id_, from_stage="chunk")
        assert drain(app).done == 1
        assert ran == {"split": 1, "embed": 1}


def test_a_dependency_that_is_no_longer_needed_holds_no_longer_than_until_its_release(store_url: str) -> None:
    id_, clock = start(store_url, books(EXTRACT, (CHUNK, {"needs": ["ocr"]})), stop_at="chunk")
    with trial(books(EXTRACT, CHUNK), store=store_url, clock=clock) as app:
        app.hold("ocr")
        assert drain(app).held == 1
        app.release("ocr")
        assert drain(app).done == 1
        assert app.status(id_).attempts_made == 2


def test_attempts_are_those_of_the_day_it_was_added_or_fewer(store_url: str) -> None:
    for attempts, expected in ((9, 3), (2, 2)):
        clock = FakeClock()
        with trial(books(*OLD), store=store_url, clock=clock) as app:
            id_ = app.add(text=str(attempts), pipeline="books").id
        new = books(*OLD, attempts=attempts)
        with trial(new, store=store_url, clock=clock) as app, failing(new.stages[0], *[ValueError()] * 20):
            assert drain(app).dead == 1
            assert len(app.attempts(id_)) == expected


def test_a_pipeline_that_is_gone_leaves_its_documents_waiting_for_a_worker_that_has_it(
    store_url: str,
) -> None:
    other = Pipeline("letters")

    @other.stage
    def read(doc: Document) -> None: ...

    id_, clock = start(store_url, books(*OLD), stop_at="embed")
    with trial(other, store=store_url, clock=clock) as app:
        clock.advance(2)
        for _ in range(12):
            clock.advance(301)
            tick(app)
        status = app.status(id_)
        assert (status.state, status.attempts_made, status.claims) == ("queued", 1, 1)
        app._call(app.service.store.register("worker", "lives", ["documents"]))
        assert "no worker of queue documents has pipeline books" in app.why(id_).sentence
        said = [(one["text"], one["press"]) for one in app.overview()["problems"]]
        lacking = "No worker of queue documents has pipeline books, and jobs of it wait"
        assert (lacking, f"perdure why {id_}") in said
    finish(store_url, books(*OLD), clock, id_)
    assert ran == {"embed": 1}


def test_an_old_release_leaves_alone_what_only_the_new_one_has(store_url: str) -> None:
    def release(*names: str) -> Perdure:
        pipelines = [_limited(name) for name in names]
        return Perdure(store_url, pipelines=pipelines)

    with release("books", "films") as new:
        ids = [new.add(text=str(n), pipeline="films").id for n in range(2)]  # one of them waits for room
        with release("books") as old:
            old.add(text="a", pipeline="books")
            assert old.run_until_idle().done == 1
            assert {old.status(id_).claims for id_ in ids} == {0}
        assert new.run_until_idle().done == 2
        assert {new.status(id_).claims for id_ in ids} == {1}


def test_what_only_the_new_release_has_keeps_no_room_from_the_old_one(store_url: str) -> None:
    with Perdure(store_url, pipelines=[_limited("books", "host"), _limited("films", "host")]) as new:
        new.add(text="first", pipeline="films")
        new.add(text="second", pipeline="books")
        with Perdure(store_url, pipelines=[_limited("books", "host")]) as old:
            assert old.run_until_idle().done == 1
        assert new.run_until_idle().done == 1


def _limited(name: str, key: str = "") -> Pipeline:
    """A pipeline that runs one document at a time."""
    pipeline = Pipeline(name, concurrency_key=lambda document: key or name, concurrency_per_key=1)

    @pipeline.stage
    def read(doc: Document) -> None: ...

    return pipeline


def test_hooks_are_those_of_the_day_it_was_added(store_url: str) -> None:
    told: list[str] = []

    def with_hook() -> Pipeline:
        pipeline = books(*OLD)

        @pipeline.on_dead
        def tell(doc: Document) -> None:
            told.append(doc.text)

        return pipeline

    clock, hooked, plain = FakeClock(), with_hook(), books(*OLD)
    with trial(plain, store=store_url, clock=clock) as app:
        app.add(text="added without", pipeline=plain)
    with trial(hooked, store=store_url, clock=clock) as app, failing(hooked.stages[0], *[ValueError()] * 3):
        assert drain(app).dead == 1
        added = app.add(text="added with", pipeline=hooked).id
    with trial(plain, store=store_url, clock=clock) as app, failing(plain.stages[0], *[ValueError()] * 3):
        for _ in range(6):
            tick(app)
            clock.advance(5)
        assert app.status(added).state == "dead"
        assert app.attempts(added)[-1].outcome == "dead"  # nobody took the hook's job
    assert told == []
    with trial(with_hook(), store=store_url, clock=clock) as app:
        drain(app)
    assert told == ["added with"]


def test_documents_stay_in_the_queue_they_were_added_to(store_url: str) -> None:
    id_, clock = start(store_url, books(*OLD, queue="old"), stop_at="embed")
    moved = books(*OLD, queue="new")
    with trial(moved, store=store_url, clock=clock) as app:
        clock.advance(10)
        assert tick(app) == 0
        app.service.only_queues = ("old", "new")
        assert drain(app).done == 1
        assert app.status(id_).state == "done"
