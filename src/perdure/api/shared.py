"""What every route needs: the app behind it, the id in its path, the problems it may answer with."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, get_args

from fastapi import Depends, Header, Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from perdure.api.jsons import SMALL_CHARS, aside, validated
from perdure.api.problems import MEDIA_TYPE, Problem
from perdure.api.receiving import json_value
from perdure.api.views import Acted
from perdure.errors import DocumentUnknown, MoveForbidden
from perdure.service import AsyncPerdure

NDJSON = "application/x-ndjson"
_ID = re.compile(r"[\x21-\x7e]{1,200}")


# Awaited although they wait for nothing: plain functions would each be sent through a thread.


async def _service(request: Request) -> AsyncPerdure:
    service: AsyncPerdure = request.app.state.service
    return service


async def _document_id(id_: Annotated[str, Path(alias="id", description="A document's id.")]) -> str:
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
    """A route whose body the framework reads, which it does before it asks for a key and without a limit: here the key
    comes first, and no more is read than is allowed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            caller = await request.app.state.gate.caller(request)
            async with json_value(request, request.app.state.limits, caller.org) as (body, found):
                if found is not None:
                    request._json = found
                    if len(body) > SMALL_CHARS:
                        await aside(len(body), _check, self, found)
                request._body = body
                return await handle(request)

        return handle if self.body_field is None else bounded


def _check(route: APIRoute, found: Any) -> None:
    """Have a large wrong body refused where it holds nobody up; the framework asks again, of one that is right."""
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
