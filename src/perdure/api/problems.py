"""Errors as problem+json (RFC 9457): a stable `code`, a status that fits it, and a sentence that says what to do."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from perdure.api.connections import LINGER_S
from perdure.api.metered import stop_listening
from perdure.api.refused import ERRORS_MAX, Invalid, Refused
from perdure.errors import (
    DocumentUnknown,
    InputTooLarge,
    MoveForbidden,
    PerdureError,
    StageUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    Unstorable,
    UsageError,
)

log = logging.getLogger("perdure.api")
MEDIA_TYPE = "application/problem+json"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: What the databases call it when their disk is full.
FULL_ERRORS = ("FullError", "DiskFullError")
LARGE_BYTES = 1 << 20
#: What an answer says about a request: enough to mend it, and no echo of it.
WHERE_CHARS_MAX, WHAT_CHARS_MAX, DETAIL_CHARS_MAX = 200, 300, 4000
Handler = Callable[[Request, Exception], Awaitable[Response]]
RETRY_S = {StoreBusy: 1, StoreUnavailable: 5}
AWAY: dict[type[PerdureError], str] = {
    StoreBusy: "the store is busy; try again as Retry-After says",
    StoreUnavailable: "the store cannot be reached; try again as Retry-After says, the server's log says why",
}


class Problem(BaseModel):
    """What went wrong and what to do about it."""

    type: str = Field(examples=["urn:perdure:document_unknown"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    code: str = Field(examples=["document_unknown"], description="Stable; listed in the reference.")
    detail: str = Field(examples=["there is no document 0197…; check the id"])
    errors: list[dict[str, Any]] | None = Field(
        default=None, description=f"Where the request is wrong; the first {ERRORS_MAX} places."
    )
    errors_left: int | None = Field(default=None, description="How many errors are left out, at least.")


def status_of(error: PerdureError) -> int:
    """The HTTP status that an error of ours has."""
    match error:
        case Refused(status=status):
            return status
        case DocumentUnknown() | StageUnknown():
            return 404
        case InputTooLarge():
            return 413
        case MoveForbidden():
            return 409
        case Unstorable() | UsageError():
            return 422
        case StoreError():
            return 503
        case _:
            return 500


def problem(
    status: int, code: str, detail: str, *, errors: list[dict[str, Any]] | None = None, left: int = 0,
    headers: dict[str, str] | None = None,
) -> JSONResponse:  # fmt: skip
    """The answer for one error."""
    body: dict[str, Any] = {
        "type": f"urn:perdure:{code}", "title": HTTPStatus(status).phrase, "status": status, "code": code,
        "detail": _cut(detail, DETAIL_CHARS_MAX),
    }  # fmt: skip
    if errors is not None:
        body["errors"] = errors
    if left:
        body["errors_left"] = left
    return JSONResponse(body, status, headers, MEDIA_TYPE)


async def _ours(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, PerdureError):
        raise error
    if isinstance(error, Invalid):
        return invalid(error.errors, error.left)
    if _full(error.__cause__):
        return _no_room()
    status, headers = status_of(error), dict(getattr(error, "headers", {}))
    if isinstance(error, StoreError) and status == 503:
        headers["Retry-After"] = str(RETRY_S.get(type(error), 10))
    said = str(error)
    if type(error) in AWAY:  # addresses, users and files of the server are not for whoever asks
        log.warning("a request was put off: %s", said)
        said = AWAY[type(error)]
    return problem(status, error.code, said or error.code, headers=headers)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    return invalid(error.errors() if isinstance(error, RequestValidationError) else [])


def invalid(found: Any, left: int = 0) -> JSONResponse:
    """The answer to a request whose parts are not what they should be."""
    errors = [
        {"where": _cut(".".join(_cut(str(part), WHERE_CHARS_MAX) for part in one["loc"]), WHERE_CHARS_MAX),
         "what": _cut(one["msg"], WHAT_CHARS_MAX)}
        for one in found[:ERRORS_MAX]
    ]  # fmt: skip
    said = "; ".join(f"{one['where']}: {one['what']}" for one in errors[:5])
    left += len(found) - len(errors)
    return problem(422, "request_invalid", said or "the request cannot be read", errors=errors, left=left)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


async def _http(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(getattr(error, "headers", None) or {})
    match status:
        case 400:  # the framework could not read a body
            return problem(422, "request_invalid", "the body is not JSON")
        case 404:
            return problem(404, "route_unknown", "there is no such route; GET /openapi.json lists all")
        case 405:
            headers["Allow"] = ", ".join(_methods(request))
            return problem(405, "method_not_allowed", f"this route has {headers['Allow']}", headers=headers)
    return problem(status, "request_invalid", str(getattr(error, "detail", "")), headers=headers)


def _methods(request: Request) -> list[str]:
    """What may be asked of this path; the framework knows only the first of its routes."""
    paths, asked = request.app.openapi()["paths"], request.url.path
    fitting = [asked] if asked in paths else [path for path in paths if compile_path(path)[0].match(asked)]
    return sorted({method.upper() for path in fitting for method in paths[path]})


async def _unexpected(_: Request, error: Exception) -> JSONResponse:
    if _full(error):
        return _no_room()
    log.error("a request failed: %r", error, exc_info=error)
    # the server closes the connection after an unexpected error: a client that used it again would be cut off
    headers = {"Connection": "close"}
    return problem(500, "unexpected", "something went wrong here; it is in the server's log", headers=headers)


def _full(error: BaseException | None) -> bool:
    return type(error).__name__ in FULL_ERRORS or (isinstance(error, OSError) and error.errno in FULL)


def _no_room() -> JSONResponse:
    return problem(507, "storage_full", "the server's disk is full; nothing was taken in, try again later")


def handle_errors(app: FastAPI) -> None:
    """Every error of the application leaves it as a problem."""
    app.add_exception_handler(PerdureError, _closing(_ours))
    app.add_exception_handler(RequestValidationError, _closing(_invalid))
    app.add_exception_handler(HTTPException, _closing(_http))
    app.add_exception_handler(OSError, _closing(_unexpected))
    app.add_exception_handler(Exception, _closing(_unexpected))


def _closing(handle: Handler) -> Handler:
    """Whoever is refused while a large or endless body comes is not listened to for long."""

    async def answer(request: Request, error: Exception) -> Response:
        response = await handle(request, error)
        length = request.headers.get("content-length", "0")
        if "transfer-encoding" in request.headers or not length.isdigit() or int(length) > LARGE_BYTES:
            return LastWord(response.body, response.status_code, {**response.headers, "Connection": "close"})
        return response

    return answer


class LastWord(Response):
    """An answer after which the connection is closed; not at once, or it would be lost to a client that still sends."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                if (await receive()).get("more_body"):
                    stop_listening(scope)
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b""})
