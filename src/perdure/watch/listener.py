"""Hears what services answer, and acknowledges it once the store has it."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import aio_pika

from perdure.engine.answering import CODE, PASSED_ON, Answers, answered
from perdure.engine.handing import EXCHANGE, beat_key
from perdure.engine.pipeline import Pipeline
from perdure.engine.remote import RemoteStage
from perdure.errors import InputInvalid, PerdureError, StoreError, Unstorable
from perdure.watch.broker import (
    BROKER_ERRORS,
    DEAD_QUEUE,
    Broker,
    Patience,
    close,
    declare_answers,
    declare_exchange,
    log,
)

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

PREFETCH = 50
STORE_AWAY_S = 1.0
REMOTE_FAILED = "remote_failed"  # the code of a failure that has none


class Listener:
    """The way back."""

    def __init__(self, broker: Broker, answers: Answers) -> None:
        self.broker, self.answers = broker, answers
        self.heard = 0
        self.set_aside = 0

    async def run(self) -> None:
        """Until it is cancelled; the broker need not be there."""
        patience = Patience()
        while True:
            connection: AbstractConnection | None = None
            try:
                connection = await self.broker.connect()
                lost = await self._listen(connection)
                patience.reset()
                await lost.wait()
            except BROKER_ERRORS as error:
                log.info("no answers from %s: %s", self.broker.where, error)
            except Exception:  # whatever it is, the next connection tries again
                log.exception("answers could not be heard")
            finally:
                await close(connection)
            await patience.wait()

    async def _listen(self, connection: AbstractConnection) -> asyncio.Event:
        """Consume the answers about all our pipelines; what this gives is set when the connection is lost."""
        lost = asyncio.Event()
        channel = await connection.channel(publisher_confirms=True)
        for closing in (connection.close_callbacks, channel.close_callbacks):
            closing.add(lambda *_: lost.set())
        await channel.set_qos(prefetch_count=PREFETCH)
        exchange = await declare_exchange(channel)
        await channel.declare_queue(DEAD_QUEUE, durable=True)
        for pipeline in self.answers.pipelines.values():
            stages = [stage for stage in pipeline.stages if isinstance(stage, RemoteStage)]
            if stages:
                keys = [key for stage in stages for key in (stage.done, stage.failed)]
                queue = await declare_answers(channel, exchange, pipeline.name, keys)
                await queue.consume(partial(self._hear, channel, pipeline))
        return lost

    async def _hear(
        self, channel: AbstractChannel, pipeline: Pipeline, message: AbstractIncomingMessage
    ) -> None:
        """Act on a message, then acknowledge it; what cannot be acted on is set aside with the reason."""
        try:
            try:
                await self._act(pipeline, message)
            except Exception as error:
                if isinstance(error, StoreError | OSError) and not isinstance(error, Unstorable):
                    await asyncio.sleep(STORE_AWAY_S)
                    await message.reject(requeue=True)
                    return
                code = error.code if isinstance(error, PerdureError) else type(error).__name__
                await self._set_aside(channel, message, f"{code}: {error}")
            await message.ack()
            self.heard += 1
        except BROKER_ERRORS as error:
            log.info("a message comes again: %s", error)

    async def _act(self, pipeline: Pipeline, message: AbstractIncomingMessage) -> None:
        if message.app_id == EXCHANGE:
            return  # our own: an event may be one stage's answer and another stage's question
        said = _object(message.body)
        if said.get("pipeline", pipeline.name) != pipeline.name:
            return  # another queue has it, too
        about, key = answered(said), message.routing_key
        stages = [stage for stage in pipeline.stages if isinstance(stage, RemoteStage)]
        if key == beat_key(pipeline.name):
            told = await self.answers.beat(about)
        elif any(key == stage.done for stage in stages):
            if "output" not in said:
                raise InputInvalid("an answer without output")
            told = await self.answers.finish(about, said["output"])
        elif any(key == stage.failed for stage in stages):
            told = await self._failed(about, said)
        else:
            raise InputInvalid(f"no stage of pipeline {pipeline.name} is answered by {key}")
        if told == PASSED_ON:
            log.info("late answer %s about document %s", key, about.document_id)

    async def _failed(self, about: Any, said: dict[str, Any]) -> str:
        code, message = _told(said.get("error"))
        after = said.get("retry_after_s")
        return await self.answers.fail(
            about, code, message, said.get("retryable") is not False,
            float(after) if isinstance(after, int | float) and not isinstance(after, bool) else None,
        )  # fmt: skip

    async def _set_aside(
        self, channel: AbstractChannel, message: AbstractIncomingMessage, reason: str
    ) -> None:
        """Into the queue of what nobody could act on, durable before the message itself is acknowledged."""
        log.warning("answer set aside: %s", reason)
        kept = aio_pika.Message(
            message.body, headers={"reason": reason[:500], "routing_key": message.routing_key or ""},
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT, message_id=message.message_id, app_id=message.app_id,
        )  # fmt: skip
        await channel.default_exchange.publish(kept, DEAD_QUEUE)
        self.set_aside += 1


def _told(error: Any) -> tuple[str, str]:
    """Code and message of a failure, however a service put it: what is no code is a part of the message."""
    code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    code, message = str(code or REMOTE_FAILED), str(message or "")
    if CODE.fullmatch(code):
        return code, message or code
    return REMOTE_FAILED, f"{code}: {message}" if message else code


def _object(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputInvalid(f"not JSON: {error}") from None
    if not isinstance(said, dict):
        raise InputInvalid("not a JSON object")
    return said
