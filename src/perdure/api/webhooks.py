"""Webhooks of the organisation, and what became of every delivery."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from perdure.api.caller import Reader, Writer
from perdure.api.refused import Refused
from perdure.api.shared import PROBLEMS, Bounded, OnceKey, Service
from perdure.api.views import Act, at, time_of
from perdure.errors import InputInvalid, host_shown
from perdure.store.feed import NAMES
from perdure.store.webhooks import Delivery, Webhook

router = APIRouter(prefix="/v3/webhooks", tags=["webhooks"], responses=PROBLEMS, route_class=Bounded)
WebhookId = Annotated[str, Path(alias="id", max_length=100, description="A webhook's id.")]
DeliveryId = Annotated[str, Path(alias="id", max_length=200, description="A delivery's id.")]


class NewWebhook(BaseModel):
    """Who is to be told of what."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"url": "https://example.org/hook"}]}
    )
    url: Annotated[str, Field(max_length=2000)]
    events: Annotated[list[str], Field(max_length=len(NAMES))] = Field(
        default_factory=list, description=f"Some of {', '.join(NAMES)}; by default those that matter."
    )


class WebhookView(BaseModel):
    """A webhook; its secret is shown when it is made, and never again."""

    id: str
    url: str
    events: list[str]
    created_at: datetime
    waiting: int = 0
    sent: int = 0
    dead: int = 0


class MadeWebhook(WebhookView):
    secret: str


class WebhookList(BaseModel):
    webhooks: list[WebhookView]


class DeliveryView(BaseModel):
    """One event on its way to one webhook."""

    id: str
    webhook: str
    event: str
    document_id: str
    state: str
    tries: int
    created_at: datetime
    due_at: datetime | None
    ended_at: datetime | None
    status_code: int | None
    error: str | None


class Deliveries(BaseModel):
    deliveries: list[DeliveryView]
    next: str | None


class Retried(BaseModel):
    deliveries: int


@router.post("", status_code=201, response_model=MadeWebhook)
async def create(
    service: Service, caller: Writer, new: NewWebhook, idempotency_key: OnceKey = None
) -> MadeWebhook:
    """Tell a URL of what happens from now on; signatures are checked with the secret in the answer."""
    made = await service.add_webhook(
        new.url, events=new.events, org=caller.org, who=caller.who, once=idempotency_key
    )
    return MadeWebhook(**_view(made).model_dump(), secret=made.secret)


@router.get("", response_model=WebhookList)
async def list_webhooks(service: Service, caller: Reader) -> WebhookList:
    """The organisation's webhooks, with how many deliveries wait, were sent, or are dead. A key without the scope
    `write` sees the host of each address and not the rest."""
    counts = await service.store.delivery_counts(caller.org)
    return WebhookList(
        webhooks=[
            _view(one, whole="write" in caller.scopes, **counts.get(one.id, {}))
            for one in await service.webhooks(caller.org)
        ]
    )


@router.delete("/{id}", status_code=204)
async def remove(service: Service, caller: Writer, id_: WebhookId) -> None:
    """Tell it nothing more."""
    try:
        await service.remove_webhook(id_, org=caller.org, who=caller.who)
    except InputInvalid as unknown:
        raise Refused(404, "webhook_unknown", str(unknown)) from None


@router.get("/deliveries", response_model=Deliveries)
async def deliveries(
    service: Service, caller: Reader,
    webhook: Annotated[str | None, Query(max_length=100)] = None,
    state: Annotated[str | None, Query(max_length=20, description="waiting, sent or dead.")] = None,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Deliveries:  # fmt: skip
    """What was sent, waits, or was given up and why."""
    found = await service.deliveries(org=caller.org, webhook=webhook, state=state, after=after, limit=limit)
    return Deliveries(
        deliveries=[_delivery(one) for one in found], next=found[-1].id if len(found) == limit else None
    )


@router.post("/deliveries/retry", response_model=Retried)
async def retry_all(service: Service, caller: Writer, act: Act | None = None) -> Retried:
    """Send everything again that was given up."""
    reason = (act or Act()).reason
    return Retried(deliveries=await service.retry_deliveries(org=caller.org, who=caller.who, reason=reason))


@router.post("/deliveries/{id}/retry", response_model=Retried)
async def retry(service: Service, caller: Writer, id_: DeliveryId, act: Act | None = None) -> Retried:
    """Send one again that was given up."""
    reason = (act or Act()).reason
    sent = await service.retry_deliveries(id_, org=caller.org, who=caller.who, reason=reason)
    if not sent:
        raise Refused(404, "delivery_unknown", f"there is no dead delivery {id_} here")
    return Retried(deliveries=sent)


def _view(w: Webhook, *, whole: bool = True, **counts: int) -> WebhookView:
    return WebhookView(
        id=w.id, url=w.url if whole else host_shown(w.url), events=list(w.events), created_at=time_of(w.created_ms),
        **counts,
    )  # fmt: skip


def _delivery(d: Delivery) -> DeliveryView:
    return DeliveryView(
        id=d.id, webhook=d.webhook, event=d.name, document_id=d.document_id, state=d.state, tries=d.tries,
        created_at=time_of(d.created_ms), due_at=at(d.due_ms) if d.state == "waiting" else None,
        ended_at=at(d.ended_ms), status_code=d.status_code, error=d.error,
    )  # fmt: skip
