"""Stages give chunks and connections; they are committed with the stage, in threads, loops and cells alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure import Context, Document, Perdure, Pipeline, Result
from perdure.core.chunk import Chunk, Completeness, Connection
from perdure.engine.journey import Journey
from perdure.engine.worker import Worker
from perdure.errors import Permanent
from perdure.pipelines.chunk import chunks
from perdure.pipelines.embed import Hashing, embedder, with_vectors
from perdure.settings import Settings
from perdure.store import indexing
from perdure.store.sql_store import SqlStore

library = Pipeline("library")
connect = Pipeline("detect_connections")
runs: list[str] = []
broken: list[str] = []


@library.stage
def chunk(doc: Document) -> list[Chunk]:
    runs.append("chunk")
    return chunks(doc.text, doc.id, doc.content_hash)


@library.stage(model=lambda: Hashing().name)
def embed(doc: Document, chunk: list[Chunk]) -> Result[int]:
    runs.append("embed")
    model = Hashing()
    found = with_vectors(chunk, model.embed([c.text for c in chunk]), model.name)
    return Result(len(found), chunks=found, spawn=[connect.job(doc, chunk_count=len(found))])


@embed.ensure
def all_embedded(chunk: list[Chunk], embed: int) -> bool:
    return len(chunk) == embed


@library.stage
def check(embed: int) -> int:
    if broken:
        raise Permanent(broken.pop())
    return embed


@connect.stage
async def detect(ctx: Context) -> Result[int]:
    pairs = await ctx.anearest(threshold=0.5)
    return Result(len(pairs), connections=pairs)


isolated = Pipeline("isolated")


@isolated.stage(isolate=True)
def whole(doc: Document) -> Result[int]:
    vector = np.array([1, 0], "<f4").tobytes()
    return Result(1, chunks=[Chunk(f"c-{doc.id}", 0, 0, 5, doc.text, model="toy", vector=vector)])


@isolated.stage(isolate=True)
def near(ctx: Context) -> Result[int]:
    pairs = ctx.nearest()
    return Result(len(pairs), connections=pairs)


APP = [library, connect, isolated]
WHALES = "Whales sing in the deep blue sea and travel far. " * 3
SHIPS = "Ships with a retry policy wait longer after each failure. " * 3


def test_a_document_is_found_when_its_chunks_are_saved_and_connected_by_its_follow_up(store_url: str) -> None:
    with Perdure(store_url, pipelines=APP) as app:
        first = app.add(text=WHALES, pipeline=library, name="whales.txt").id
        app.add(text=SHIPS, pipeline=library, name="ships.txt")
        app.run_until_idle()
        second = app.add(text=WHALES + " More of them.", pipeline=library, name="more.txt").id
        app.run_until_idle()

        assert [hit.name for hit in app.search("retry policy", limit=1)] == ["ships.txt"]
        assert {hit.name for hit in app.search("whales singing")[:2]} == {"whales.txt", "more.txt"}
        assert [hit.document_id for hit in app.search("whales", document=first)] == [first]
        (pair,) = app.connections(second)
        assert (pair.other_document_id, pair.other_id) == (first, app.chunks(first)[0].id)
        assert [p.other_document_id for p in app.connections(first)] == [second]


def test_a_rerun_keeps_every_id_and_takes_up_what_is_saved(store_url: str) -> None:
    with Perdure(store_url, pipelines=APP) as app:
        broken.append("boom")
        id_ = app.add(text=WHALES * 30, pipeline=library).id
        runs.clear()
        app.run_until_idle()
        assert app.status(id_).state == "dead"
        before = app.chunks(id_)
        assert len(before) > 3
        assert app.search("whales") != [], "what is saved is found, whatever becomes of later stages"

        app.requeue(id_)
        app.run_until_idle()
        assert app.status(id_).state == "done"
        assert runs == ["chunk", "embed"]
        app.requeue(id_, from_stage="chunk")
        app.run_until_idle()

        assert runs == ["chunk", "embed"] * 2
        assert app.chunks(id_) == before
        store = app.service.store
        assert app._call(store.completeness("default", id_)) == Completeness(
            len(before), len(before), len(before)
        )


def test_chunks_and_neighbours_come_from_cells_too(store_url: str) -> None:
    with Perdure(store_url, pipelines=APP) as app:
        app.add(text="one", pipeline=isolated)
        app.run_until_idle()
        id_ = app.add(text="two", pipeline=isolated).id
        app.run_until_idle()
        assert app.status(id_).state == "done"

        (pair,) = app.connections(id_)
        assert pair == Connection(
            f"c-{id_}", pair.other_document_id, f"c-{pair.other_document_id}", 1.0, "toy"
        )


meaning = Pipeline("meaning")


@meaning.stage
def index(doc: Document) -> Result[int]:
    model = embedder()
    found = chunks(doc.text, doc.id, doc.content_hash)
    return Result(1, chunks=with_vectors(found, model.embed([c.text for c in found]), model.name))


def test_a_search_finds_what_is_meant_and_goes_on_by_words_when_nobody_embeds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    with Perdure(url, pipelines=[meaning]) as app:
        for text in ("The car drove down the road.", "A soup of noodles and beans.", "Taxes are due in May."):
            app.add(text=text, pipeline=meaning)
        app.run_until_idle()

        assert app.search("automobile")[0].snippet.startswith("The car")
        assert app.search("what to cook for dinner")[0].snippet.startswith("A soup")
    broken = Settings(embedder="http://127.0.0.1:9/v1", store=url)
    with Perdure(pipelines=[meaning], settings=broken) as app:
        app.service.query_s = 0.2
        assert [hit.snippet for hit in app.search("taxes")] == ["Taxes are due in May."]


@pytest.mark.parametrize(
    "given",
    [
        [Chunk("a", 0, 0, 1, "x"), Chunk("a", 1, 1, 2, "y")],
        [Chunk("a", 0, 0, 1, "x", model="m")],
        [Chunk("a", 0, 0, 1, "x", vector=b"1234")],
        [Chunk("a", 0, 0, 1, "x", model="m", vector=b"123")],
    ],
)
def test_chunks_that_contradict_themselves_are_refused(given: list[Chunk]) -> None:
    pipeline = Pipeline("bad")

    @pipeline.stage
    def give() -> Result[int]:
        return Result(1, chunks=given)

    with pytest.raises(Permanent) as refused:
        give.collect(give.fn())
    assert refused.value.code == "result_invalid"
    with pytest.raises(Permanent):
        Result(1, chunks=["text"])  # type: ignore[list-item]


def test_nobody_pays_for_the_vector_of_a_phrase(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def aembed(self: Hashing, texts: list[str]) -> list[bytes]:
        asked.extend(texts)
        return self.embed(texts)

    with Perdure(store_url, pipelines=[library, connect], settings=Settings(embedder="hashing")) as app:
        app.add(text="Whales sing in spring.", pipeline=library)
        app.run_until_idle()
        monkeypatch.setattr(Hashing, "aembed", aembed)
        assert len(app.search('"sing in"')) == 1
        assert asked == []
        assert len(app.search("sing in")) == 1
        assert asked == ["sing in"]


shelf = Pipeline("shelf")
aside = Pipeline("aside", queue="aside", concurrency=5)


@aside.stage
def wait(doc: Document) -> None: ...


@shelf.stage
def put(doc: Document) -> Result[int]:
    found = [Chunk(f"{doc.id}-{n}", n, 0, 1, word) for n, word in enumerate(doc.text.split())]
    return Result(len(found), chunks=found)


@pytest.mark.parametrize(("text", "order"), [("one", "left written"), ("one two three", "written left")])
def test_a_document_is_in_hand_until_its_many_chunks_are_written(
    text: str, order: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker would take one more while it writes them, and one more."""
    monkeypatch.setattr(indexing, "LARGE_CHUNKS", 3)
    seen: list[str] = []
    leave, settle = Worker._leave, SqlStore.settle

    def left(worker: Worker, journey: Journey) -> None:
        if not journey.left:
            seen.append("left")
        leave(worker, journey)

    async def written(store: SqlStore, *ops: Any) -> Any:
        answer = await settle(store, *ops)
        seen.append("written")
        return answer

    monkeypatch.setattr(Worker, "_leave", left)
    monkeypatch.setattr(SqlStore, "settle", written)
    with Perdure(store_url, pipelines=[shelf]) as app:
        app.add(text=text, pipeline=shelf)
        assert app.run_until_idle().done == 1
    assert " ".join(seen) == order


@pytest.mark.parametrize("orgs", ["ab", "a"])
def test_long_work_rests_much_only_where_there_are_others(
    orgs: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen by the worker of these documents, whatever a worker of other queues sees."""
    seen: list[tuple[int, bool]] = []
    settle = SqlStore.settle

    async def noted(store: SqlStore, *ops: Any) -> Any:
        seen.append((len(store.background.workers), store.background.others))
        return await settle(store, *ops)

    monkeypatch.setattr(SqlStore, "settle", noted)
    with Perdure(store_url, pipelines=[shelf, aside]) as app:
        for number, org in enumerate(orgs * 2):
            app.add(text=f"text {number}", org=org, pipeline=shelf)
        assert app.run_until_idle().done == 2 * len(orgs)
    assert seen[-1] == (2, len(orgs) > 1)
