"""Tables of one's own: created when an app opens its store, written by upserts that survive a rerun."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from perdure import Document, Perdure, Pipeline, Result
from perdure.app import AsyncPerdure
from perdure.errors import PipelineInvalid
from perdure.store.base import Query, Steps
from perdure.testing import Trial, drain, trial

DOCS = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
#: Word for word as the documentation has them.
TABLES = re.search(r'tables="(CREATE TABLE [^"]+)"', DOCS)
UPSERT = re.search(r'sql=\[\("(INSERT INTO mine [^"]+)"', DOCS)


def books() -> Pipeline:
    assert TABLES is not None
    assert UPSERT is not None
    pipeline, statement = Pipeline("books", tables=TABLES[1]), UPSERT[1]

    @pipeline.stage
    def count(doc: Document) -> Result[int]:
        return Result(3, sql=[(statement, (doc.id, 3))])

    return pipeline


def rows_of(app: Trial) -> list[tuple[object, ...]]:
    def steps() -> Steps[list[tuple[object, ...]]]:
        return [tuple(row) for row in (yield Query("SELECT document_id, pages FROM mine"))]

    return app._call(app.service.store.driver.read(steps))


def test_a_table_is_there_in_a_trial_and_its_rows_survive_a_rerun(store_url: str) -> None:
    pipeline = books()
    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).done == 1
        app.requeue(id_, from_stage="count")
        assert drain(app).done == 1
        assert rows_of(app) == [(id_, 3)]
    with trial(pipeline, store=store_url) as again:
        assert rows_of(again) == [(id_, 3)]


def test_several_apps_that_start_at_once_create_them_once(store_url: str) -> None:
    async def start() -> None:
        app = AsyncPerdure(store_url, pipelines=[books()])
        await app.start()
        await app.close()

    async def all_at_once() -> None:
        await asyncio.gather(*(start() for _ in range(4)))

    asyncio.run(all_at_once())


def broken() -> Pipeline:
    pipeline = Pipeline("books", tables="CREATE TABLE (")

    @pipeline.stage
    def nothing(doc: Document) -> None: ...

    return pipeline


def test_a_statement_that_cannot_run_names_the_pipeline(store_url: str) -> None:
    with (
        pytest.raises(PipelineInvalid, match="the tables of pipeline books: "),
        Perdure(store_url, pipelines=[broken()]),
    ):
        pass
