"""Forms (multipart/form-data): small fields in memory, one file in a spool, as they come."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from perdure.api.refused import Refused

FIELD_BYTES_MAX = 1 << 20
FIELDS_BYTES_MAX = 3 << 20  # of all fields together: a text, its `meta` and some words
PARTS_MAX = 50
AFTER_BYTES_MAX = 64 << 10  # behind the last boundary


class Spooling(Protocol):
    """Where the file goes."""

    path: Path

    def take(self, data: bytes) -> None: ...
    async def settle(self) -> None: ...
    async def end(self) -> str: ...


@dataclass(slots=True)
class Received:
    """A body: JSON, or fields and perhaps one file with its name and type as they were sent."""

    json: bytes | Path | None = None
    room: Path | None = None  # for more files, gone with the body
    fields: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    filename: str = ""
    media_type: str = ""
    digest: str = ""


async def read_form(pieces: AsyncIterator[bytes], boundary: bytes, spool: Spooling) -> Received:
    """The fields of a form, its file in the spool; Refused."""
    form, after = Form(spool), 0
    try:
        parser = MultipartParser(boundary, form.callbacks())
        async for piece in pieces:
            if form.ended:  # nobody reads what follows the last boundary
                after += len(piece)
                check_size(after, AFTER_BYTES_MAX)
                continue
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

    def __init__(self, spool: Spooling) -> None:
        self.received = Received()
        self.ended = False
        self._spool = spool
        self._parts = self._size = 0
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
        self._size += end - start
        check_size(len(self._data), FIELD_BYTES_MAX)
        check_size(self._size, FIELDS_BYTES_MAX)

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


def check_size(size: int, most: int) -> None:
    if size > most:
        raise Refused(413, "input_too_large", f"the body has more than {most} bytes, the most allowed")
