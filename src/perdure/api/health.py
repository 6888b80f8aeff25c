"""Whether the server lives, whether it can do its work, and what it counts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from perdure.api.caller import Gate, bearer
from perdure.api.shared import PROBLEMS, Service
from perdure.watch.render import CONTENT_TYPE

router = APIRouter(tags=["health"])
NUMBERS = {
    "description": "As Prometheus reads them.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


class Health(BaseModel):
    status: str = Field(examples=["ok"])


class Ready(BaseModel):
    """The store answers; what else would keep documents waiting is said, too."""

    status: str = Field(examples=["ready"])
    schema_fits: bool = Field(description="False: `perdure migrate`, or a newer program.")
    workers_alive: int = Field(description="0: documents are taken in, and wait.", examples=[1])


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", response_model=Ready, responses={503: PROBLEMS[503]})
async def readyz(service: Service) -> Ready:
    """The store answers; 503 where it does not."""
    found = await service.readiness()
    return Ready(status="ready", schema_fits=found.schema_fits, workers_alive=found.workers_alive)


@router.get("/metrics", response_class=Response, responses={**PROBLEMS, 200: NUMBERS})
async def metrics(request: Request, service: Service, _: Annotated[object, Depends(bearer)]) -> Response:
    """What this server counts and what is true of the whole store. Scope `operate`, or nobody's where
    PERDURE_METRICS_OPEN says so."""
    gate: Gate = request.app.state.gate
    if not service.settings.metrics_open:
        await gate.enter(request, "operate")
    return Response(await service.measure().text(), media_type=CONTENT_TYPE)
