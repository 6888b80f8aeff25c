"""The library at first sight: its stages, run one after the other without a store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.pipeline import Pipeline
from perdure.engine.result import Batch, Result, Row, Spawn, batched
from perdure.errors import Permanent
from tests.engine.port import DOC, FakePort


@dataclass
class Text:
    markdown: str
    pages: int


connect = Pipeline("connect")
books = Pipeline("books", attempts=3)


@dataclass
class PdfPage:
    number: int


def pdf_pages(path: Any) -> Iterator[PdfPage]:
    yield from (PdfPage(1), PdfPage(2))


def read_page(page: PdfPage) -> str:
    return f"{DOC.text} {page.number}"


async def ask_openai(batch: Batch[str]) -> list[list[float]]:
    return [[float(len(text))] for text in batch]


@connect.stage
def detect(doc: Document, input: dict[str, int]) -> int:
    return input.get("chunk_count", 0)


@books.stage(version=2, timeout=600, isolate=True)
def extract(doc: Document, ctx: Context) -> Text:
    pages = list(ctx.items(pdf_pages(doc.path), key=lambda p: p.number, run=read_page))
    if not pages:
        raise Permanent("empty_document")
    return Text("\n".join(pages), len(pages))


@books.stage
def chunk(doc: Document, extract: Text) -> list[str]:
    return extract.markdown.split()


@books.stage(needs=["openai"])
async def embed(doc: Document, chunk: list[str], ctx: Context) -> Result[int]:
    n = 0
    async for vectors in ctx.aitems(batched(chunk, 2), run=ask_openai):
        ctx.emit(Row("vectors", first=n, data=vectors))
        n += len(vectors)
    return Result(n, spawn=[connect.job(doc)])


@embed.ensure
def all_embedded(chunk: list[str], embed: int) -> bool:
    return len(chunk) == embed


def test_the_library_at_first_sight() -> None:
    books.check(types=True)
    values: dict[str, Any] = {}
    saved: dict[str, bytes] = {}
    spawned: list[Spawn] = []
    for stage in books.stages:
        ctx = Context(FakePort(), DOC, stage.name, is_async=stage.is_async)
        loaded = {name: stage.load(name, saved[name]) for name in (*stage.sources, *stage.contract_sources)}
        returned = stage.fn(**stage.arguments(DOC, ctx, loaded, None))
        if stage.is_async:
            returned = asyncio.run(returned)
        produced, values[stage.name] = stage.collect(returned)
        saved[stage.name] = produced.output
        spawned += produced.spawn
        stage.verify(DOC, values)
    DOC.close()
    assert values == {"extract": Text("a b 1\na b 2", 2), "chunk": ["a", "b", "1", "a", "b", "2"], "embed": 6}
    assert spawned == [connect.job(DOC)]
    assert extract.inputs == {"doc": "document", "ctx": "context"}
    assert embed.inputs == {"doc": "document", "chunk": "stage", "ctx": "context"}
    assert (embed.lane, extract.lane, embed.sources) == ("openai", "", ("chunk",))
    assert (extract.version, extract.timeout, extract.isolate, extract.target) == (
        2,
        600,
        True,
        f"{__name__}:books.extract",
    )


def test_a_stage_is_called_and_typed_like_its_function() -> None:
    assert_type(chunk(DOC, Text("a b", 1)), list[str])
    assert chunk(DOC, extract=Text("a b", 1)) == ["a", "b"]
    assert chunk.name == "chunk"
    assert "books.chunk" in repr(chunk)
    assert repr(books) == "<Pipeline books: extract → chunk → embed>"
