"""The way to other services and back, over RabbitMQ: what is in the outbox is published, what they answer is applied.

    outbox → relay → exchange `perdure` (topic) → their queues
                     exchange `perdure` → queue `perdure.answers.PIPELINE` → answers
                                          what cannot be understood → queue `perdure.answers.dead`

Both ways are at least once: an event is forgotten after the broker has confirmed it, a message is acknowledged after
the store has committed what it says. Whatever dies in between happens again, and the tokens make that harmless.
"""

from __future__ import annotations

import asyncio

from perdure.engine.answering import Answers
from perdure.engine.remote import RemoteStage
from perdure.settings import Settings
from perdure.store.base import Store
from perdure.watch.broker import Broker
from perdure.watch.listener import Listener
from perdure.watch.relay import Relay


class Bus:
    """Relay and listener of one worker, each with a connection of its own that is made again when it is lost."""

    def __init__(self, settings: Settings, store: Store, answers: Answers) -> None:
        self.broker = Broker(settings)
        self.relay = Relay(self.broker, store)
        self.listener = Listener(self.broker, answers)
        self._unsubscribe = answers.events.subscribe(self.relay.heard)

    async def run(self) -> None:
        """Until it is cancelled."""
        remote = any(
            isinstance(stage, RemoteStage)
            for pipeline in self.listener.answers.pipelines.values()
            for stage in pipeline.stages
        )
        ways = [self.relay.run(), *([self.listener.run()] if remote else [])]
        try:
            await asyncio.gather(*ways)
        finally:
            self._unsubscribe()
