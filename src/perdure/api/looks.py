"""Looks at the feed for streams of events: those of one organisation share them, and others do not pay for them.

Streams that stand at the same place have the same answer, which is read and encoded once. An organisation whose streams
stand at many places looks at one after the other, at most `PER_S` times a second, however many streams it has. A look
that no stream waits for any more gives its place up.
"""

from __future__ import annotations

import asyncio
import json

from perdure.api.refused import Refused
from perdure.core.frozen import frozen
from perdure.service import AsyncPerdure
from perdure.store.feed import Happened

SAME_S = 0.25  # that an answer is good for the next stream
PER_S = 40.0
WAITING_MAX = 200  # looks of an organisation: the last one comes in five seconds
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
        self._known: dict[tuple[str, str], _Look] = {}
        self._paces: dict[str, _Pace] = {}  # of organisations

    def check(self, org: str) -> None:
        """Check that the organisation may look at one more place. Raises: Refused."""
        if (pace := self._paces.get(org)) is not None and pace.waiting >= WAITING_MAX:
            raise Refused(
                429, "rate_limited", "streams of this organisation wait for too many different places; close some",
                retry_after_s=WAITING_MAX / PER_S,
            )  # fmt: skip

    async def feed(self, org: str, start: str) -> list[Told]:
        """What happened in the organisation after the place, oldest first. Raises: StoreError, Refused."""
        look = self._known.get((org, start))
        if look is None:
            self.check(org)
            look = self._known[org, start] = self._begin(org, start)
        look.streams += 1
        try:
            return await asyncio.shield(look.task)  # a stream that ends does not end the look of others
        finally:
            look.streams -= 1
            if not look.streams and look.waits:
                look.task.cancel()
                self._forget(org, start, look)

    def _begin(self, org: str, start: str) -> _Look:
        look = _Look()
        pace = self._paces.setdefault(org, _Pace())
        pace.waiting += 1
        look.task = asyncio.create_task(self._look(org, start, look, pace))

        def done(task: asyncio.Task[list[Told]]) -> None:
            if look.waits:  # it was cancelled, perhaps before it began
                pace.waiting -= 1
            elif not task.cancelled():
                task.exception()  # perhaps nobody was left to hear of it
            asyncio.get_running_loop().call_later(SAME_S, self._forget, org, start, look)

        look.task.add_done_callback(done)
        return look

    async def _look(self, org: str, start: str, look: _Look, pace: _Pace) -> list[Told]:
        async with pace.lock:
            now_s = asyncio.get_running_loop().time()
            if pace.next_s > now_s:
                await asyncio.sleep(pace.next_s - now_s)
            pace.next_s = max(now_s, pace.next_s) + 1 / PER_S
            look.waits = False
            pace.waiting -= 1
        return [_told(one) for one in await self._service.store.feed(org, start)]

    def _forget(self, org: str, start: str, look: _Look) -> None:
        if self._known.get((org, start)) is look:
            del self._known[org, start]
        if len(self._paces) > ORGS_MAX:
            self._paces = {each: pace for each, pace in self._paces.items() if pace.waiting}


class _Pace:
    """When an organisation may look again."""

    def __init__(self) -> None:
        self.lock, self.next_s, self.waiting = asyncio.Lock(), 0.0, 0


class _Look:
    """A look at one place, with the number of streams that wait for it."""

    task: asyncio.Task[list[Told]]

    def __init__(self) -> None:
        self.streams, self.waits = 0, True


def _told(one: Happened) -> Told:
    told = {"document_id": one.document_id, "at_ms": one.at_ms, **one.data}
    said = f"id: {one.place}\nevent: {one.name}\ndata: {json.dumps(told)}\n\n".encode()
    return Told(one.place, one.name, said)
