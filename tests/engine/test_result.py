"""Rows, results and spawn specifications: checked where they are made."""

from __future__ import annotations

import pickle
import uuid
from typing import Any

import pytest

from perdure.engine.document import Document
from perdure.engine.pipeline import Pipeline
from perdure.engine.result import Batch, Result, Row, SpawnDocument
from perdure.errors import InputInvalid, Permanent, PipelineInvalid, Unstorable
from perdure.store.records import DocumentRecord

DOC = Document(DocumentRecord("d1", "o1", "c", "p", "text", "a", "", "h", 1, b"x", None, b"{}", None, 0))


@pytest.fixture
def connect() -> Pipeline:
    connect = Pipeline("connect")

    @connect.stage
    def detect(doc: Document, input: dict[str, Any]) -> int:
        return len(input)

    return connect


def test_a_row_has_a_canonical_key() -> None:
    row = Row("vectors", page=2, batch="é\ud800", name=True, data=[1.5, None])
    emitted = row.emitted()
    assert emitted.name == "vectors"
    assert emitted.key == '{"batch":"é\ufffd","name":true,"page":2}'
    assert emitted.data == b"[1.5,null]"
    assert row == Row("vectors", name=True, batch="é\ud800", page=2, data=[1.5, None])


@pytest.mark.parametrize(
    "make",
    [lambda: Row("Bad name"), lambda: Row(""), lambda: Row("a", key=None), lambda: Row("a", key=1.5)],  # type: ignore[arg-type]
)
def test_a_bad_row_is_refused(make: Any) -> None:
    with pytest.raises(Permanent) as caught:
        make()
    assert caught.value.code == "row_invalid"


def test_row_data_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(Unstorable, match="data of row a"):
        Row("a", data=object()).emitted()


def test_a_result_carries_what_commits_with_the_value(connect: Pipeline) -> None:
    job = connect.job(DOC)
    result = Result(5, spawn=[job], rows=[Row("a")], sql=[("UPDATE t SET n = ?", [1])])
    assert result.value == 5
    assert result.spawn == (job,)
    assert result.rows == (Row("a"),)
    assert result.sql == (("UPDATE t SET n = ?", (1,)),)
    assert Result.of(result) is result
    assert Result.of(None) == Result(None)


@pytest.mark.parametrize(
    "parts",
    [{"spawn": [1]}, {"rows": ["x"]}, {"sql": ["DELETE"]}, {"sql": [("a", "b")]}, {"spawn": [Row("a")]}],
)
def test_a_bad_result_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(Permanent) as caught:
        Result(1, **parts)
    assert caught.value.code == "result_invalid"


def test_a_follow_up_job_is_named_after_its_pipeline(connect: Pipeline) -> None:
    job = connect.job(DOC, chunk_count=61, trigger="document-processing-complete")
    assert (job.pipeline, job.name, job.document_id) == ("connect", "connect", "d1")
    assert job.input == b'{"chunk_count":61,"trigger":"document-processing-complete"}'
    assert pickle.loads(pickle.dumps(job)) == job
    with pytest.raises(InputInvalid, match="input of a connect job"):
        connect.job(DOC, x=object())
    with pytest.raises(PipelineInvalid):
        Pipeline("empty").job(DOC)


def test_a_child_has_the_same_id_whenever_it_is_spawned_again(connect: Pipeline) -> None:
    child = connect.child("page-1", text="a\ud800", name="Page 1", meta={"n": 1}, collection="pages")
    assert (child.kind, child.content, child.name) == ("text", "a\ufffd".encode(), "Page 1")
    assert (child.meta, child.collection) == (b'{"n":1}', "pages")
    id_ = child.document_id("d1")
    assert str(uuid.UUID(id_)) == id_ == connect.child("page-1", data=b"other").document_id("d1")
    others: list[SpawnDocument] = [connect.child("page-2", text=""), connect.child("page", text="")]
    assert len({id_, child.document_id("d2"), *(other.document_id("d1") for other in others)}) == 4
    assert pickle.loads(pickle.dumps(child)) == child


def test_a_child_has_exactly_one_content(connect: Pipeline) -> None:
    assert connect.child("a", json=None).content == b"null"
    assert connect.child("a", data=b"\xff").kind == "bytes"
    bad: list[dict[str, Any]] = [
        {},
        {"text": "a", "data": b"a"},
        {"text": b"a"},
        {"data": "a"},
        {"json": object()},
        {"text": "a", "meta": {"x": object()}},
    ]
    for content in bad:
        with pytest.raises(InputInvalid):
            connect.child("a", **content)
    for key in ("", "x" * 501):
        with pytest.raises(InputInvalid):
            connect.child(key, text="a")


def test_a_batch_travels_between_processes() -> None:
    batch = Batch([1, 2], index=3)
    copy = pickle.loads(pickle.dumps(batch))
    assert copy == batch
    assert copy.index == 3
