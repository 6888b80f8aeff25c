"""What every route needs: the app behind it, the id in its path, the problems it may answer with."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, get_args

from fastapi import Depends, Header, Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from perdure.api.jsons import LIGHT_MARKS, read, validated
from perdure.api.problems import MEDIA_TYPE, Problem
from perdure.api.receiving import Limits, pieces
from perdure.api.views import Acted
from perdure.errors import DocumentUnknown, MoveForbidden
from perdure.service import AsyncPerdure

NDJSON = "application/x-ndjson"
CHECKED_BYTES = 16 << 10  # the framework lists all errors of a smaller body, after it has looked at the scope
ACT_BYTES = 1 << 20  # of a body that says what to do; ids of a thousand documents are a fifth of it
_ID = re.compile(r"[\x21-\x7e]{1,200}")


# Awaited although they wait for nothing: plain functions would each be sent through a thread.


async def _service(request: Request) -> AsyncPerdure:
    service: AsyncPerdure = request.app.state.service
    return service


async def _document_id(
    id_: Annotated[
        str, Path(alias="id", description="A document's id, or 6 characters or more of its beginning.")
    ],
) -> str:
    """What can be no id is nobody's id."""
    if _ID.fullmatch(id_) is None:
        raise DocumentUnknown(f"there is no document {id_!r}; check the id")
    return id_


Service = Annotated[AsyncPerdure, Depends(_service)]
DocumentId = Annotated[str, Depends(_document_id)]
OnceKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$",
        description="The same key again gives the same answer and does nothing; with another body it is refused.",
    ),
]  # fmt: skip


class Bounded(APIRoute):
    """A route with a small body, which the framework reads before it asks for a key and without a limit: here the key
    comes first, and no more is read than is allowed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            await request.app.state.gate.admit(request)
            limits: Limits = request.app.state.limits
            body = b"".join(
                [piece async for piece in pieces(request, limits, min(ACT_BYTES, limits.json_bytes))]
            )
            request._body = body
            if body:
                found = read(body, min(limits.json_values, LIGHT_MARKS))
                if found is not None:  # as good as no body
                    request._json = found
                    if len(body) > CHECKED_BYTES:
                        _check(self, found)
            return await handle(request)

        return handle if self.body_field is None else bounded


def _check(route: APIRoute, found: Any) -> None:
    """Refuse a wrong body with its first errors alone; the framework looks again at one that is right."""
    wanted: Any = route.body_field.field_info.annotation if route.body_field else None
    for model in get_args(wanted) or (wanted,):  # of `Act | None` that which is no None
        if isinstance(model, type) and issubclass(model, BaseModel):
            validated(model, found)


def acted(id_: str, answer: str) -> Acted:
    """What a verb answered; MoveForbidden where it refused."""
    if answer.startswith("refused"):
        raise MoveForbidden(answer.removeprefix("refused: "))
    return Acted(id=id_, answer=answer)


def problems(said: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    """Statuses of errors with what they mean, as routes describe them."""
    content = {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
    return {status: {"description": words, "content": content} for status, words in said.items()}


PROBLEMS = problems({
    401: "No key, or one that is not good.", 403: "The key lacks the scope.", 404: "No such document here.",
    409: "Its state does not allow that.", 413: "Too large.", 415: "No known form.", 422: "Not as it should be.",
    429: "Too often; see Retry-After.", 503: "The store is away; see Retry-After.",
})  # fmt: skip
