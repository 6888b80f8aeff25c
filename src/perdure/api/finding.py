"""What documents became: chunks, connections, content, and search over all of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel

from perdure.api.caller import Caller, Reader
from perdure.api.downloads import Download, Pieces
from perdure.api.shared import PROBLEMS, DocumentId, Service
from perdure.api.standard import standard
from perdure.api.views import Chunks, ChunkView, Connections, ConnectionView, Hits, HitView, Rows, RowView
from perdure.errors import StageUnknown
from perdure.operate.desk import unknown
from perdure.store.records import Part

router = APIRouter(prefix="/v3", responses=PROBLEMS)
PAGE = 1000
After = Annotated[str, Query(pattern="^[0-9]{1,9}$", description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=PAGE)]
#: What came in is sent as what it is said to be, and never looked at as a page of ours.
SAFE = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}


@router.get("/search", response_model=Hits, tags=["search"])
async def search(
    service: Service, caller: Reader,
    q: Annotated[str, Query(min_length=1, max_length=2000, description='Words; "in quotes" a phrase.')],
    collection: Annotated[str | None, Query(max_length=1000)] = None,
    document: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 10,
) -> Hits:  # fmt: skip
    """The passages that fit best, by words and by meaning."""
    found = await service.search(q, org=caller.org, collection=collection, document=document, limit=limit)
    hits = [HitView.model_validate(one, from_attributes=True) for one in found]
    return Hits(hits=hits, fits=bool(hits))


@router.get("/documents/{id}/chunks", response_model=Chunks, tags=["documents"])
async def chunks(
    service: Service, caller: Reader, id_: DocumentId, after: After = "0", limit: Limit = PAGE
) -> Response:
    """The document's passages, in order."""
    status, part = await service.status(id_, caller.org), _part(after, limit)
    found = await service.store.chunks(caller.org, status.id, part)

    def page() -> Chunks:
        views = [ChunkView.model_validate(one, from_attributes=True) for one in found[:limit]]
        return Chunks(chunks=views, next=_next(part, len(found)))

    return await _answer(page)


@router.get("/documents/{id}/connections", response_model=Connections, tags=["documents"])
async def connections(
    service: Service, caller: Reader, id_: DocumentId, after: After = "0", limit: Limit = PAGE
) -> Response:
    """Passages of other documents that are about the same."""
    status, part = await service.status(id_, caller.org), _part(after, limit)
    found = await service.store.connections(caller.org, status.id, None, part)

    def page() -> Connections:
        views = [ConnectionView.model_validate(one, from_attributes=True) for one in found[:limit]]
        return Connections(connections=views, next=_next(part, len(found)))

    return await _answer(page)


@router.get("/documents/{id}/rows/{name}", response_model=Rows, tags=["documents"])
async def rows(
    service: Service, caller: Reader, id_: DocumentId, name: str, after: After = "0", limit: Limit = PAGE
) -> Response:
    """What stages emitted under this name, in the order of their keys; empty where there is nothing."""
    status, part = await service.status(id_, caller.org), _part(after, limit)
    found = await service.store.rows(caller.org, status.id, name, part) if name.isprintable() else []

    def page() -> Rows:
        views = [RowView(key=json.loads(key), data=json.loads(data)) for key, data in found[:limit]]
        return Rows(rows=views, next=_next(part, len(found)))

    return await _answer(page)


def _part(after: str, limit: int) -> Part:
    return Part(int(after), limit + 1)  # one more, which tells whether there is a next page


def _next(part: Part, found: int) -> str | None:
    return str(part.first + part.most - 1) if found == part.most else None


async def _answer(page: Callable[[], BaseModel]) -> Response:
    """Make the page beside the event loop: a thousand passages take it from others."""
    made = await asyncio.to_thread(lambda: page().model_dump_json())
    return Response(made, media_type="application/json")


@router.get("/documents/{id}/content", response_class=Response, tags=["documents"])
async def content(request: Request, service: Service, caller: Reader, id_: DocumentId) -> Response:
    """What came in, byte for byte."""
    status = await service.status(id_, caller.org)
    found = await service.store.document(caller.org, status.id)
    if found is None:
        raise unknown(id_)
    kind = (
        found.media_type
        if "/" in found.media_type and found.media_type.isascii() and found.media_type.isprintable()
        else "application/octet-stream"
    )
    if found.inline is not None or found.blob is None:
        return Response(found.inline or b"", media_type=kind, headers=SAFE)
    path = await service.blobs.path(found.blob)
    if path is not None:
        return _download(request, caller, FileResponse(path, media_type=kind, headers=SAFE))
    return _download(request, caller, Pieces(service.blobs.stream(found.blob), kind, SAFE, found.size))


@router.get("/documents/{id}/stages/{stage}", tags=["documents"])
async def output(
    request: Request, service: Service, caller: Reader, id_: DocumentId, stage: str,
    pipeline: Annotated[str | None, Query(max_length=200, description="That of a follow-up job.")] = None,
) -> Any:  # fmt: skip
    """What a stage of the document, or of a job that follows from it, saved, as JSON."""
    await service.status(id_, caller.org)
    if not stage.isprintable():
        raise StageUnknown(f"there is no stage {stage!r}")
    saved = await service.output_saved(id_, stage, caller.org, pipeline)
    return _download(request, caller, Pieces(standard(saved), "application/json", {}))


def _download(request: Request, caller: Caller, answer: Response) -> Download:
    return Download(
        answer, request.app.state.downloads, caller.org, request.app.state.limits.download_pause_s
    )
