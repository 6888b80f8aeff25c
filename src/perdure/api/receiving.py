"""Bodies of requests: JSON within a limit; files as multipart or raw bodies and large JSON, streamed to disk.

Whatever is too large, too slow or of no known form is refused as soon as that shows; what was written is removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar, TypeVarTuple

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from perdure.api import turns
from perdure.api.caller import ADMITTED
from perdure.api.forms import Received, check_size, read_form
from perdure.api.jsons import LIGHT_BYTES, is_light
from perdure.api.readers import Readers
from perdure.api.refused import Refused
from perdure.core.frozen import frozen
from perdure.engine import rooms

WRITE_BYTES = 1 << 20
FORM_BYTES = 1 << 20  # that a form may have besides its file
FREE_BYTES = 64 << 20  # of the disk, that an upload leaves
SHARES = 2  # of the rest, one of which is for the uploads of one organisation
STOPPING_S = 3.0  # that a body has to arrive when the server stops
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
JSON, MULTIPART, URLENCODED = "application/json", "multipart/form-data", "application/x-www-form-urlencoded"
SEND = "send JSON, a form with a file (`curl -F file=@x.pdf`), or the file itself with its Content-Type"


@frozen
class Limits:
    """What one request may bring, and how long it may take."""

    file_bytes: int
    json_bytes: int
    pause_s: float  # between two pieces
    total_s: float
    spool: Path | None = None  # where files are written; None: among the system's temporary ones
    pace: int = 0  # bytes that come in a second at least, on the average
    json_values: int = 500_000
    download_pause_s: float = 30.0  # that a client may take for a part of a download


@asynccontextmanager
async def received(request: Request, limits: Limits) -> AsyncIterator[Received]:
    """The body of the request; its file is gone afterwards. Refused."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    form = kind.decode("latin-1")
    if form == JSON:
        async with json_body(request, limits) as body:
            yield body
        return
    if form in ("", URLENCODED):
        raise Refused(415, "content_type_unknown", f"the Content-Type is {form or 'missing'}; {SEND}")
    length = request.headers.get("content-length", "")
    if length.isdigit():
        check_size(int(length), limits.file_bytes + (FORM_BYTES if form == MULTIPART else 0))
    async with _spool(request, limits.file_bytes, int(length) if length.isdigit() else 0) as spool:
        if form == MULTIPART:
            whole = pieces(request, limits, limits.file_bytes + FORM_BYTES)
            body = await read_form(whole, options.get(b"boundary", b""), spool)
            body.room = spool.path.parent
            yield body
        else:
            yield await _raw(request, form, spool, limits)


@asynccontextmanager
async def _spool(request: Request, bytes_max: int, expected: int) -> AsyncIterator[Spool]:
    limits: Limits = request.app.state.limits
    uploads: Uploads = request.app.state.uploads
    with uploads.share(request.scope[ADMITTED].org) as share:
        room = await asyncio.to_thread(rooms.new_room, limits.spool)
        try:
            await asyncio.to_thread(share.check, room, expected)
            spool = await asyncio.to_thread(Spool, room / "body", bytes_max, share)
            try:
                yield spool
            finally:
                await asyncio.to_thread(spool.close)
        finally:
            await asyncio.to_thread(rooms.remove, room)


@asynccontextmanager
async def json_body(request: Request, limits: Limits) -> AsyncIterator[Received]:
    """A body of JSON, in memory or, if it is large, in a file: a slow sender holds little memory. Raises: Refused."""
    stream, start = pieces(request, limits, limits.json_bytes), bytearray()
    async for piece in stream:
        start += piece
        if len(start) > LIGHT_BYTES:
            break
    else:
        yield Received(json=bytes(start))
        return
    async with _spool(request, limits.json_bytes, 0) as spool:
        spool.take(bytes(start))
        del start
        async for piece in stream:
            spool.take(piece)
            await spool.settle()
        await spool.end()
        yield Received(json=spool.path, room=spool.path.parent)


async def read_body(request: Request, org: str, body: Received, work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Do the work that reads the body: here if it is light, else in a process of its own. Raises: what it raises."""
    heavy = isinstance(body.json, Path) or not is_light(body.json or b"", *body.fields.values())
    readers: Readers = request.app.state.readers
    if not heavy:
        return work(*args)
    await turns.pay(request.scope)
    return await readers.run(org, work, *args, room=body.room, took=partial(turns.owe, request.scope))


class Uploads:
    """The bodies that are being received. When the server stops they have a moment more, then they are refused."""

    def __init__(self) -> None:
        self.until_s = math.inf
        self.spooled = Spooled()
        self._waits: set[asyncio.Timeout] = set()

    def stop(self) -> None:
        """The server stops."""
        self.until_s = asyncio.get_running_loop().time() + STOPPING_S
        for wait in self._waits:
            if not wait.expired():  # its time has run out just now
                wait.reschedule(min(wait.when() or math.inf, self.until_s))

    @contextmanager
    def share(self, org: str) -> Iterator[Share]:
        """The room on the disk for one body of the organisation."""
        share = Share(self.spooled, org)
        try:
            yield share
        finally:
            share.give_back()

    async def next(self, stream: AsyncIterator[bytes], until_s: float) -> bytes:
        """The next piece. Raises: TimeoutError, StopAsyncIteration."""
        async with asyncio.timeout_at(min(until_s, self.until_s)) as wait:
            self._waits.add(wait)
            try:
                return await anext(stream)
            finally:
                self._waits.discard(wait)


class Spooled:
    """Bytes on the disk that are of bodies under way, by organisation; threads write them."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self.lock = Lock()


class Share:
    """Bytes of one body on the disk. All bodies of an organisation together take at most half of the room that is free
    without them, and leave the other half to others."""

    def __init__(self, spooled: Spooled, org: str) -> None:
        self._spooled, self._org, self._own, self._ended = spooled, org, 0, False

    def check(self, directory: Path, size: int) -> None:
        """Check that so many bytes more may be written. Raises: Refused."""
        free, taken = shutil.disk_usage(directory).free - FREE_BYTES, self._spooled.of[self._org]
        if taken + size <= (free + taken) // SHARES:
            return
        if free >= size and taken > self._own:
            raise Refused(
                429, "rate_limited", "other uploads of this organisation take its share of the disk; wait for them",
                retry_after_s=turns.AGAIN_S,
            )  # fmt: skip
        why = (
            "the upload is larger than its organisation's share (half) of the server's free disk"
            if free >= size
            else "the server's disk is full"
        )
        raise Refused(507, "storage_full", f"{why}; nothing was taken in, try again later")

    def take(self, directory: Path, size: int) -> None:
        """Count so many bytes more, which are about to be written. Raises: Refused."""
        with self._spooled.lock:
            self.check(directory, size)
            if not self._ended:  # else the request was cancelled, and its thread still writes
                self._spooled.of[self._org] += size
                self._own += size

    def give_back(self) -> None:
        """The body is deleted."""
        with self._spooled.lock:
            self._ended = True
            self._spooled.of[self._org] -= self._own
            if not self._spooled.of[self._org]:
                del self._spooled.of[self._org]


async def pieces(request: Request, limits: Limits, bytes_max: int) -> AsyncIterator[bytes]:
    """The body as it comes, wherever its bytes belong; 413 where it is too large, 408 where it comes too slowly, 429
    where others of the organisation must pause, 503 where the server stops before it is complete."""
    late = Refused(408, "upload_too_slow", "the body did not arrive in time; send it again")
    uploads: Uploads = request.app.state.uploads
    turns.check_uploads(request.scope)
    stream, loop = aiter(request.stream()), asyncio.get_running_loop()
    until_s, size, waited_s = loop.time() + limits.total_s, 0, 0.0
    while (now_s := loop.time()) < until_s:
        wait_until_s = min(until_s, now_s + limits.pause_s)
        try:
            # only around the wait: a time that ran out while the piece is worked on would cancel whoever works on it
            piece = await uploads.next(stream, wait_until_s)
        except StopAsyncIteration:
            return
        except TimeoutError:
            if uploads.until_s <= wait_until_s:
                raise Refused(
                    503,
                    "server_stopping",
                    "the server stops; nothing was taken in, send it again",
                    retry_after_s=5,
                ) from None
            raise late from None
        except ClientDisconnect:
            raise Refused(
                400, "upload_broken_off", "the connection was closed before the body was complete"
            ) from None
        size += len(piece)
        check_size(size, bytes_max)
        waited_s += (
            loop.time() - now_s
        )  # for the client; the time that we take or pause ourselves is not charged
        if size < limits.pace * (waited_s - limits.pause_s):
            raise late
        began_s = loop.time()
        yield piece
        handled_s = loop.time()
        await turns.received(request.scope, len(piece), handled_s - began_s)
        until_s += loop.time() - handled_s
    raise late


class Spool:
    """A file that is written in large pieces off the event loop; never larger than allowed."""

    def __init__(self, path: Path, bytes_max: int, share: Share) -> None:
        self.path, self.size = path, 0
        self._max, self._pending, self._share = bytes_max, bytearray(), share
        self._digest = hashlib.sha256()
        self._file = path.open("wb")

    def close(self) -> None:
        self._file.close()

    def take(self, data: bytes) -> None:
        """Remember a piece; `settle` writes it."""
        self.size += len(data)
        check_size(self.size, self._max)
        self._pending += data

    async def settle(self, least: int = WRITE_BYTES) -> None:
        """Write what waits, if it is so much."""
        if len(self._pending) >= least:
            pending, self._pending = bytes(self._pending), bytearray()
            await asyncio.to_thread(self._write, pending)

    def _write(self, data: bytes) -> None:
        self._share.take(self.path.parent, len(data))
        self._digest.update(data)
        self._file.write(data)

    async def end(self) -> str:
        """Everything is in the file; a hash of it."""
        await self.settle(1)
        await asyncio.to_thread(self._file.flush)
        return self._digest.hexdigest()


async def _raw(request: Request, form: str, spool: Spool, limits: Limits) -> Received:
    async for piece in pieces(request, limits, limits.file_bytes):
        spool.take(piece)
        await spool.settle()
    digest = await spool.end()
    return Received(path=spool.path, media_type=form, digest=digest)
