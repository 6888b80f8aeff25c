"""Documents on their way in: one as JSON, form or raw body, or many in one transaction."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from perdure.api.caller import Caller, Writer
from perdure.api.entries import LISTED, Asking, How, of_bulk, of_form, of_json, of_raw
from perdure.api.receiving import Limits, json_body, read_body, received
from perdure.api.shared import PROBLEMS, OnceKey, Service, problems
from perdure.api.views import Asked, Taken, TakenAll
from perdure.service import EncodedOptions
from perdure.store.operations import Added, Once

router = APIRouter(prefix="/v3/documents", tags=["documents"], responses=PROBLEMS)
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/NewDocument"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "type": {"type": "string"},
                        "name": {"type": "string"},
                        "collection": {"type": "string"},
                        "pipeline": {"type": "string"},
                        "meta": {"type": "string", "description": "A JSON object."},
                    },
                }
            },
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
KNOWN = {"model": Taken, "description": "It is there already; `answer` says what came of it."}
UPLOAD_PROBLEMS = problems({408: "The body came too slowly.", 507: "The server's disk is full."})


@router.post(
    "", status_code=201, response_model=Taken, responses={200: KNOWN, **UPLOAD_PROBLEMS}, openapi_extra=BODY
)
async def create(
    request: Request, response: Response, service: Service, caller: Writer, asked: Annotated[Asked, Query()],
    idempotency_key: OnceKey = None,
) -> Taken:  # fmt: skip
    """Take a document in: a URL or text as JSON, a file as a form or as the raw body. Durable when it is answered."""
    limits: Limits = request.app.state.limits
    async with received(request, limits) as body:
        how = How(limits.json_values, idempotency_key is not None, body.room)
        if body.json is not None:
            asking = await read_body(request, caller.org, body, of_json, body.json, how)
        elif body.fields or body.path is None:
            asking = await read_body(request, caller.org, body, of_form, body, how)
        else:
            asking = of_raw(body, asked, how)
        added = (await service.add_once(_own(caller, asking), _once(caller, idempotency_key, asking)))[0]
    response.status_code = 201 if added.answer == "added" else 200
    response.headers["Location"] = f"/v3/documents/{added.id}"
    return _taken(added)


@router.post("/bulk", status_code=201, response_model=TakenAll,
             openapi_extra={"requestBody": {"required": True, "content": {
                 "application/json": {"schema": {"$ref": "#/components/schemas/Bulk"}}}}})  # fmt: skip
async def create_many(
    request: Request, service: Service, caller: Writer, idempotency_key: OnceKey = None
) -> TakenAll:
    """Take up to 1,000 documents in, in one transaction; the answers are in order."""
    limits: Limits = request.app.state.limits
    async with json_body(request, limits) as body:
        how = How(limits.json_values, idempotency_key is not None, body.room)
        asking = await read_body(request, caller.org, body, of_bulk, body.json or b"", how)
        once = _once(caller, idempotency_key, asking)
        added = await service.add_once(_own(caller, asking), once, LISTED)
        return TakenAll(documents=[_taken(one) for one in added])


def _own(caller: Caller, asking: Asking) -> list[tuple[str, EncodedOptions]]:
    for _, options in asking.entries:
        options["org"] = caller.org
    return asking.entries


def _once(caller: Caller, key: str | None, asking: Asking) -> Once | None:
    return None if key is None else Once(caller.org, key, asking.request)


def _taken(added: Added) -> Taken:
    return Taken(id=added.id, answer=added.answer, state=added.state)  # type: ignore[arg-type]
