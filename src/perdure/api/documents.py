"""Documents: where they stand, lists, and what is done to them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from perdure.api.caller import Reader, Writer
from perdure.api.images import described
from perdure.api.shared import PROBLEMS, Bounded, DocumentId, Service, acted
from perdure.api.views import (
    Act,
    Acted,
    Attempts,
    AttemptView,
    DocumentDetail,
    DocumentView,
    Moment,
    Page,
    PriorityAct,
    Progress,
    RequeueAct,
    StageView,
    Text,
    at,
    time_of,
)
from perdure.operate.desk import in_words
from perdure.operate.timeline import Happening
from perdure.operate.why import Why
from perdure.service import ListOptions

router = APIRouter(prefix="/v3/documents", tags=["documents"], responses=PROBLEMS, route_class=Bounded)

_WORDS = "In the words of which system states are answered: perdure, bullmq, documents or images."
InWords = Annotated[str | None, Field(max_length=100, description=_WORDS)]
Words = Annotated[str | None, Query(max_length=100, description=_WORDS)]


class Timeline(BaseModel):
    timeline: list[Happening]
    next: str | None = None  # what `after` takes for what was before


OlderThan = Annotated[
    str | None, Query(max_length=1_200, description="`next` of the page before, for what was before that.")
]
AtMost = Annotated[int, Query(ge=1, le=1000, description="Attempts at most.")]


class Listed(BaseModel):
    """Which documents; all that is given must hold. Of ranges the first moment is part, the last is not."""

    state: Annotated[
        str | None, Field(max_length=100, description="A state, or a word of other systems.")
    ] = None
    status: Annotated[str | None, Field(max_length=100, description="The same as `state`.")] = None
    collection: Annotated[str | None, Field(max_length=1000)] = None
    pipeline: Annotated[str | None, Field(max_length=1000)] = None
    name: Annotated[str | None, Field(max_length=200, description="Any part of it.")] = None
    created_after: Moment | None = Field(default=None, description="With a time zone.")
    created_before: Moment | None = None
    finished_after: Moment | None = None
    finished_before: Moment | None = None
    words: InWords = None
    after: Annotated[
        str | None, Field(max_length=250, description="`next` of the page before, or an id.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


@router.get("", response_model=Page)
async def list_documents(service: Service, caller: Reader, listed: Annotated[Listed, Query()]) -> Page:
    """Documents of the organisation, those that came last first."""
    asked: ListOptions = {**listed.model_dump(), "org": caller.org}  # type: ignore[typeddict-item]
    found = await service.documents(**asked)
    views = [DocumentView.of(one) for one in found]
    return Page(documents=views, next=found[-1].place if len(found) == listed.limit else None)


@router.get("/{id}", response_model=DocumentDetail)
async def get(service: Service, caller: Reader, id_: DocumentId, words: Words = None) -> Any:
    """Where the document stands: state, stage, attempts, stages that are saved, progress, error."""
    found = await service.standing(id_, caller.org)
    stages = [
        StageView(
            stage=s.stage, at=time_of(s.saved_ms), duration_ms=s.duration_ms, generation=s.generation,
            degraded=bool(s.degraded),
        )
        for s in found.stages
    ]  # fmt: skip
    pipeline = service.pipelines.get(found.status.pipeline)
    progress = Progress(
        stages_done=len({s.stage for s in stages}), stages=len(pipeline.stages) if pipeline else None, items=found.items
    )  # fmt: skip
    last = at(found.last_attempt_ms)
    more = await described(service, found.status)
    (status,) = in_words([found.status], words)
    return DocumentDetail.of(status, last_attempt_at=last, completed_stages=stages, progress=progress, **more)


@router.get("/{id}/attempts", response_model=Attempts)
async def attempts(
    service: Service, caller: Reader, id_: DocumentId, after: OlderThan = None, limit: AtMost = 1000
) -> Attempts:
    """The newest claims of the document that ended, oldest first, each with its error and what was decided."""
    await service.status(id_, caller.org)
    found = await service.attempts(id_, caller.org, after=after, limit=limit)
    more = str(found[0].place) if len(found) == limit else None
    return Attempts(attempts=[AttemptView.of(a) for a in found], next=more)


@router.get("/{id}/why", response_model=Why)
async def why(service: Service, caller: Reader, id_: DocumentId) -> Why:
    """One sentence: what it waits for, since when, what happens next."""
    return await service.why(id_, caller.org)


@router.get("/{id}/timeline", response_model=Timeline)
async def timeline(
    service: Service, caller: Reader, id_: DocumentId, after: OlderThan = None, limit: AtMost = 1000
) -> Timeline:
    """The history of the document in order. Of a long one, the newest part with at most `limit` attempts and acts."""
    found = await service.timeline_page(id_, caller.org, after=after, limit=limit)
    return Timeline(timeline=found.timeline, next=found.next)


@router.post("/{id}/requeue", response_model=Acted)
async def requeue(service: Service, caller: Writer, id_: DocumentId, act: RequeueAct | None = None) -> Acted:
    """Start a new generation of a document that has ended, with a fresh budget of attempts."""
    asked = act or RequeueAct()
    id_ = (await service.status(id_, caller.org)).id
    answer = await service.requeue(
        id_,
        from_stage=asked.from_stage,
        reason=asked.reason,
        at=asked.at,
        delay_s=asked.delay_s,
        who=caller.who,
        org=caller.org,
    )
    return acted(id_, answer)


@router.post("/{id}/cancel", response_model=Acted)
async def cancel(service: Service, caller: Writer, id_: DocumentId, act: Act | None = None) -> Acted:
    """End a document now; a worker that runs it cannot change anything any more."""
    id_ = (await service.status(id_, caller.org)).id
    return acted(id_, await service.cancel(id_, reason=(act or Act()).reason, who=caller.who, org=caller.org))


@router.post("/{id}/priority", response_model=Acted)
async def priority(service: Service, caller: Writer, id_: DocumentId, act: PriorityAct) -> Acted:
    """Give a document that waits for its turn another priority; higher goes first."""
    id_ = (await service.status(id_, caller.org)).id
    answer = await service.priority(id_, act.priority, reason=act.reason, who=caller.who, org=caller.org)
    return acted(id_, answer)


@router.delete("/{id}", response_model=Acted)
async def delete(
    service: Service, caller: Writer, id_: DocumentId,
    cancel: Annotated[bool, Query(description="End it first where it is in progress.")] = False,
    reason: Annotated[Text, Query(description="Kept in the trail.")] = "",
) -> Acted:  # fmt: skip
    """Delete a document that has ended with everything that is its own, for good; its children stay."""
    id_ = (await service.status(id_, caller.org)).id
    answer = await service.delete(id_, cancel=cancel, reason=reason, who=caller.who, org=caller.org)
    return acted(id_, answer)
