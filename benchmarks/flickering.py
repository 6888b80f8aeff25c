"""For flicker.py: the app whose documents call a service that flickers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx2

from benchmarks.flicker_service import PATIENCE_S
from perdure import Context, Document, Perdure, Pipeline
from perdure.calls import FullJitter, Policy

URL_VARIABLE, STORE_VARIABLE, ELSEWHERE_VARIABLE = "FLICKER_URL", "FLICKER_STORE", "FLICKER_ELSEWHERE"
CALLS = 8
BACKOFF = FullJitter(0.2, 2.0)


class Caller:
    """Requests to the service; one client for each event loop."""

    def __init__(self) -> None:
        self.client: httpx2.AsyncClient | None = None

    async def ask(self, number: int = 0) -> int:
        if self.client is None:
            limits = httpx2.Limits(max_connections=200, max_keepalive_connections=200)
            self.client = httpx2.AsyncClient(timeout=PATIENCE_S, limits=limits)
        answer = await self.client.get(f"{address()}/ask")
        answer.raise_for_status()
        return number


def address() -> str:
    """Where the service is; a file names another place while it is to be found nowhere."""
    try:
        return Path(os.environ.get(ELSEWHERE_VARIABLE, "")).read_text()
    except OSError:
        return os.environ[URL_VARIABLE]


caller = Caller()
service = Policy("flicker", backoff=BACKOFF, attempt_s=PATIENCE_S)
calling, idle = Pipeline("calling"), Pipeline("idle")


@calling.stage(needs=["flicker"])
async def ask(doc: Document, ctx: Context) -> int:
    """Make CALLS calls and save each."""
    made = 0

    async def call(number: int) -> int:
        return await service.acall(caller.ask, number)

    async for _ in ctx.aitems(range(CALLS), run=call):
        made += 1
    return made


@idle.stage
async def nothing(doc: Document) -> None:
    """What calls nobody."""
    await asyncio.sleep(0.02)


app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///flicker.db"), pipelines=[calling, idle])
