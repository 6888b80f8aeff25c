"""Whether the server lives, whether it can do its work, and what it counts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from perdure.api.caller import Gate, bearer
from perdure.api.shared import PROBLEMS, Service
from perdure.api.workers_beside import WorkersBeside
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

    status: str = Field(
        description="`degraded`: a worker stands still, or one beside this server does not run; documents are taken "
        "in all the same.",
        examples=["ready"],
    )
    schema_fits: bool = Field(description="False: `perdure migrate`, or a newer program.")
    workers_alive: int = Field(
        description="Those that answer. 0: documents are taken in, and wait.", examples=[1]
    )
    workers_silent: list[str] = Field(description="Those that stand still, and for how long.", examples=[[]])
    workers_down: list[str] = Field(
        description="Those that this server keeps beside itself and that do not run.", examples=[[]]
    )


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", response_model=Ready, responses={503: PROBLEMS[503]})
async def readyz(request: Request, service: Service) -> Ready:
    """The store answers; 503 where it does not."""
    found = await service.readiness()
    silent = [f"worker {id_} has not answered for {s} s" for id_, s in found.silent_s.items()]
    beside: WorkersBeside | None = getattr(request.app.state, "workers", None)
    down = list(beside.down.values()) if beside is not None else []
    if beside is not None and beside.number and not (down or silent or found.workers_alive):
        down = ["no worker beside this server has registered yet"]
    return Ready(
        status="degraded" if silent or down else "ready", schema_fits=found.schema_fits,
        workers_alive=found.workers_alive, workers_silent=silent, workers_down=down,
    )  # fmt: skip


@router.get("/metrics", response_class=Response, responses={**PROBLEMS, 200: NUMBERS})
async def metrics(request: Request, service: Service, _: Annotated[object, Depends(bearer)]) -> Response:
    """What this server counts and what is true of the whole store. Scope `operate`, or nobody's where
    PERDURE_METRICS_OPEN says so."""
    gate: Gate = request.app.state.gate
    if not service.settings.metrics_open:
        await gate.enter(request, "operate")
    return Response(await service.measure().text(), media_type=CONTENT_TYPE)
