"""The document pipeline: from a URL, a file or a text to chunks that are found and connected.

fetch     the bytes at a URL, guarded; one request per attempt; large ones go to a blob
extract   page by page or chapter by chapter, each saved, in a process that can be killed
          (an image or an archive of mail that was fetched: a job of its pipeline does the rest)
chunk     passages with their place in the text
embed     a vector for each, batch by batch
index     from this commit on it is found; what it is like is found out by a job of its own
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from mimetypes import guess_type
from pathlib import Path
from urllib.parse import urlsplit

from perdure import Context, Document, Gathered, Permanent, Pipeline, Result, Row
from perdure.calls.fetch import Fetched, NotModified
from perdure.calls.fetch import fetch as fetch_url
from perdure.core.chunk import Chunk
from perdure.core.frozen import frozen
from perdure.engine import rooms
from perdure.engine.result import SpawnJob
from perdure.errors import Transient
from perdure.pipelines import chunk as cutting
from perdure.pipelines.bounds import CELL_BYTES, CHUNK_MB, STAGE_S
from perdure.pipelines.extract import (
    MODULES,
    VERSION,
    Part,
    Reader,
    Summary,
    anchors,
    join,
    open_reader,
    summarise,
)
from perdure.pipelines.extract.ocr import available
from perdure.pipelines.extract.sniff import HEAD_BYTES, sniff
from perdure.pipelines.indexing import index_chunks
from perdure.pipelines.routing import IMAGE, MAIL, by_kind
from perdure.settings import current

#: Of one host at a time: enough for its documents, little enough for the host and for everybody else's documents.
PER_HOST = 2
EXTRACT_MB = 1_024
FETCH_BYTES_MAX = (
    190 << 20
)  # each of the documents that a worker fetches at once may take as much of the disk
INLINE_BYTES_MAX = 64 << 10  # as much content is saved with the output; more is a blob
FETCH_VERSION = 2  # 1 saved all content in the output
REUSE = 25  # documents that a process extracts: to start one takes as long as to read a page or two
NOTHING = Summary("", (), 0, "und", 0, 0, 0)
PARTIAL = "partial_text"  # text is there that was not read
EXTRACT_S, STALL_S, FETCH_S = 1_800.0, 120.0, 120.0


@frozen
class Source:
    """What a document's content is and where it came from. What was fetched is `content` if it is small, else the blob
    of this name."""

    name: str
    media_type: str
    url: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    content: bytes | None = None
    route: str | None = None  # the pipeline that takes what was fetched: image or mail; None: this one
    blob: str | None = None
    size: int = 0  # of the blob
    kind: str = ""  # its media type, as its content says


@frozen
class Extracted:
    """A whole document as Markdown with anchors, and what is known of it; nothing where `route` names the pipeline that
    does the work. `plain`: the text is not Markdown."""

    markdown: str
    summary: Summary
    route: str | None = None
    plain: bool = False


def host_of(doc: Document) -> str | None:
    """What documents of one host share."""
    host = urlsplit(doc.url).hostname if doc.url is not None else None
    return None if host is None else f"host:{host}"


documents = Pipeline(
    "document",
    concurrency_key=host_of,
    concurrency_per_key=PER_HOST,
    concurrency_until="fetch",
    content_stage="fetch",
)


@documents.stage(version=FETCH_VERSION, timeout=FETCH_S)
async def fetch(doc: Document, ctx: Context, previous: Source | None) -> Source:
    """The content of a URL, or what it was before if that is still so; what was handed in itself stays where it is."""
    if doc.url is None:
        by_name = doc.media_type == guess_type(doc.name)[0]  # which says nothing: its content tells
        said = "" if by_name else doc.media_type
        return Source(doc.name, said or ("text/markdown" if doc.kind == "text" else ""))
    source = await _fetched(doc.url, ctx, previous)
    if source is None:  # nobody asked whether it was
        raise Transient(
            f"{doc.url} answered that nothing changed, to a first request", code="response_broken"
        )
    source = replace(source, route=_route(source, ctx))
    if previous is not None and _same(source, previous):
        source = previous  # as it was, so that nothing is done again
    answer = "fetched" if previous is None else "unchanged" if source is previous else "refreshed"
    ctx.emit(Row("fetch", generation=ctx.generation, data={"answer": answer, "url": source.url}))
    return source


async def _fetched(url: str, ctx: Context, previous: Source | None) -> Source | None:
    """What is there now; `previous` where the server says that it did not change."""
    settings = current()
    room = rooms.new_room()
    try:
        found = await fetch_url(
            url,
            allow_loopback=settings.allow_loopback,
            etag=previous.etag if previous else None,
            last_modified=previous.last_modified if previous else None,
            size_max=min(settings.document_bytes_max, FETCH_BYTES_MAX),
            folder=room,
        )
        if isinstance(found, NotModified):
            return previous
        try:
            return await _source(found, room, ctx)
        finally:
            found.close()
    finally:
        await rooms.remove_soon(room)


async def _source(found: Fetched, room: Path, ctx: Context) -> Source:
    name = urlsplit(found.url).path.rpartition("/")[2]
    media_type = f"{found.media_type}; charset={found.charset}" if found.charset else found.media_type
    source = Source(name, media_type, found.url, found.etag, found.last_modified)
    head = await asyncio.to_thread(found.file.read, HEAD_BYTES)
    source = replace(source, kind=sniff(head, name, media_type))
    if found.size <= INLINE_BYTES_MAX:
        return replace(source, content=found.content)
    path = found.path
    if path is None:
        path = room / "content"
        await asyncio.to_thread(path.write_bytes, found.content)
    return replace(source, blob=await ctx.akeep(path), size=found.size)


def _same(one: Source, other: Source) -> bool:
    return (_digest(one), one.media_type, one.name, one.route) == (
        _digest(other), other.media_type, other.name, other.route
    )  # fmt: skip


def _digest(source: Source) -> str:
    return source.blob or hashlib.sha256(source.content or b"").hexdigest()


def _route(source: Source, ctx: Context) -> str | None:
    """The pipeline of the app for what was fetched, told by its content; None: this one."""
    kind = source.kind or sniff((source.content or b"")[:HEAD_BYTES], source.name, source.media_type)
    wanted = by_kind(kind, [name for name in (IMAGE, MAIL) if ctx.serves(name)])
    return None if wanted == documents.name else wanted


@documents.stage(
    version=VERSION,
    isolate=True,
    sandbox=True,
    memory_mb=EXTRACT_MB,
    timeout=EXTRACT_S,
    stall=STALL_S,
    reuse=REUSE,
    preload=MODULES,
)
def extract(doc: Document, ctx: Context, fetch: Source) -> Result[Extracted]:
    """Pages and chapters are saved as they are read; one that is saved is not read again. Images and archives of mail
    go to their pipeline, as a job of this document."""
    if fetch.route is not None:
        job = SpawnJob(fetch.route, fetch.route, doc.id)
        return Result(Extracted("", NOTHING, fetch.route), spawn=[job])
    content: bytes | Path | None = fetch.content
    if content is None:
        content = doc.path if fetch.blob is None else doc.file_of(fetch.blob)
    with open_reader(content, fetch.media_type, fetch.name) as reader:
        if reader.piecemeal:
            parts: list[Part] = list(ctx.items(reader.parts, key=str, run=reader.read))
            parts = _with_pictures(parts, reader, ctx)
        else:
            parts = [reader.read(key) for key in reader.parts]
        summary = summarise(parts, reader.title, reader.language)
        partial = f"{PARTIAL}: {summary.partial}" if summary.partial else ""
        return Result(Extracted(join(parts), summary, plain=not reader.markdown), degraded=partial)


def _with_pictures(parts: list[Part], reader: Reader, ctx: Context) -> list[Part]:
    """The same, with pages that were saved as pictures read where that can be done by now: OCR was installed since."""
    if not available() or not any(part.scanned for part in parts):
        return parts
    scanned = [part.key for part in parts if part.scanned]
    read = {part.key: part for part in ctx.items(scanned, key="ocr {}".format, run=reader.read)}
    return [read.get(part.key, part) for part in parts]


def is_routed(fetch: Source) -> bool:
    """Whether another pipeline does the work."""
    return fetch.route is not None


@documents.stage(
    version=cutting.VERSION,
    timeout=STAGE_S,
    isolate_from=CELL_BYTES,
    memory_mb=CHUNK_MB,
    gathers_if=("fetch", is_routed),
)
def chunk(doc: Document, extract: Extracted, gathered: Gathered) -> Result[list[Chunk]]:
    """Passages with their place in the text; the same text gives the same ids. What went to another pipeline has none
    here, and is as good as what that made of it."""
    if extract.route is not None:
        if gathered.jobs.get(extract.route) != "done":
            told = "mend the cause and requeue this document"
            raise Permanent("routed_failed", f"its job {extract.route} failed; see the attempts, {told}")
        # an image has the chunk that it is found by; of an archive its messages are found
        return Result([]) if extract.route == IMAGE else Result([], chunks=[])
    content_hash = hashlib.sha256(extract.markdown.encode()).hexdigest()
    parts = [(start, anchor, _page(anchor)) for start, anchor in anchors(extract.markdown)]
    title, plain = extract.summary.title, extract.plain
    return Result(cutting.chunks(extract.markdown, doc.id, content_hash, parts, title, plain=plain))


def _page(anchor: str) -> int | None:
    kind, _, number = anchor.partition("=")
    return int(number) if kind == "page" else None


index_chunks(documents)
