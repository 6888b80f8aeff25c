"""Dead letters of the organisation: listed, grouped by cause, run again, exported, taken away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from perdure.api.caller import Caller, Operator, Reader, Writer
from perdure.api.downloads import Download, Pieces
from perdure.api.refused import Refused
from perdure.api.shared import NDJSON, PROBLEMS, Bounded, DocumentId, Service
from perdure.api.views import Number, Text, Whole
from perdure.operate.choosing import DeadOptions, count, documents_of
from perdure.operate.dead import Inspected
from perdure.operate.groups import Group
from perdure.operate.requeue import RequeueOptions
from perdure.store.records import DeadRecord

router = APIRouter(prefix="/v3/dead", tags=["dead letters"], responses=PROBLEMS, route_class=Bounded)
PLAIN_WAIT_S = 25  # that somebody who is told nothing meanwhile waits for canaries
IdList = Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=1000)]


class Which(BaseModel):
    """Which dead documents; all that is given must hold."""

    model_config = ConfigDict(extra="forbid")
    collection: Text | None = None
    pipeline: Text | None = None
    queue: Text | None = None
    stage: Text | None = None
    error_type: Text | None = None
    code: Text | None = None
    job: Text | None = Field(default=None, description="Follow-up jobs of this name: detect_connections.")
    group: Annotated[str, Field(max_length=100)] | None = Field(
        default=None, description="How its name begins."
    )
    failed: Text | None = Field(
        default=None, description="NAME.failed: a stage, a collection, a pipeline or a follow-up job."
    )
    older_than: Annotated[str, Field(max_length=20)] | None = Field(default=None, examples=["2h"])
    newer_than: Annotated[str, Field(max_length=20)] | None = None

    def options(self, caller: Caller) -> DeadOptions:
        """These, of the caller's organisation."""
        names = Which.model_fields
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return cast("DeadOptions", {**given, "org": caller.org})


class Meant(Which):
    """Documents by id, or all that fit; `all` says that all dead ones are meant."""

    ids: IdList = Field(default_factory=list)
    all: bool = False

    def chosen(self, caller: Caller) -> DeadOptions:
        """As `options`; Refused where nothing at all was said."""
        found = self.options(caller)
        if len(found) == 1 and not self.ids and not self.all:
            raise Refused(422, "confirm_needed", 'say which documents are meant, or {"all": true}')
        return found


class RequeueMeant(Meant):
    """How they are run again."""

    fresh: bool = Field(default=False, description="From the beginning, instead of where each died.")
    dry_run: bool = False
    canary: Whole = Field(
        default=0, ge=0, le=100_000, description="So many first; the rest only if they are done."
    )
    canary_ok: Number = Field(default=1.0, gt=0, le=1)
    canary_wait_s: Number = Field(
        default=600,
        gt=0,
        le=86_400,
        description=f"Not longer than {PLAIN_WAIT_S} s without `application/x-ndjson`.",
    )
    rate: Number | None = Field(default=None, gt=0, le=100_000, description="At most so many a second.")
    limit: Whole | None = Field(default=None, ge=1, le=10_000_000)
    reason: Text = ""


class PurgeMeant(Meant):
    """They are deleted with everything that is theirs; export them first."""

    dry_run: bool = False
    confirm: bool = Field(default=False, description="Nothing is deleted without it.")
    reason: Text = ""


class DeadPage(BaseModel):
    """Dead documents and follow-up jobs (`job` is the name), those that died last first."""

    documents: list[DeadRecord]
    next: str | None


class Groups(BaseModel):
    """Dead documents and follow-up jobs by cause, the largest group first, each with what to do about it."""

    groups: list[Group]


class WhichPage(Which):
    """Which, and from where on."""

    after: Annotated[str, Field(max_length=500)] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


WhichQuery = Annotated[Which, Query()]


@router.get("", response_model=DeadPage)
async def list_dead(service: Service, caller: Reader, which: Annotated[WhichPage, Query()]) -> DeadPage:
    """Dead documents with their cause."""
    found = await service.dead(after=which.after, limit=which.limit, **which.options(caller))
    return DeadPage(documents=found.documents, next=found.after)


@router.get("/groups", response_model=Groups)
async def groups(service: Service, caller: Reader, which: WhichQuery) -> Groups:
    """What died, by cause."""
    return Groups(groups=await service.groups(**which.options(caller)))


@router.post("/requeue")
async def requeue(request: Request, service: Service, caller: Writer, meant: RequeueMeant) -> Response:
    """Run them again with fresh attempts. Asked for `application/x-ndjson` it tells how far it is, line by line;
    whoever hangs up stops it, and the same request goes on where it stopped."""
    choice = await service.choose(meant.ids, **meant.chosen(caller))
    wait_s = meant.canary_wait_s if _streams(request) else min(meant.canary_wait_s, PLAIN_WAIT_S)
    how: RequeueOptions = {
        "fresh": meant.fresh, "dry_run": meant.dry_run, "canary": meant.canary, "canary_ok": meant.canary_ok,
        "canary_wait_s": wait_s, "rate": meant.rate, "limit": meant.limit, "reason": meant.reason,
        "who": caller.who,
    }  # fmt: skip
    if meant.rate is not None and not meant.dry_run and not _streams(request):
        number = min(await count(service.store, choice), meant.limit or 10_000_000)
        if number > meant.rate * PLAIN_WAIT_S:
            raise Refused(
                422, "stream_needed", f"at this rate {number} documents take longer than {PLAIN_WAIT_S} s; ask with "
                f"Accept: {NDJSON} and be told how far it is",
            )  # fmt: skip
    return await _told(request, service.requeuing(choice, how))


@router.post("/purge")
async def purge(request: Request, service: Service, caller: Operator, meant: PurgeMeant) -> Response:
    """Delete them for good."""
    if not meant.dry_run and not meant.confirm:
        raise Refused(422, "confirm_needed", 'this deletes documents; say {"confirm": true}, after an export')
    choice = await service.choose(meant.ids, **meant.chosen(caller))
    return await _told(request, service.purging(choice, None, meant.reason, caller.who, meant.dry_run))


@router.get("/export", response_class=StreamingResponse)
async def export(request: Request, service: Service, caller: Reader, which: WhichQuery) -> Response:
    """All of them as JSON lines, with what it takes to bring them back (`perdure dead import`)."""
    choice = await documents_of(service.store, await service.choose(**which.options(caller)))
    headers = {"Content-Disposition": 'attachment; filename="dead.jsonl"'}
    lines = Pieces(service.export_streaming(choice, caller.who), NDJSON, headers)
    state = request.app.state
    return Download(lines, state.exports, caller.org, state.limits.download_pause_s)


@router.get("/{id}", response_model=Inspected)
async def inspect(service: Service, caller: Reader, id_: DocumentId) -> Inspected:
    """All there is to know about a dead document, and what to do about it."""
    return await service.inspect(id_, caller.org)


def _streams(request: Request) -> bool:
    return NDJSON in request.headers.get("accept", "")


async def _told(request: Request, doing: Any) -> Response:
    """What a verb tells: all steps as lines, or what came of it in the end."""
    if _streams(request):
        return StreamingResponse(_steps(doing), media_type=NDJSON)
    answers: list[Any] = []
    told: Any = None
    async with aclosing(doing):
        async for told in doing:
            answers += told.answers
    return JSONResponse({**asdict(told), "answers": [{"id": id_, "answer": said} for id_, said in answers]})


async def _steps(doing: Any) -> AsyncIterator[bytes]:
    async with aclosing(doing):
        async for told in doing:
            yield json.dumps(asdict(told)).encode() + b"\n"
