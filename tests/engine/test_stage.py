"""A stage's contracts, what it gives back, and the input of its job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from perdure.engine.document import Document
from perdure.engine.pipeline import Pipeline
from perdure.engine.result import Result, Row
from perdure.errors import Permanent, PipelineInvalid, Transient, Unstorable
from perdure.store.operations import EmittedRow
from tests.engine.port import DOC, context

books = Pipeline("books")


@books.stage
def chunk(doc: Document) -> list[str]:
    return doc.text.split()


@books.stage
def embed(doc: Document, chunk: list[str]) -> int:
    return len(chunk)


@embed.ensure
def all_embedded(chunk: list[str], embed: int) -> bool:
    return len(chunk) == embed


@books.stage
def detect(doc: Document, input: dict[str, int]) -> int:
    return input.get("chunk_count", 0)


def plain(doc: Document) -> None: ...


def lambda_like(doc):  # type: ignore[no-untyped-def]
    return doc


def test_a_broken_contract_fails_the_attempt() -> None:
    embed.verify(DOC, {"chunk": ["a"], "embed": 1})
    with pytest.raises(Transient, match="all_embedded of stage embed") as caught:
        embed.verify(DOC, {"chunk": ["a"], "embed": 2})
    assert caught.value.code == "contract_broken"
    assert embed.contract_sources == {"chunk"}


def test_contracts_are_wired_and_checked_too() -> None:
    pipeline = Pipeline("books")
    first = pipeline.stage(plain)

    @pipeline.stage
    def later(doc: Document) -> int:
        return 1

    async def never(later: int) -> bool:
        return True

    bad: list[Any] = [lambda later: True, lambda ctx: True, never, 5]
    for check in bad:
        with pytest.raises(PipelineInvalid, match="of stage plain"):
            first.ensure(check)
    with pytest.raises(PipelineInvalid, match="wants str, but stage later gives int"):

        @later.ensure
        def wrong(later: str) -> bool:
            return True

    later.ensure(lambda doc, plain, later: later == 1)
    later.verify(DOC, {"plain": None, "later": 1})


def test_what_a_stage_returns_is_validated_and_encoded() -> None:
    produced, value = chunk.collect(("a", "b"))
    assert (produced.output, value) == (b'["a","b"]', ["a", "b"])
    produced, _ = chunk.collect(Result([], rows=[Row("a", n=1)], sql=[("SELECT 1", ())]))
    assert produced.rows == (EmittedRow("a", '{"n":1}', b"null"),)
    assert produced.sql == (("SELECT 1", ()),)
    with pytest.raises(Permanent, match="what stage chunk gives") as caught:
        chunk.collect([1])
    assert caught.value.code == "output_invalid"
    with pytest.raises(Unstorable):
        Pipeline("books").stage(lambda_like).collect(object())

    async def late() -> None: ...

    forgotten: Awaitable[None] = late()
    with pytest.raises(Permanent, match="awaitable"):
        chunk.collect(forgotten)
    asyncio.run(forgotten)  # type: ignore[arg-type]


def test_the_input_of_a_job_is_validated() -> None:
    ctx = context()
    assert detect.fn(**detect.arguments(DOC, ctx, {}, b'{"chunk_count":61}')) == 61
    assert detect.fn(**detect.arguments(DOC, ctx, {}, None)) == 0
    with pytest.raises(Permanent) as caught:
        detect.arguments(DOC, ctx, {}, b'{"chunk_count":"many"}')
    assert caught.value.code == "input_invalid"
