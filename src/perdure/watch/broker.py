"""RabbitMQ: how to reach it, what we declare there, and how patient we are when it is away."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.engine.handing import EXCHANGE, beat_key
from perdure.errors import ExtraMissing
from perdure.settings import Settings

try:
    import aio_pika
    from aio_pika.exceptions import CONNECTION_EXCEPTIONS
except ModuleNotFoundError as missing:
    raise ExtraMissing(
        "RABBITMQ_HOST is set, but the extra is not installed: pip install 'perdure[rabbitmq]'"
    ) from missing

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractQueue

BROKER_ERRORS = (*CONNECTION_EXCEPTIONS, TimeoutError)
CONNECT_S = 5.0
HEARTBEAT_S = 10
AGAIN_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
DEAD_QUEUE = f"{EXCHANGE}.answers.dead"

log = logging.getLogger("perdure.bus")


class Broker:
    """Where RabbitMQ is, and what we declare there."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    async def connect(self) -> AbstractConnection:
        """A new connection, or one of BROKER_ERRORS."""
        s = self.settings
        return await aio_pika.connect(
            host=s.rabbitmq_host or "localhost", port=s.rabbitmq_port, login=s.rabbitmq_username,
            password=s.rabbitmq_password, virtualhost=s.rabbitmq_vhost, timeout=CONNECT_S,
            client_properties={"connection_name": "perdure"}, heartbeat=HEARTBEAT_S,
        )  # fmt: skip

    @property
    def where(self) -> str:
        return f"{self.settings.rabbitmq_host}:{self.settings.rabbitmq_port}"


async def declare_exchange(channel: AbstractChannel) -> AbstractExchange:
    """Where all events go; it survives the broker's restart."""
    return await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)


async def declare_answers(
    channel: AbstractChannel, exchange: AbstractExchange, pipeline: str, keys: Iterable[str]
) -> AbstractQueue:
    """The queue for the answers about a pipeline's documents; whoever makes it first, it keeps them for all."""
    queue = await channel.declare_queue(f"{EXCHANGE}.answers.{pipeline}", durable=True)
    for key in sorted({*keys, beat_key(pipeline)}):
        await queue.bind(exchange, key)
    return queue


class Patience:
    """How long to wait before the next try: longer each time, and never the same for two."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    async def wait(self) -> None:
        wait_s = AGAIN_S[min(self._tries, len(AGAIN_S) - 1)]
        self._tries += 1
        await asyncio.sleep(wait_s * (0.5 + random.random() / 2))


async def close(connection: AbstractConnection | None) -> None:
    """Close it, whatever state it is in."""
    if connection is not None:
        with suppress(Exception):
            await asyncio.wait_for(connection.close(), 2)
