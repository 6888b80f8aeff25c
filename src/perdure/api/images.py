"""The smaller copies of an image, as images; and what is known of it, for the document's answer."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Response
from pydantic import BaseModel, Field

from perdure.api.caller import Reader
from perdure.api.shared import PROBLEMS, DocumentId, Service
from perdure.errors import StageUnknown
from perdure.service import AsyncPerdure
from perdure.store.records import Status

router = APIRouter(prefix="/v3/documents", tags=["documents"], responses=PROBLEMS)
FORMATS = ("avif", "webp")
#: Fields of the row that say how the record came about, and are no part of it.
BESIDE = ("degraded", "model")
IMAGE = {
    "description": "The image.",
    "content": {f"image/{name}": {"schema": {"type": "string", "format": "binary"}} for name in FORMATS},
}
UNCHANGED = {"description": "It is as the ETag says."}


class VariantView(BaseModel):
    """A smaller copy of an image."""

    name: str = Field(pattern="^[a-z]{1,20}$")
    format: str = Field(pattern="^(avif|webp)$")
    media_type: str
    width: int
    height: int
    bytes: int
    sha256: str
    path: str


class Variants(BaseModel):
    variants: list[VariantView]


@router.get("/{id}/variants", response_model=Variants)
async def variants(service: Service, caller: Reader, id_: DocumentId) -> Variants:
    """The smaller copies of an image, the largest first; none where it is no image, or has none yet."""
    await service.status(id_, caller.org)
    return Variants(variants=await _variants(service, id_, caller.org))


@router.get("/{id}/variants/{name}", response_class=Response, responses={200: IMAGE, 304: UNCHANGED})
async def variant(
    service: Service, caller: Reader, id_: DocumentId,
    name: Annotated[str, Path(max_length=50, description="thumbnail, medium or large; .webp or .avif, or by Accept.")],
    accept: Annotated[str, Header(max_length=1000)] = "",
    if_none_match: Annotated[str, Header(max_length=1000)] = "",
) -> Response:  # fmt: skip
    """One of them, as an image."""
    await service.status(id_, caller.org)
    size, dot, format_ = name.partition(".")
    wanted = format_ if dot else "avif" if "image/avif" in accept else "webp"
    known = {(one.name, one.format): one for one in await _variants(service, id_, caller.org)}
    if (found := known.get((size, wanted))) is None:
        there = ", ".join(f"{a}.{b}" for a, b in known) or "none"
        raise StageUnknown(
            f"document {id_} has no variant {name!r} (there are: {there})", code="variant_unknown"
        )
    headers = {
        "ETag": f'"{found.sha256}"', "Cache-Control": "private, no-cache", "Vary": "Accept, Authorization",
        "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'",
        "Content-Disposition": f'inline; filename="{found.name}.{found.format}"',
    }  # fmt: skip
    if found.sha256 in re.findall(r'"([^"]*)"', if_none_match) or if_none_match.strip() == "*":
        return Response(status_code=304, headers=headers)
    made: list[Any] = await service.output(id_, "make", caller.org, "generate-variants")
    content = {(one.name, one.format): one.content for one in made}[size, wanted]
    return Response(content, media_type=found.media_type, headers=headers)


async def _variants(service: AsyncPerdure, id_: str, org: str) -> list[VariantView]:
    rows = await service.rows(id_, "variants", org)
    views = [view for key, data in rows if (view := _view(id_, key, data)) is not None]
    return sorted(views, key=lambda one: (-one.width * one.height, one.name, one.format))


def _view(id_: str, key: dict[str, Any], data: Any) -> VariantView | None:
    """The row as a variant; None for one that a pipeline of somebody's own called so."""
    try:
        place = f"{key['name']}.{key['format']}"
        return VariantView.model_validate(
            {
                **data,
                **key,
                "media_type": f"image/{key['format']}",
                "path": f"/v3/documents/{id_}/variants/{place}",
            }
        )
    except (KeyError, TypeError, ValueError):
        return None


async def described(service: AsyncPerdure, status: Status) -> dict[str, Any]:
    """What the document's answer has of an image: `metadata`, the record of what is to be seen or the one that stands
    for it, and `facts`. Nothing of other documents; of one that was fetched, once it is done."""
    if status.pipeline != "image" and not (status.pipeline == "document" and status.state == "done"):
        return {}
    rows = await service.rows(status.id, "metadata", status.org)
    if not rows or not isinstance(rows[0][1], dict):
        return {}
    facts = await service.rows(status.id, "facts", status.org)
    record = {name: value for name, value in rows[0][1].items() if name not in BESIDE}
    return {"metadata": record, "facts": facts[0][1] if facts and isinstance(facts[0][1], dict) else None}
