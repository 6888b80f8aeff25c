"""Publishes what is in the outbox. One worker at a time does it; if that one stands still, others stand in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aio_pika
from aio_pika.exceptions import DeliveryError

from perdure.core.events import AnyEvent, StageHandedOver
from perdure.engine.handing import EXCHANGE
from perdure.errors import PerdureError, StoreError
from perdure.store.base import Store
from perdure.store.records import OutboxEvent
from perdure.watch.broker import (
    BROKER_ERRORS,
    Broker,
    Patience,
    close,
    declare_answers,
    declare_exchange,
    log,
)

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange

BATCH = 100
POLL_S = 0.5
CONFIRM_S = 10.0
NEGLECT_MS = 5_000
#: How long an event waits that nobody takes: 1 s, doubling up to a minute.
UNTAKEN_MS, UNTAKEN_MS_MAX = 1_000, 60_000


class Relay:
    """The way out."""

    def __init__(self, broker: Broker, store: Store) -> None:
        self.broker, self.store = broker, store
        self.published = 0
        self._woken = asyncio.Event()
        self._patience = Patience()
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._exchange: AbstractExchange | None = None
        self._answered: set[tuple[str, ...]] = set()  # for these the way back is there

    def heard(self, event: AnyEvent) -> None:
        """Something was put into the outbox here."""
        if isinstance(event, StageHandedOver):
            self._woken.set()

    async def run(self) -> None:
        """Until it is cancelled; neither the store nor the broker need be there."""
        try:
            while True:
                self._woken.clear()
                try:
                    published = await self.turn()
                except Exception:  # whatever it is, the next turn tries again
                    log.exception("events could not be published")
                    published = 0
                if not published:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), POLL_S)
        finally:
            await close(self._connection)
            with suppress(PerdureError, OSError):
                await self.store.leave_relay()

    async def turn(self) -> int:
        """Publish a batch, if it is our turn and there is one; how many events."""
        try:
            if self.store.lost is not None:  # we could not note that they were sent
                await self.store.leave_relay()
                return 0
            if not await self.store.lead_relay() and await self.store.outbox_late_ms() < NEGLECT_MS:
                return 0
            events = await self.store.outbox(BATCH)
            if not events:
                return 0
            return await self._publish(events)
        except StoreError:
            return 0  # the next turn tries again
        except BROKER_ERRORS as error:
            await self._away(error)
            return 0

    async def _publish(self, events: Sequence[OutboxEvent]) -> int:
        channel, exchange = await self._connected()
        await self._way_back(channel, exchange, events)
        told = await asyncio.gather(*(_send(exchange, each) for each in events), return_exceptions=True)
        sent, untaken, broken = [], [], None
        for event, result in zip(events, told, strict=True):
            if isinstance(result, DeliveryError):
                delay_ms = min(UNTAKEN_MS * 2 ** min(event.tries, 10), UNTAKEN_MS_MAX)
                untaken.append((event, delay_ms, f"no queue takes {event.name}: no service is listening"))
            elif isinstance(result, BaseException):
                broken = result
            else:
                sent.append(event)
        await self.store.outbox_sent(sent)
        await self.store.outbox_failed(untaken)
        self.published += len(sent)
        if broken is not None:
            raise broken
        self._patience.reset()
        return len(sent)

    async def _connected(self) -> tuple[AbstractChannel, AbstractExchange]:
        if self._channel is None or self._exchange is None:
            self._connection = await self.broker.connect()
            self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
            self._exchange = await declare_exchange(self._channel)
            log.info("publishing to %s", self.broker.where)
        return self._channel, self._exchange

    async def _way_back(
        self, channel: AbstractChannel, exchange: AbstractExchange, events: Sequence[OutboxEvent]
    ) -> None:
        """The queue for the answer is there before the question, so no answer can be lost, however early it comes."""
        for event in events:
            if event.token is None:
                continue
            said = json.loads(event.payload)
            way = (said["pipeline"], said["reply"]["done"], said["reply"]["failed"])
            if way not in self._answered:
                await declare_answers(channel, exchange, way[0], way[1:])
                self._answered.add(way)

    async def _away(self, error: BaseException) -> None:
        """The broker is away: remember why, and try again later."""
        connection, self._connection, self._channel, self._exchange = self._connection, None, None, None
        self._answered.clear()
        await close(connection)
        reason = f"RabbitMQ at {self.broker.where} is away: {type(error).__name__}: {error}"
        log.warning("%s; events wait in the outbox", reason)
        with suppress(StoreError):
            await self.store.outbox_away(reason[:500])
        await self._patience.wait()


async def _send(exchange: AbstractExchange, event: OutboxEvent) -> Any:
    """Publish it and wait for the confirm; DeliveryError if nobody takes it."""
    at = datetime.fromtimestamp(event.created_ms / 1000, UTC)
    body = {
        "id": event.id, "event": event.name, "occurred_at": at.isoformat(timespec="milliseconds"),
        **json.loads(event.payload),
    }  # fmt: skip
    message = aio_pika.Message(
        json.dumps(body).encode(), content_type="application/json", delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=event.id, type=event.name, app_id=EXCHANGE, timestamp=at,
    )  # fmt: skip
    # news of a death is for whoever listens; what hands a job over must find somebody
    mandatory = event.token is not None
    return await exchange.publish(message, event.name, mandatory=mandatory, timeout=CONFIRM_S)
