"""Documents on their way in: one as JSON, form or raw body, or many in one transaction."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from perdure.api.caller import Caller, Writer
from perdure.api.forms import Received
from perdure.api.jsons import aside, read, validated
from perdure.api.problems import Refused
from perdure.api.receiving import Limits, body_size, json_object, received
from perdure.api.shared import PROBLEMS, OnceKey, Service, problems
from perdure.api.views import Asked, Bulk, NewDocument, Taken, TakenAll
from perdure.engine.intake import naming
from perdure.errors import InputInvalid
from perdure.service import AddOptions
from perdure.store.operations import Added, Once

router = APIRouter(prefix="/v3/documents", tags=["documents"], responses=PROBLEMS)
TYPES = {
    "html": "text/html", "markdown": "text/markdown", "text": "text/plain", "pdf": "application/pdf",
    "epub": "application/epub+zip", "eml": "message/rfc822", "mbox": "application/mbox",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}  # fmt: skip
KINDS = ("url", "file", "json", "document")  # said of what is there to be seen anyway
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
LISTED = "body.documents"  # as errors of the framework name it
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
    async with received(request, limits, caller.org) as body:
        entry, pipeline = _entry(body, asked), asked.pipeline
        size = body_size(request)
        if body.fields or body.path is None:
            fields = body.fields
            if body.path is not None:
                fields = await aside(size, _of_form, fields, limits.json_values)
            new = await aside(size, validated, NewDocument, fields)
            entry, pipeline = await aside(size, _options, new, body), new.pipeline
        once = await aside(size, _once, caller, idempotency_key, [(pipeline, entry)], body.digest)
        added = (await service.add_once([(pipeline, {**entry, "org": caller.org})], once))[0]
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
    async with json_object(request, request.app.state.limits, caller.org) as found:
        size = body_size(request)
        bulk = await aside(size, validated, Bulk, found)
        entries = await aside(size, _entries, bulk)
        once = await aside(size, _once, caller, idempotency_key, entries, "")
        own: list[tuple[Any, AddOptions]] = [(p, {**entry, "org": caller.org}) for p, entry in entries]
        added = await service.add_once(own, once, LISTED)
        return TakenAll(documents=[_taken(one) for one in added])


# --- what came in ----------------------------------------------------------------------------


def _entry(body: Received, asked: Asked) -> AddOptions:
    """A raw body: the query says how to treat it."""
    return _treated(asked, {"path": body.path} if body.path else {}, body)


def _entries(bulk: Bulk) -> list[tuple[str, AddOptions]]:
    """What each of many is; an error names the entry."""
    found = []
    for number, new in enumerate(bulk.documents):
        with naming(f"{LISTED}.{number}"):
            found.append((new.pipeline, _options(new, Received())))
    return found


def _of_form(fields: dict[str, Any], values_max: int) -> dict[str, Any]:
    """Fields of a form are text; numbers and flags are understood as they are, `meta` and `json` are JSON."""
    found = dict(fields)
    for name in ("meta", "json"):
        if name in found:
            try:
                found[name] = read(found[name], values_max)
            except Refused as error:
                raise Refused(error.status, error.code, f"the field {name}: {error}") from None
    return found


def _options(new: NewDocument, body: Received) -> AddOptions:
    words = {"url": new.url, "text": new.text, "json": new.data, "file": new.file or body.path}
    named = [word for word, value in words.items() if value is not None]
    if len(named) != 1:
        got = " and ".join(named) or "nothing"
        raise InputInvalid(f"hand in exactly one of {', '.join(words)}; got {got}")
    given: AddOptions = {}
    if new.url is not None:
        given["url"] = new.url
    if new.text is not None:
        given["text"] = new.text
    if new.data is not None:
        given["json"] = new.data
    if new.file is not None:
        try:
            given["data"] = base64.b64decode(new.file, validate=True)
        except (binascii.Error, ValueError):
            raise Refused(422, "request_invalid", "file is not base64; large files go as a form") from None
    if body.path is not None:
        given["path"] = body.path
    return _treated(new, given, body)


def _treated(asked: Asked, given: AddOptions, body: Received) -> AddOptions:
    given["name"] = asked.name or body.filename or ("upload" if "path" in given else "")
    if media_type := _media_type(asked.type) or body.media_type:
        given["media_type"] = media_type
    for word in ("collection", "meta", "key", "run_at", "attempts"):
        if (value := getattr(asked, word)) is not None:
            given[word] = value
    given["dedupe"], given["priority"], given["delay_s"] = asked.dedupe, asked.priority, asked.delay_s
    return given


def _media_type(said: str | None) -> str:
    if said is None or said in KINDS:
        return ""
    if said in TYPES or "/" in said:
        return TYPES.get(said, said)
    known = ", ".join(sorted((*TYPES, *KINDS)))
    raise Refused(422, "type_unknown", f"type {said!r} is neither a media type nor one of {known}")


def _once(caller: Caller, key: str | None, entries: list[tuple[str, AddOptions]], digest: str) -> Once | None:
    """The key of the request with a hash of all that it asks for."""
    if key is None:
        return None
    asked = [(p, {k: v for k, v in entry.items() if k != "path"}) for p, entry in entries]
    text = json.dumps([asked, digest], sort_keys=True, default=_hashed)
    return Once(caller.org, key, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())


def _hashed(value: object) -> str:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)


def _taken(added: Added) -> Taken:
    return Taken(id=added.id, answer=added.answer)  # type: ignore[arg-type]
