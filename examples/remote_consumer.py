"""A service that does a stage of a Perdure pipeline: it hears ArchiveIngested, works, beats, and answers JSONParsed.

RABBITMQ_HOST=localhost python examples/remote_consumer.py        # pip install aio-pika; docs/remote.md has the format
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from typing import Any

import aio_pika
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage

EVENT = "ArchiveIngested"


async def work(event: dict[str, Any]) -> dict[str, Any]:
    """Whatever this service is for; what it raises counts as a failure of the document."""
    content = event["document"]
    text = content.get("text") or base64.b64decode(content.get("data", "")).decode(errors="replace")
    messages = [line for line in text.splitlines() if line.startswith("From ")]
    return {"messages": len(messages)}


async def handle(exchange: AbstractExchange, message: AbstractIncomingMessage) -> None:
    """Answer, and only then acknowledge: should we die before that, the event comes again, to us or to another."""
    event = json.loads(message.body)
    who = {key: event[key] for key in ("document_id", "org", "job", "token", "pipeline")}

    async def tell(key: str, **facts: Any) -> None:
        body = json.dumps({**who, **facts}).encode()
        await exchange.publish(aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), key)

    async def beat() -> None:
        while True:
            await tell(event["reply"]["beat"])
            await asyncio.sleep(event["lease_s"] / 3)

    async with message.process(requeue=True):
        beating = asyncio.create_task(beat())
        try:
            output = await work(event)
        except Exception as error:
            await tell(event["reply"]["failed"], error={"code": "parse_failed", "message": str(error)})
        else:
            await tell(event["reply"]["done"], output=output)
        finally:
            beating.cancel()


async def main() -> None:
    connection = await aio_pika.connect_robust(
        host=os.environ.get("RABBITMQ_HOST", "localhost"), port=int(os.environ.get("RABBITMQ_PORT", "5672")),
        login=os.environ.get("RABBITMQ_USERNAME", "guest"), password=os.environ.get("RABBITMQ_PASSWORD", "guest"),
    )  # fmt: skip
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        exchange = await channel.declare_exchange("perdure", aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue("archive-parser", durable=True)
        await queue.bind(exchange, EVENT)
        await queue.consume(lambda message: handle(exchange, message))
        print(f"listening for {EVENT}", flush=True)
        await asyncio.Future()


if __name__ == "__main__":
    asyncio.run(main())
