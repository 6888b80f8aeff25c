"""Stages are wired by parameter name and annotation when they are defined: what fits, what does not, what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.core.outcome import Failure
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.pipeline import Pipeline
from perdure.engine.result import Batch, Result
from perdure.errors import InputInvalid, PipelineInvalid
from tests.engine.port import DOC, name_of


@dataclass
class Text:
    markdown: str
    pages: int


def extract(doc: Document) -> Text:
    return Text("a", 1)


def test_an_unknown_parameter_is_explained() -> None:
    pipeline = Pipeline("books")
    pipeline.stage(extract)
    with pytest.raises(PipelineInvalid) as caught:

        @pipeline.stage
        def split(doc: Document, extrat: Text) -> None: ...

    assert str(caught.value) == (
        "stage split of pipeline books: parameter 'extrat' is neither an earlier stage nor anything else that can be "
        "handed in here (known: extract, doc, document, ctx, input, previous, gathered); did you mean 'extract'?"
    )
    with pytest.raises(PipelineInvalid, match="failure"):

        @pipeline.stage
        def report(failure: Failure) -> None: ...


def test_a_stage_reads_only_earlier_stages() -> None:
    pipeline = Pipeline("books")
    with pytest.raises(PipelineInvalid, match="'later'"):

        @pipeline.stage
        def early(later: int) -> int:
            return later

    with pytest.raises(PipelineInvalid, match="'itself'"):

        @pipeline.stage
        def itself(itself: int) -> int:
            return itself


def test_documents_and_contexts_are_known_by_annotation_or_name() -> None:
    pipeline = Pipeline("books")

    @pipeline.stage
    def one(it: Document, around: Context, input: dict[str, Any]) -> None: ...

    @pipeline.stage
    def two(document, ctx, one): ...  # type: ignore[no-untyped-def]

    assert list(one.inputs.values()) == ["document", "context", "input"]
    assert list(two.inputs.values()) == ["document", "context", "stage"]


def make(given: Any, wanted: Any) -> Pipeline:
    def first(doc: Document) -> None: ...

    def second(first: Any) -> None: ...

    first.__annotations__["return"] = given
    second.__annotations__["first"] = wanted
    pipeline = Pipeline("books")
    pipeline.stage(first)
    pipeline.stage(second)
    return pipeline


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (int, int),
        (int, Any),
        (Any, int),
        (int, object),
        (bool, int),
        (int, float),
        (str, str | None),
        (str | None, str | None),
        (list[str], list[str]),
        (list[str], Sequence[str]),
        (list[str], list),
        (list, list[str]),
        (list[bool], list[int]),
        (Result[int], int),
        (Result, int),
        (Result[int] | None, int | None),
        (Batch[str], list),
        ("Missing", int),
        (int, "Missing"),
    ],
    ids=name_of,
)
def test_types_that_fit(given: Any, wanted: Any) -> None:
    make(given, wanted).check()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (int, str),
        (float, int),
        (Text, str),
        (str | None, str),
        (list[int], list[str]),
        (list[str], dict[str, str]),
        (Result[int], str),
        (None, int),
    ],
    ids=name_of,
)
def test_types_that_do_not_fit(given: Any, wanted: Any) -> None:
    with pytest.raises(
        PipelineInvalid, match=r"stage second of pipeline books: parameter 'first' wants .* gives "
    ):
        make(given, wanted)


def test_types_defined_in_a_function_are_resolved() -> None:
    @dataclass
    class Local:
        number: int

    pipeline = Pipeline("books")

    @pipeline.stage
    def first(doc: Document) -> Local:
        return Local(1)

    @pipeline.stage(version=3)
    def second(first: Local) -> list[Local]:
        return [first]

    assert first.codec.type is Local
    assert second.codec.type == list[Local]


def test_the_reader_decides_where_the_maker_does_not_say() -> None:
    pipeline = Pipeline("books")

    @pipeline.stage
    def first(doc):  # type: ignore[no-untyped-def]
        return Text("a", 1)

    @pipeline.stage
    def second(first: Text) -> int:
        return first.pages

    produced, value = first.collect(first(DOC))
    assert value == {"markdown": "a", "pages": 1}
    assert second.load("first", produced.output) == Text("a", 1)
    with pytest.raises(InputInvalid):
        second.load("first", b"[]")
