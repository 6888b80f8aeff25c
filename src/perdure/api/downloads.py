"""Downloads: answers of any size, sent a piece at a time to clients that may be slow.

A download holds a few MB at most, whatever its size: the next piece is fetched when the client has taken the one before
the last. Each has a slot of its organisation. A client that takes less than `SEND_BYTES` within `pause_s` is
disconnected, and while others ask, all downloads of an organisation together are paced like its uploads (`turns`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from perdure.api import turns
from perdure.api.metered import CONNECTION, break_off
from perdure.api.refused import Refused
from perdure.api.slots import Slots
from perdure.errors import PerdureError

SEND_BYTES = 64 << 10  # that a client takes in a pause, at least
EXPORTS_PER_ORG = 1
AGAIN_S, EXPORT_AGAIN_S = 2.0, 10.0  # before a download that was refused is worth another try
log = logging.getLogger("perdure.api")


def download_slots(most: int, most_of_one: int) -> Slots:
    """Slots of downloads of documents and of what stages saved."""

    def refusal(own: bool) -> Refused:
        if own:
            said = f"{most_of_one} downloads of this organisation are under way; wait until one has ended"
            return Refused(429, "downloads_too_many", said, retry_after_s=AGAIN_S)
        said = "too many downloads are under way here; try again later"
        return Refused(503, "downloads_too_many", said, retry_after_s=AGAIN_S)

    return Slots(most, most_of_one, refusal)


def export_slots(most: int) -> Slots:
    """Slots of exports: an organisation has one."""

    def refusal(own: bool) -> Refused:
        if own:
            said = "an export of this organisation is under way; wait until it has ended"
            return Refused(429, "export_running", said, retry_after_s=EXPORT_AGAIN_S)
        said = "too many exports are under way here; try again later"
        return Refused(503, "export_running", said, retry_after_s=EXPORT_AGAIN_S)

    return Slots(most, EXPORTS_PER_ORG, refusal)


class Pieces(Response):
    """An answer in pieces. An error before the first one is answered as such; a later one ends the connection."""

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], media_type: str, headers: dict[str, str], size: int | None = None
    ) -> None:  # fmt: skip
        self.body_pieces = pieces
        self.status_code, self.media_type, self.background = 200, media_type, None
        self.init_headers({**headers, **({} if size is None else {"Content-Length": str(size)})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_pieces) as pieces:
            piece = await anext(pieces, b"")
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while piece:
                for start in range(0, len(piece), SEND_BYTES):
                    part = piece[start : start + SEND_BYTES]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                piece = await anext(pieces, b"")
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Download(Response):
    """Another answer, sent while a slot of the organisation is held; see the module."""

    def __init__(self, answer: Response, slots: Slots, org: str, pause_s: float) -> None:
        self._answer, self._slots, self._org, self._pause_s = answer, slots, org, pause_s
        self.status_code, self.background, self.raw_headers = 200, None, answer.raw_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slots.place(self._org):
            turns.pass_on(scope)
            sending = _Sending(scope, send, self._pause_s)
            try:
                await self._answer(scope, receive, sending)
            except _Ended:
                return
            except (PerdureError, OSError) as error:
                if not sending.begun:
                    raise
                log.warning("a download was broken off: %s", error)
                if not break_off(scope):
                    raise


class _Ended(Exception):
    """The client has gone, or was disconnected."""


class _Sending:
    """Sends to a client as long as it is there and takes something."""

    def __init__(self, scope: Scope, send: Send, pause_s: float) -> None:
        self._scope, self._send, self._pause_s = scope, send, pause_s
        self._watched = CONNECTION in scope
        self.begun = False

    async def __call__(self, message: Message | Any) -> None:
        if self._watched and CONNECTION not in self._scope:
            raise _Ended
        try:
            async with asyncio.timeout(self._pause_s):
                await self._send(message)
        except TimeoutError:
            if not break_off(self._scope):
                raise
            raise _Ended from None
        self.begun = True
        await turns.received(self._scope, len(message.get("body", b"")), 0.0)
