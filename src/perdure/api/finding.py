"""What documents became: chunks, connections, content, and search over all of it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import FileResponse

from perdure.api.caller import Reader
from perdure.api.shared import PROBLEMS, DocumentId, Service
from perdure.api.views import Chunks, ChunkView, Connections, ConnectionView, Hits, HitView, Rows, RowView
from perdure.errors import StageUnknown
from perdure.operate.desk import unknown

router = APIRouter(prefix="/v3", responses=PROBLEMS)
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
async def chunks(service: Service, caller: Reader, id_: DocumentId) -> Chunks:
    """The document's passages, in order."""
    await service.status(id_, caller.org)
    found = await service.chunks(id_, caller.org)
    return Chunks(chunks=[ChunkView.model_validate(one, from_attributes=True) for one in found])


@router.get("/documents/{id}/connections", response_model=Connections, tags=["documents"])
async def connections(service: Service, caller: Reader, id_: DocumentId) -> Connections:
    """Passages of other documents that are about the same."""
    await service.status(id_, caller.org)
    found = await service.connections(id_, None, caller.org)
    return Connections(
        connections=[ConnectionView.model_validate(one, from_attributes=True) for one in found]
    )


@router.get("/documents/{id}/rows/{name}", response_model=Rows, tags=["documents"])
async def rows(service: Service, caller: Reader, id_: DocumentId, name: str) -> Rows:
    """What stages emitted under this name, in the order of their keys; empty where there is nothing."""
    await service.status(id_, caller.org)
    found = await service.rows(id_, name, caller.org) if name.isprintable() else []
    return Rows(rows=[RowView(key=key, data=data) for key, data in found])


@router.get("/documents/{id}/content", response_class=Response, tags=["documents"])
async def content(service: Service, caller: Reader, id_: DocumentId) -> Response:
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
        return FileResponse(path, media_type=kind, headers=SAFE)
    return Response(await service.blobs.get(found.blob), media_type=kind, headers=SAFE)


@router.get("/documents/{id}/stages/{stage}", tags=["documents"])
async def output(
    service: Service, caller: Reader, id_: DocumentId, stage: str,
    pipeline: Annotated[str | None, Query(max_length=200, description="That of a follow-up job.")] = None,
) -> Any:  # fmt: skip
    """What a stage of the document, or of a job that follows from it, saved, as JSON."""
    from pydantic import ConfigDict, TypeAdapter

    await service.status(id_, caller.org)
    if not stage.isprintable():
        raise StageUnknown(f"there is no stage {stage!r}")
    found = await service.output(id_, stage, caller.org, pipeline)
    made = TypeAdapter(Any, config=ConfigDict(ser_json_bytes="base64")).dump_json(found)
    return Response(made, media_type="application/json")
