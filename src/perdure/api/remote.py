"""Answers of other services to remote stages, with the token of the event that asked them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field

from perdure.api.caller import Writer
from perdure.api.entries import How, of_finish
from perdure.api.receiving import Limits, json_body, read_body
from perdure.api.shared import PROBLEMS, Bounded, DocumentId, Service, acted
from perdure.api.views import Acted, Answered, Number, Text

router = APIRouter(
    prefix="/v3/documents/{id}/remote", tags=["remote stages"], responses=PROBLEMS, route_class=Bounded
)


class FailedStage(Answered):
    """The stage could not be done."""

    code: Annotated[str, Field(max_length=100)] = "remote_failed"
    message: Text = ""
    retryable: bool = True
    retry_after_s: Number | None = Field(default=None, ge=0, le=31_536_000, allow_inf_nan=False)


@router.post("/finish", response_model=Acted,
             openapi_extra={"requestBody": {"required": True, "content": {
                 "application/json": {"schema": {"$ref": "#/components/schemas/Finished"}}}}})  # fmt: skip
async def finish(request: Request, service: Service, caller: Writer, id_: DocumentId) -> Acted:
    """The stage is done; told again it is `repeated`, told late it is refused."""
    limits: Limits = request.app.state.limits
    async with json_body(request, limits) as body:
        how = How(limits.json_values, room=body.room)
        token, job, output = await read_body(request, caller.org, body, of_finish, body.json or b"", how)
        id_ = (await service.status(id_, caller.org)).id
        return acted(id_, await service.remote_finish(id_, token, output, org=caller.org, job=job))


@router.post("/fail", response_model=Acted)
async def fail(service: Service, caller: Writer, id_: DocumentId, answer: FailedStage) -> Acted:
    """It could not be done; decided like any other failure."""
    id_ = (await service.status(id_, caller.org)).id
    said = await service.remote_fail(
        id_, answer.token, code=answer.code, message=answer.message, retryable=answer.retryable,
        retry_after_s=answer.retry_after_s, org=caller.org, job=answer.job,
    )  # fmt: skip
    return acted(id_, said)


@router.post("/beat", response_model=Acted)
async def beat(service: Service, caller: Writer, id_: DocumentId, answer: Answered) -> Acted:
    """It is being worked on; the lease begins anew."""
    id_ = (await service.status(id_, caller.org)).id
    return acted(id_, await service.remote_beat(id_, answer.token, org=caller.org, job=answer.job))
