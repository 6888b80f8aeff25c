"""Verbs of operators that the command line has as well: run again from a stage on, limits, sweeps, imports."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from perdure.api.caller import Operator, Writer
from perdure.api.receiving import Limits, received
from perdure.api.refused import Refused
from perdure.api.shared import NDJSON, PROBLEMS, Bounded, Service
from perdure.api.views import Act, Number, Text, Whole
from perdure.errors import InputInvalid
from perdure.operate.lines import is_longer
from perdure.operate.rerun import Rerun, RerunOptions
from perdure.operate.sweeping import Sweep
from perdure.store.records import LimitRecord

router = APIRouter(prefix="/v3", tags=["operators"], responses=PROBLEMS, route_class=Bounded)
imports = APIRouter(prefix="/v3", tags=["dead letters"], responses=PROBLEMS)
RERUN_MOST = 10_000
TOLD_MOST = 1_000
_PACKED = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
BODY = {"requestBody": {"required": True, "content": {NDJSON: {"schema": {"type": "string"}}, **_PACKED}}}


class RerunWhere(BaseModel):
    """Which documents; all that is given must hold."""

    model_config = ConfigDict(extra="forbid")
    model: Text | None = Field(default=None, description="That saved the stage; empty: none.")
    version: Whole | None = None
    collection: Text | None = None
    state: Text | None = Field(
        default=None,
        description="done, dead or cancelled, or a word of other systems for one.",
        examples=["done"],
    )


class RerunAct(Act):
    """Run finished documents of the organisation again from a stage on."""

    pipeline: Text = "document"
    from_stage: Text
    where: RerunWhere
    dry_run: bool = False
    limit: Whole = Field(default=1_000, ge=1, le=RERUN_MOST)
    after: Text | None = Field(default=None, description="`last` of the answer before.")


class LimitAct(Act):
    """Bound the documents of an organisation (`org:NAME`), a dependency (`dependency:NAME`) or a concurrency key;
    without both numbers it has no limit any more. `new`: no document has it yet."""

    key: Text
    new: bool = False
    concurrency: Whole | None = Field(default=None, ge=1, le=1_000_000)
    rate_per_s: Number | None = Field(default=None, gt=0, le=1_000_000)


class LimitList(BaseModel):
    limits: list[LimitRecord]


class LineAnswer(BaseModel):
    """What became of a line of the file."""

    line: int
    id: str
    answer: str


class ImportedView(BaseModel):
    """How many lines were imported, were there already, or were refused; `answers` are those that were refused, of very
    many the first."""

    lines: int
    imported: int
    exists: int
    refused: int
    answers: list[LineAnswer]


@router.post("/rerun", response_model=Rerun)
async def rerun(service: Service, caller: Writer, act: RerunAct) -> Rerun:
    """Requeue finished documents of the organisation from a stage on, such as those that another model embedded."""
    where = {name: value for name, value in act.where.model_dump().items() if value is not None}
    if not where:
        raise Refused(422, "confirm_needed", 'say which documents in `where`; {"state": "done"} means all')
    if act.after is not None and not act.after.endswith(f"@{caller.org}"):
        raise Refused(422, "cursor_invalid", "`after` takes what the answer before gave as `last`")
    options = RerunOptions(
        pipeline=act.pipeline, from_stage=act.from_stage, where={**where, "org": caller.org}, dry_run=act.dry_run,
        limit=act.limit, after=act.after, reason=act.reason, who=caller.who,
    )  # fmt: skip
    return await service.rerun(**options)


@router.get("/limits", response_model=LimitList)
async def limits(
    service: Service, caller: Operator, key: Annotated[str | None, Query(max_length=1000)] = None
) -> LimitList:
    """What bounds each organisation, dependency and concurrency key, how many are let in, and how many wait.

    A `key` without a limit has none in the list; one that nothing has is 404.
    """
    found = await service.limits(key)
    if key is not None and not found:
        try:
            await service.known_limit_key(key)
        except InputInvalid as error:
            raise Refused(404, error.code, str(error)) from error
    return LimitList(limits=found)


@router.post("/limits", response_model=LimitList)
async def limit(service: Service, caller: Operator, act: LimitAct) -> LimitList:
    """Bound the documents of an organisation, a dependency or a concurrency key, or lift the limit."""
    await service.limit(
        act.key, concurrency=act.concurrency, rate_per_s=act.rate_per_s, reason=act.reason, who=caller.who,
        new=act.new,
    )  # fmt: skip
    return LimitList(limits=await service.limits(act.key))


@router.post("/sweep", response_model=Sweep)
async def sweep(service: Service, caller: Operator, act: Act | None = None) -> Sweep:
    """Sweep once: recover expired leases, release due documents, requeue stuck ones, prune old rows."""
    return await service.sweep(reason=(act or Act()).reason, who=caller.who)


@imports.post("/dead/import", response_model=ImportedView, openapi_extra=BODY)
async def import_(
    request: Request, service: Service, caller: Operator,
    reason: Annotated[Text, Query(description="Kept in the trail.")] = "",
) -> Any:  # fmt: skip
    """Bring back what an export wrote, of any organisation: dead, with its history. The body may be packed (gzip); its
    size counts as it is unpacked."""
    limits: Limits = request.app.state.limits
    counted = {"lines": 0, "imported": 0, "exists": 0, "refused": 0}
    answers: list[LineAnswer] = []
    async with received(request, limits) as body:
        if body.path is None:
            raise Refused(415, "content_type_unknown", f"send the lines of an export as {NDJSON}")
        if await asyncio.to_thread(is_longer, body.path, limits.file_bytes):
            raise Refused(
                413,
                "input_too_large",
                f"the body has more than {limits.file_bytes} bytes when it is unpacked",
            )
        async for told in service.importing(body.path, caller.who, reason, "a request"):
            counted = {name: getattr(told, name) for name in counted}
            bad = [one for one in told.answers if one.answer not in ("imported", "exists")]
            answers += [LineAnswer(line=one.number, id=one.id, answer=one.answer) for one in bad]
            del answers[TOLD_MOST:]
    return ImportedView(**counted, answers=answers)
