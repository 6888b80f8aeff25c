"""Looks at the feed for streams of events: those of one organisation share them, and others do not pay for them.

Streams that stand at the same place have the same answer, which is read and encoded once. An organisation whose streams
stand at many places looks at one after the other, at most `PER_S` times a second, however many streams it has.
"""

from __future__ import annotations

import asyncio
import json

from perdure.core.frozen import frozen
from perdure.service import AsyncPerdure
from perdure.store.feed import Happened

SAME_S = 0.25  # that an answer is good for the next stream
PER_S = 40.0
ORGS_MAX = 1_000  # that are remembered


@frozen
class Told:
    """An event as it is sent."""

    place: str
    name: str
    said: bytes


class Looks:
    """See the module."""

    def __init__(self, service: AsyncPerdure) -> None:
        self._service = service
        self._known: dict[tuple[str, str], asyncio.Task[list[Told]]] = {}
        self._next_s: dict[str, float] = {}  # when an organisation may look again

    async def feed(self, org: str, start: str) -> list[Told]:
        """What happened in the organisation after the place, oldest first. Raises: StoreError."""
        found = self._known.get((org, start))
        if found is None:
            found = self._known[org, start] = asyncio.create_task(self._look(org, start))
            found.add_done_callback(lambda _: self._forget_soon(org, start))
        return await asyncio.shield(found)  # a stream that ends does not end the look of others

    async def _look(self, org: str, start: str) -> list[Told]:
        now_s = asyncio.get_running_loop().time()
        at_s = max(now_s, self._next_s.get(org, now_s))
        self._next_s[org] = at_s + 1 / PER_S
        if at_s > now_s:
            await asyncio.sleep(at_s - now_s)
        return [_told(one) for one in await self._service.store.feed(org, start)]

    def _forget_soon(self, org: str, start: str) -> None:
        asyncio.get_running_loop().call_later(SAME_S, self._forget, org, start)

    def _forget(self, org: str, start: str) -> None:
        done = self._known.pop((org, start))
        if not done.cancelled():
            done.exception()  # perhaps nobody was left to hear of it
        if len(self._next_s) > ORGS_MAX:
            self._next_s.clear()


def _told(one: Happened) -> Told:
    told = {"document_id": one.document_id, "at_ms": one.at_ms, **one.data}
    said = f"id: {one.place}\nevent: {one.name}\ndata: {json.dumps(told)}\n\n".encode()
    return Told(one.place, one.name, said)
