"""Answers of other services to remote stages, with the token of the event that asked them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from perdure.api.caller import Writer
from perdure.api.shared import PROBLEMS, Bounded, DocumentId, Service, acted
from perdure.api.views import Acted, Number, Text

router = APIRouter(
    prefix="/v3/documents/{id}/remote", tags=["remote stages"], responses=PROBLEMS, route_class=Bounded
)


class Answered(BaseModel):
    """Which claim is meant."""

    model_config = ConfigDict(extra="forbid")
    token: Annotated[int | str, Field(description="As the event had it.")]
    job: Text | None = Field(default=None, description="As the event had it, where it is a follow-up's.")


class Finished(Answered):
    """The stage is done."""

    output: Any = Field(description="What the stage made, as its type has it.")


class FailedStage(Answered):
    """The stage could not be done."""

    code: Annotated[str, Field(max_length=100)] = "remote_failed"
    message: Text = ""
    retryable: bool = True
    retry_after_s: Number | None = Field(default=None, ge=0, le=31_536_000, allow_inf_nan=False)


@router.post("/finish", response_model=Acted)
async def finish(service: Service, caller: Writer, id_: DocumentId, answer: Finished) -> Acted:
    """The stage is done; told again it is `repeated`, told late it is refused."""
    await service.status(id_, caller.org)
    said = await service.remote_finish(id_, answer.token, answer.output, org=caller.org, job=answer.job)
    return acted(id_, said)


@router.post("/fail", response_model=Acted)
async def fail(service: Service, caller: Writer, id_: DocumentId, answer: FailedStage) -> Acted:
    """It could not be done; decided like any other failure."""
    await service.status(id_, caller.org)
    said = await service.remote_fail(
        id_, answer.token, code=answer.code, message=answer.message, retryable=answer.retryable,
        retry_after_s=answer.retry_after_s, org=caller.org, job=answer.job,
    )  # fmt: skip
    return acted(id_, said)


@router.post("/beat", response_model=Acted)
async def beat(service: Service, caller: Writer, id_: DocumentId, answer: Answered) -> Acted:
    """It is being worked on; the lease begins anew."""
    await service.status(id_, caller.org)
    return acted(id_, await service.remote_beat(id_, answer.token, org=caller.org, job=answer.job))
