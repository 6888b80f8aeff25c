"""Running again from a stage on: what another model or version made, and only that."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from perdure import Document, Pipeline
from perdure.core.events import StageSaved
from perdure.errors import InputInvalid, StageUnknown
from perdure.operate import rerun as rerunning
from perdure.operate.rerun import Rerun
from perdure.pipelines.document import documents
from perdure.testing import Trial, drain, recording, tick, trial

TEXTS = ("Whales sing in the deep blue sea.", "Ships wait in the harbour.", "A lease is held by one worker.")


def books(model: str, version: int = 1) -> Pipeline:
    """The same pipeline as another release has it."""
    made = Pipeline("books")

    @made.stage
    def read(doc: Document) -> str:
        if doc.text == "bad":
            raise ValueError("cannot be read")
        return doc.text

    @made.stage(model=model, version=version)
    def embed(read: str) -> str:
        return f"{model} {read}"

    return made


def filled(store: str, *, model: str = "old", count: int = 5, **options: str) -> list[str]:
    """Documents that this model embedded."""
    with trial(books(model), store=store) as app:
        ids = [app.add(text=f"{model} {n}", pipeline="books", **options).id for n in range(count)]  # type: ignore[arg-type]
        drain(app)
    return ids


def ran(app: Trial) -> Counter[str]:
    events = recording(app)
    assert drain(app).dead == 0
    return Counter(event.stage for event in events.of(StageSaved) if "." not in event.pipeline)


@pytest.mark.parametrize("second", ["wordllama", "hashing"])
def test_documents_are_embedded_anew_without_being_read_anew(
    store_url: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real pipeline: hashing, then another embedder (or the same again, which must be as good)."""
    monkeypatch.setenv("PERDURE_EMBEDDER", "hashing")
    with trial(documents, store=store_url) as app:
        ids = [app.add(text=text, pipeline=documents).id for text in TEXTS]
        assert ran(app)["extract"] == 3
        before = {id_: app.chunks(id_) for id_ in ids}
        monkeypatch.setenv("PERDURE_EMBEDDER", second)

        found = app.rerun(
            pipeline=documents,
            from_stage="embed",
            where={"model": "lexical-hashing-384"},
            reason="better vectors",
        )

        assert (found.found, found.requeued, found.running) == (3, 3, 0)
        assert app.search("whales")[0].document_id == ids[0]  # by its words, until it is embedded again
        assert ran(app) == {"embed": 3, "index": 3, "connect": 3}
        assert app.search("whales")[0].document_id == ids[0]
        for id_, old in before.items():
            new = app.chunks(id_)
            assert [c.id for c in new] == [c.id for c in old]
            assert {c.model for c in new} == {
                "wordllama-l2-supercat-256" if second == "wordllama" else "lexical-hashing-384"
            }
            assert app.status(id_).generation == 2
        acts = app._call(app.service.store.acts())
        assert sorted((act.verb, act.target, act.reason) for act in acts) == sorted(
            ("requeue", id_, "better vectors") for id_ in ids
        )


def test_only_what_fits_all_conditions_is_run_again(store_url: str) -> None:
    filled(store_url, model="old", count=3, org="a")
    filled(store_url, model="old", count=2, org="b", collection="poems")
    filled(store_url, model="new", count=4, org="b")
    with trial(books("new"), store=store_url) as app:

        def count(**where: object) -> int:
            asked = app.rerun(pipeline="books", from_stage="embed", where=where, dry_run=True)
            assert asked.requeued == 0
            return asked.found

        assert count(model="old") == 5
        assert count(model="old", org="b") == 2
        assert count(model="new", collection="documents") == 4
        assert count(collection="poems") == 2
        assert count(version="1") == 9
        assert count(version=2) == 0
        assert count(state="failed") == 0
        assert count(org="b") == 6
        assert count(org="nobody") == 0
        done = app.rerun(pipeline="books", from_stage="embed", where={"model": "old", "org": "a"})
        assert done == Rerun(done.looked_at, 3, 3, 0, 0, {"old": 3})
        assert ran(app) == {"embed": 3}
        assert count(model="old") == 2


def test_the_newest_checkpoint_counts(store_url: str) -> None:
    (id_, *_) = filled(store_url, count=2)
    with trial(books("new"), store=store_url) as app:
        app.requeue(id_, from_stage="embed")
        drain(app)
        assert app.rerun(pipeline="books", from_stage="embed", where={"model": "old"}).found == 1
        assert ran(app) == {"embed": 1}
        assert app.output(id_, "embed").startswith("new ")


def test_what_is_in_flight_is_counted_and_left_alone(store_url: str) -> None:
    ids = filled(store_url, count=3)
    with trial(books("new"), store=store_url) as app:
        app.requeue(ids[1])
        found = app.rerun(pipeline="books", from_stage="embed", where={"model": "old"})
        assert (found.found, found.requeued, found.running) == (2, 2, 1)
        assert app.status(ids[1]).generation == 2
        again = app.rerun(pipeline="books", from_stage="embed", where={"model": "old"})
        assert (again.found, again.requeued, again.running) == (0, 0, 3)
        assert tick(app) == 3


def test_one_that_somebody_set_in_motion_meanwhile_is_running(store_url: str) -> None:
    ids = filled(store_url, count=2)
    with trial(books("new"), store=store_url) as app:
        service = app.service

        async def both() -> tuple[Rerun, Rerun]:
            asked = {"pipeline": "books", "from_stage": "embed", "where": {"model": "old"}}
            return await asyncio.gather(service.rerun(**asked), service.rerun(**asked))  # type: ignore[arg-type]

        first, second = app._call(both())
        assert first.requeued + second.requeued == 2
        assert (first.refused, second.refused) == (0, 0)
        assert [app.status(id_).generation for id_ in ids] == [2, 2]


def test_dead_documents_run_again_where_nothing_is_saved_of_the_stage(store_url: str) -> None:
    with trial(books("old"), store=store_url) as app:
        app.add(text="bad", pipeline="books")
        app.add(text="good", pipeline="books")
        assert drain(app).dead == 1
        found = app.rerun(pipeline="books", from_stage="read", where={"state": "dead"})
        assert (found.found, found.requeued) == (1, 1)
        assert drain(app).dead == 1


def test_a_renamed_stage_is_known_by_its_former_name(store_url: str) -> None:
    filled(store_url, count=2)
    made = Pipeline("books")

    @made.stage
    def read(doc: Document) -> str:
        return doc.text

    @made.stage(model="new", was="embed")
    def vectors(read: str) -> str:
        return read

    with trial(made, store=store_url) as app:
        assert app.rerun(pipeline=made, from_stage="vectors", where={"model": "old"}).requeued == 2
        assert ran(app) == {"vectors": 2}


def test_it_goes_page_by_page_and_no_further_than_its_limit(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerunning, "PAGE", 4)
    monkeypatch.setattr(rerunning, "BATCH", 2)
    filled(store_url, count=10)
    with trial(books("new"), store=store_url) as app:
        some = app.rerun(pipeline="books", from_stage="embed", where={"model": "old"}, limit=5)
        assert (some.found, some.requeued, some.looked_at) == (5, 5, 8)
        rest = app.rerun(pipeline="books", from_stage="embed", where={"model": "old"})
        assert (rest.requeued, rest.running, rest.looked_at) == (5, 5, 10)
        assert ran(app) == {"embed": 10}


def test_the_next_run_goes_on_after_the_last_one(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where those that were run again still fit."""
    monkeypatch.setattr(rerunning, "PAGE", 4)
    ids = [*filled(store_url, count=6), *filled(store_url, count=4, org="another")]
    with trial(books("old"), store=store_url) as app:
        after: str | None = None
        runs = []
        for _ in range(4):
            found = app.rerun(
                pipeline="books", from_stage="embed", where={"state": "done"}, limit=3, after=after
            )
            runs.append(found.requeued)
            assert ran(app) == {"embed": found.requeued}
            after = found.last
        assert (runs, after) == ([3, 3, 3, 1], None)
        assert {len(app.attempts(id_)) for id_ in ids} == {2}
        with pytest.raises(InputInvalid, match="ID@ORGANISATION"):
            app.rerun(pipeline="books", from_stage="embed", where={}, after=ids[0])


def test_follow_ups_run_again_with_what_they_follow(store_url: str) -> None:
    with trial(documents, store=store_url) as app:
        app.add(text=TEXTS[0], pipeline=documents)
        assert ran(app)["connect"] == 1
        with pytest.raises(InputInvalid, match=r"\(pipeline document\)") as told:
            app.rerun(pipeline="detect_connections", from_stage="connect", where={})
        assert told.value.code == "pipeline_follows"
        assert app.rerun(pipeline="document", from_stage="index", where={}).requeued == 1
        assert ran(app) == {"index": 1, "connect": 1}


def test_mistakes_are_told_with_what_there_is(store_url: str) -> None:
    filled(store_url, count=2)
    with trial(books("new"), store=store_url) as app:
        with pytest.raises(StageUnknown, match="it has read, embed"):
            app.rerun(pipeline="books", from_stage="embd", where={})
        for where, limit, code in (
            ({"modl": "old"}, None, "where_unknown"),
            ({"state": "asleep"}, None, "state_unknown"),
            ({"state": "running"}, None, "input_invalid"),
            ({"version": "two"}, None, "input_invalid"),
            ({}, 0, "input_invalid"),
        ):
            with pytest.raises(InputInvalid) as wrong:
                app.rerun(pipeline="books", from_stage="embed", where=where, limit=limit)
            assert wrong.value.code == code
        with pytest.raises(InputInvalid, match=r"'older' \(what is saved: old: 2\)") as unknown:
            app.rerun(pipeline="books", from_stage="embed", where={"model": "older"})
        assert unknown.value.code == "model_unknown"
        assert app.rerun(pipeline="books", from_stage="read", where={"model": ""}, dry_run=True).found == 2
