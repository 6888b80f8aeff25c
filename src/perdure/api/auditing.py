"""The audit: whether all that was accepted is there. Scope `operate`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from perdure.api.caller import Operator
from perdure.api.overview import AuditView, LastAudit
from perdure.api.refused import Refused
from perdure.api.shared import NDJSON, PROBLEMS, Bounded, Service
from perdure.api.views import Act
from perdure.operate.audit import Audit, Progress
from perdure.service import AsyncPerdure

router = APIRouter(prefix="/v3/audit", tags=["operators"], responses=PROBLEMS, route_class=Bounded)


@router.get("", response_model=LastAudit)
async def last(service: Service, caller: Operator) -> LastAudit:
    """The balance now (accepted = there + purged), and what the last looks found."""
    balance = await service.store.balance()
    return LastAudit(balance=balance, difference=balance.difference, last=await service.store.audited())


@router.post("", response_model=AuditView)
async def run(
    request: Request, service: Service, caller: Operator, act: Act | None = None,
    recount: Annotated[bool, Query(description="Count anew first; changes counters, nothing else.")] = False,
) -> Response | AuditView:  # fmt: skip
    """Look at every document and every row, beside whoever works. Asked for `application/x-ndjson` it tells how far it
    is, line by line, and at last what it found; whoever hangs up stops it."""
    auditing: asyncio.Lock = request.app.state.auditing
    if auditing.locked():
        raise Refused(409, "audit_running", "an audit runs here already; wait for it", retry_after_s=10)
    if NDJSON in request.headers.get("accept", ""):
        steps = _steps(service, recount, caller.who, (act or Act()).reason, auditing)
        return StreamingResponse(steps, media_type=NDJSON)
    async with auditing:
        return _view(await service.audit(recount=recount, who=caller.who, reason=(act or Act()).reason))


async def _steps(
    service: AsyncPerdure, recount: bool, who: str, reason: str, auditing: asyncio.Lock
) -> AsyncIterator[bytes]:
    told: asyncio.Queue[Progress | None] = asyncio.Queue()
    async with auditing:
        work = service.audit(recount=recount, progress=told.put_nowait, who=who, reason=reason)
        audit = asyncio.create_task(work)
        audit.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (one := await told.get()) is not None:
                yield json.dumps(asdict(one)).encode() + b"\n"
            yield _view(await audit).model_dump_json().encode() + b"\n"
        finally:
            audit.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await audit


def _view(audit: Audit) -> AuditView:
    return AuditView(
        clean=audit.clean, difference=audit.difference, balance=audit.balance, states=audit.states,
        checks=list(audit.checks), looked_at=audit.looked_at,
    )  # fmt: skip
