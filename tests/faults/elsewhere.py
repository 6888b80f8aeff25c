"""A pipeline with a stage that another service does, its app, and that service: `python -m tests.faults.elsewhere`.

The service writes down every event that it gets before it answers, and answers some of them twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import random

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractExchange, AbstractIncomingMessage

from perdure import Context, Document, Perdure, Pipeline, Result
from perdure.settings import Settings
from perdure.watch.broker import BROKER_ERRORS, Broker, declare_exchange
from tests.faults.record import INSERT_EFFECT, directory

EVENT, DONE, FAILED = "ArchiveIngested", "JSONParsed", "JSONParseFailed"

remote = Pipeline("remote")


@remote.stage
def ingest(doc: Document) -> str:
    return doc.text


remote.remote_stage("parse", event=EVENT, done=DONE, failed=FAILED, reads=["ingest"], output=dict[str, str])


@remote.stage
def store(doc: Document, parse: dict[str, str], ctx: Context) -> Result[str]:
    return Result(parse["text"], sql=[(INSERT_EFFECT, (doc.name, "store", str(ctx.attempt)))])


#: For the examples, which count messages. It is answered by the same events.
archives = Pipeline("archives")
archives.remote_stage("parse", event=EVENT, done=DONE, failed=FAILED, output=dict[str, int])

app = Perdure(os.environ.get("FAULTS_STORE"), pipelines=[remote, archives])


async def answer(exchange: AbstractExchange, message: AbstractIncomingMessage) -> None:
    event = json.loads(message.body)
    line = f"{event['id']}\t{event['document_id']}\t{event['attempt']}\n"
    with (directory() / "heard").open("ab", buffering=0) as ledger:
        ledger.write(line.encode())
    await asyncio.sleep(random.random() * 0.05)
    said = {key: event[key] for key in ("document_id", "org", "job", "token", "pipeline")}
    body = json.dumps(said | {"output": {"text": event["inputs"]["ingest"]["value"].upper()}}).encode()
    for _ in range(random.choice((1, 1, 2))):
        await exchange.publish(aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), DONE)
    await message.ack()


async def listen(connection: AbstractConnection) -> None:
    """Until the connection is lost."""
    lost = asyncio.Event()
    connection.close_callbacks.add(lambda *_: lost.set())
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=8)
    exchange = await declare_exchange(channel)
    queue = await channel.declare_queue("parser", durable=True)
    await queue.bind(exchange, EVENT)
    await queue.consume(lambda message: answer(exchange, message))
    await lost.wait()


async def serve() -> None:
    broker = Broker(Settings())
    while True:
        try:
            async with await broker.connect() as connection:
                await listen(connection)
        except BROKER_ERRORS:
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(serve())
