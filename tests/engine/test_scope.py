"""The work in hand: whoever makes a request knows whose it is, and every request stands in the document's history."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Document, Pipeline, Transient
from perdure.core.scope import WORK
from perdure.testing import drain, trial
from tests.engine.scoped import calls, request, work


@pytest.mark.parametrize("cells", [True, False])
def test_a_stage_knows_its_work_wherever_it_runs_and_its_requests_are_counted(cells: bool) -> None:
    with trial(calls, cells=cells) as app:
        id_ = app.add(text="good", pipeline=calls, org="acme").id
        assert drain(app).done == 1
        assert app.output(id_, "read") == "read 1 ('ocr',)"
        assert app.output(id_, "describe") == f"describe {id_} ('openai',)"
        assert app.output(id_, "tell") == "tell acme calls ()"
        (attempt,) = app.attempts(id_)
        assert attempt.requests == {"ocr": 2, "openai": 2}
    assert WORK.get() is None


@pytest.mark.parametrize("cells", [True, False])
def test_requests_of_a_stage_that_raised_are_counted_too(cells: bool) -> None:
    with trial(calls, cells=cells) as app:
        id_ = app.add(text="bad", pipeline=calls).id
        assert drain(app).dead == 1
        (attempt,) = app.attempts(id_)
        assert (attempt.error_code, attempt.requests) == ("refused", {"ocr": 2, "openai": 1})


def test_each_claim_has_its_own_account(store_url: str) -> None:
    pipeline = Pipeline("books")

    @pipeline.stage
    def fetch(doc: Document) -> None:
        request("host", work().attempt)
        if work().attempt == 1:
            raise Transient("busy")

    @pipeline.stage
    def quiet(doc: Document) -> None: ...

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).done == 1
        assert [(a.outcome, a.requests) for a in app.attempts(id_)] == [
            ("retry", {"host": 1}), ("done", {"host": 2}),
        ]  # fmt: skip


def test_no_requests_leave_nothing_behind(store_url: str) -> None:
    pipeline = Pipeline("books")

    @pipeline.stage
    def read(doc: Document) -> None: ...

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).done == 1
        assert app.attempts(id_)[0].requests == {}
        assert app._call(app.service.store._rows("SELECT requests FROM attempt")) == [(None,)]


def test_documents_side_by_side_do_not_see_each_other() -> None:
    pipeline = Pipeline("books")

    @pipeline.stage
    async def fetch(doc: Document) -> str:
        for _ in range(3):
            request(doc.text)
            await asyncio.sleep(0.01)
        return work().document_id

    with trial(pipeline, concurrency=10) as app:
        ids = [app.add(text=f"host{n}", pipeline=pipeline).id for n in range(5)]
        assert drain(app).done == 5
        assert [app.output(id_, "fetch") for id_ in ids] == ids
        assert [app.attempts(id_)[0].requests for id_ in ids] == [{f"host{n}": 3} for n in range(5)]
