"""Whether the server lives, and whether it can do its work."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from perdure.api.shared import Service

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: str


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", response_model=Health)
async def readyz(service: Service) -> Health:
    """The store answers; 503 where it does not."""
    await service.store.now_ms()
    return Health(status="ready")
