"""Bodies of requests: JSON in memory within a limit; files as multipart or raw bodies, streamed to disk.

Whatever is too large, too slow or of no known form is refused as soon as that shows; what was written is removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from perdure.api.problems import Refused
from perdure.core.frozen import frozen
from perdure.engine import rooms

WRITE_BYTES = 1 << 20
FIELD_BYTES_MAX = 1 << 20
PARTS_MAX = 50
FREE_BYTES = 64 << 20  # of the disk, that an upload leaves
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


@dataclass(slots=True)
class Received:
    """A body: fields, and perhaps one file with its name and type as they were sent."""

    fields: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    filename: str = ""
    media_type: str = ""
    digest: str = ""


@asynccontextmanager
async def received(request: Request, limits: Limits) -> AsyncIterator[Received]:
    """The body of the request; its file is gone afterwards. Refused."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    form = kind.decode("latin-1")
    if form == JSON:
        yield Received(fields=await json_body(request, limits))
        return
    if form in ("", URLENCODED):
        raise Refused(415, "content_type_unknown", f"the Content-Type is {form or 'missing'}; {SEND}")
    length = request.headers.get("content-length", "")
    if length.isdigit():
        _check_size(int(length), limits.file_bytes + (WRITE_BYTES if form == MULTIPART else 0))
    room = await asyncio.to_thread(rooms.new_room, limits.spool)
    try:
        _check_room(room, int(length) if length.isdigit() else 0)
        with Spool(room / "body", limits.file_bytes) as spool:
            if form == MULTIPART:
                yield await _multipart(request, options.get(b"boundary", b""), spool, limits)
            else:
                yield await _raw(request, form, spool, limits)
    finally:
        await asyncio.to_thread(rooms.remove, room)


async def small_body(request: Request, limits: Limits) -> bytes:
    """A body that is held in memory; Refused."""
    body = bytearray()
    async for piece in pieces(request, limits):
        body += piece
        _check_size(len(body), limits.json_bytes)
    return bytes(body)


async def json_body(request: Request, limits: Limits) -> dict[str, Any]:
    """A JSON object; Refused."""
    try:
        found = json.loads(await small_body(request, limits))
    except (ValueError, RecursionError) as error:
        raise Refused(422, "request_invalid", f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused(422, "request_invalid", "the body must be a JSON object")
    return found


async def pieces(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """The body as it comes; 408 where it stops coming."""
    late = Refused(408, "upload_too_slow", "the body did not arrive in time; send it again")
    stream, loop = aiter(request.stream()), asyncio.get_running_loop()
    until_s = loop.time() + limits.total_s
    while (now_s := loop.time()) < until_s:
        try:
            # only around the wait: a time that ran out while the piece is worked on would cancel whoever works on it
            async with asyncio.timeout_at(min(until_s, now_s + limits.pause_s)):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise late from None
        except ClientDisconnect:
            raise Refused(
                400, "upload_broken_off", "the connection was closed before the body was complete"
            ) from None
        yield piece
    raise late


class Spool:
    """A file that is written in large pieces off the event loop; never larger than allowed."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path, self.size = path, 0
        self._max, self._pending = bytes_max, bytearray()
        self._digest = hashlib.sha256()

    def __enter__(self) -> Spool:
        self._file = self.path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, data: bytes) -> None:
        """Remember a piece; `settle` writes it."""
        self.size += len(data)
        _check_size(self.size, self._max)
        self._pending += data

    async def settle(self, least: int = WRITE_BYTES) -> None:
        """Write what waits, if it is so much."""
        if len(self._pending) >= least:
            pending, self._pending = bytes(self._pending), bytearray()
            await asyncio.to_thread(self._write, pending)

    def _write(self, data: bytes) -> None:
        _check_room(self.path.parent, len(data))
        self._digest.update(data)
        self._file.write(data)

    async def end(self) -> str:
        """Everything is in the file; a hash of it."""
        await self.settle(1)
        await asyncio.to_thread(self._file.flush)
        return self._digest.hexdigest()


async def _raw(request: Request, form: str, spool: Spool, limits: Limits) -> Received:
    async for piece in pieces(request, limits):
        spool.take(piece)
        await spool.settle()
    digest = await spool.end()
    return Received(path=spool.path, media_type=form, digest=digest)


async def _multipart(request: Request, boundary: bytes, spool: Spool, limits: Limits) -> Received:
    form = Form(spool)
    try:
        parser = MultipartParser(boundary, form.callbacks())
        async for piece in pieces(request, limits):
            parser.write(piece)
            await spool.settle()
        parser.finalize()
    except FormParserError as error:
        raise Refused(422, "request_invalid", f"the form cannot be read: {error}") from None
    if not form.ended:
        raise Refused(422, "request_invalid", "the form breaks off; send it again")
    found = form.received
    if found.path is not None:
        found.digest = await spool.end()
    return found


class Form:
    """The parts of a form as they are parsed: small fields in memory, one file in the spool."""

    def __init__(self, spool: Spool) -> None:
        self.received = Received()
        self.ended = False
        self._spool = spool
        self._parts = 0
        self._header, self._value = bytearray(), bytearray()
        self._headers: dict[str, str] = {}
        self._name, self._data, self._is_file = "", bytearray(), False

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin, "on_part_data": self._part_data, "on_part_end": self._end,
            "on_header_field": self._header_field, "on_header_value": self._header_value,
            "on_header_end": self._header_end, "on_headers_finished": self._headers_finished, "on_end": self._finish,
        }  # fmt: skip

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise Refused(413, "parts_too_many", f"a form has at most {PARTS_MAX} parts")
        self._headers, self._data = {}, bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header.decode("latin-1").lower()] = self._value.decode("latin-1")
        self._header, self._value = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", ""))
        self._name = _text(options.get(b"name", b""))
        self._is_file = b"filename" in options or self._name == "file"
        if not self._is_file:
            return
        if self.received.path is not None:
            raise Refused(422, "files_too_many", "one request takes one file; send the others on their own")
        self.received.path = self._spool.path
        self.received.filename = os.path.basename(_text(options.get(b"filename", b"")))
        self.received.media_type = self._headers.get("content-type", "")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._spool.take(data[start:end])
            return
        self._data += data[start:end]
        _check_size(len(self._data), FIELD_BYTES_MAX)

    def _end(self) -> None:
        if not self._is_file:
            try:
                self.received.fields[self._name] = self._data.decode()
            except UnicodeDecodeError:
                raise Refused(422, "text_broken", f"the field {self._name!r} is not UTF-8") from None

    def _finish(self) -> None:
        self.ended = True


def _text(raw: bytes) -> str:
    """What a header says, which clients send as UTF-8 although parsers read it as Latin-1."""
    return raw.decode("utf-8", "replace")


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise Refused(413, "input_too_large", f"the body has more than {most} bytes, the most allowed")


def _check_room(directory: Path, size: int) -> None:
    if shutil.disk_usage(directory).free < size + FREE_BYTES:
        raise Refused(507, "storage_full", "the server's disk is full; nothing was taken in, try again later")
