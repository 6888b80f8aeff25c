"""Emitted rows are those of the stage's latest run: what another version or model emitted goes with its successor."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import Context, Document, Pipeline, Result, Row
from perdure.store.open import open_store
from perdure.testing import drain, trial


def test_rows_of_an_older_model_go_when_the_newer_one_is_saved(store_url: str) -> None:
    model, amount = "old", 5
    pipeline = Pipeline("embedding")

    @pipeline.stage(model=lambda: model)
    def embed(doc: Document, ctx: Context) -> int:
        for n in range(amount):
            ctx.emit(Row("vector", n=n, data=model))
        return amount

    @pipeline.stage
    def index(doc: Document, embed: int) -> Result[int]:
        return Result(embed, rows=[Row("entry", data="kept")])

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="x", pipeline=pipeline).id
        drain(app)
        assert len(app.rows(id_, "vector")) == 5
        model, amount = "new", 2
        app.requeue(id_)
        drain(app)
        assert app.rows(id_, "vector") == [({"n": 0}, "new"), ({"n": 1}, "new")]
        assert app.rows(id_, "entry") == [({}, "kept")]


def test_rows_of_items_that_were_taken_up_stay(store_url: str) -> None:
    runs: list[int] = []
    pipeline = Pipeline("items", backoff_s=0.0)

    def each(n: int) -> int:
        if n == 2 and len(runs) < 3:
            runs.append(n)
            raise ValueError("once")
        runs.append(n)
        return n

    @pipeline.stage
    def work(doc: Document, ctx: Context) -> int:
        total = 0
        for value in ctx.items(range(4), run=each):
            ctx.emit(Row("item", n=value, data=value))
            total += value
        return total

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="x", pipeline=pipeline).id
        drain(app)
        assert runs == [0, 1, 2, 2, 3]
        assert [key["n"] for key, _ in app.rows(id_, "item")] == [0, 1, 2, 3]


def test_two_documents_of_one_content_do_not_take_each_others_copy_away(postgres_url: str) -> None:
    """Blobs in a table are copied to a file for the stage; each run has a copy of its own."""
    both = asyncio.Barrier(2)
    pipeline = Pipeline("twins")
    found: list[int] = []

    @pipeline.stage
    async def read(doc: Document) -> int:
        await both.wait()
        size = await asyncio.to_thread(lambda: len(doc.path.read_bytes()))
        found.append(size)
        return size

    @pipeline.stage
    async def again(doc: Document, read: int) -> int:
        if len(found) == 2:
            found.append(0)
            await asyncio.sleep(0.3)  # the other one ends meanwhile
        return len(doc.path.read_bytes())

    content: dict[str, Any] = {"data": b"x" * 50_000, "dedupe": False}
    with trial(pipeline, store=postgres_url, concurrency=2) as app:
        ids = [app.add(pipeline=pipeline, **content).id for _ in range(2)]
        drain(app)
        assert [app.output(id_, "again") for id_ in ids] == [50_000, 50_000]


def test_a_statement_that_waits_for_a_lock_fails_its_own_document_only(postgres_url: str) -> None:
    pipeline = Pipeline("sql", attempts=1)

    @pipeline.stage
    def write(doc: Document) -> Result[int]:
        return Result(1, sql=[("INSERT INTO mine VALUES ($1)", (doc.id,))] if doc.text == "locked" else [])

    async def lock_and_run() -> None:
        import asyncpg

        other = await asyncpg.connect(postgres_url)
        await other.execute("CREATE TABLE mine (id text)")
        transaction = other.transaction()
        await transaction.start()
        await other.execute("LOCK TABLE mine IN ACCESS EXCLUSIVE MODE")
        async with open_app() as app:
            locked = await app.add(text="locked", pipeline=pipeline)
            free = await app.add(text="free", pipeline=pipeline)
            await app.run_until_idle()
            assert (await app.status(free.id)).state == "done"
            dead = await app.status(locked.id)
            assert (dead.state, dead.error_code) == ("dead", "sql_busy")
        await transaction.rollback()
        await other.close()

    def open_app() -> Any:
        from perdure import Perdure

        return Perdure(postgres_url, pipelines=[pipeline])

    asyncio.run(open_store(postgres_url).migrate())
    asyncio.run(lock_and_run())
