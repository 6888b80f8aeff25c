"""The content of an answer: unpacked while it comes in, never more of it than agreed, on disk where it is large.

The event loop only collects what arrives. A thread unpacks it and writes it, so other documents go on meanwhile.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from perdure.errors import Permanent, Transient

#: As much content is kept in memory; more goes to a temporary file.
MEMORY_BYTES_MAX = 1024 * 1024
PIECE_BYTES_MAX = 256 * 1024
#: Honest pages stay far below; deflate itself ends at 1032.
RATIO_MAX = 200
#: Below this no ratio harms anybody.
RATIO_BYTES_MIN = 8 * 1024 * 1024
#: Each part of an answer costs, however small: so many may be tiny,
PARTS_FREE = 20_000
#: and of more the mean must be as large as this.
PART_BYTES_MIN = 32
#: After so many parts others, and the deadline, get their turn.
PARTS_AT_ONCE = 64
#: So much of what came is handed to a thread at a time.
BATCH_BYTES = 1024 * 1024

ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_EITHER = zlib.MAX_WBITS | 32  # finds out itself whether it is gzip or zlib
_RAW = -zlib.MAX_WBITS
_GZIP_BEGIN = b"\x1f\x8b"


class Inflater:
    """Unpacks gzip and deflate, in pieces of bounded size however well they were packed. zlib.error if broken."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(_EITHER)
        self._begun = False

    @property
    def finished(self) -> bool:
        """Whether the packed data came to its end."""
        return self._unpack.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What this part of the packed data holds."""
        full = False  # a piece of full size: there may be more, although all input was taken
        while data or full:
            if self._unpack.eof:
                if not data.startswith(_GZIP_BEGIN):  # some servers fill up with zeros
                    return
                self._unpack = zlib.decompressobj(_EITHER)
            piece = self._some(data)
            full = len(piece) == PIECE_BYTES_MAX
            yield piece
            data = self._unpack.unconsumed_tail or self._unpack.unused_data

    def _some(self, data: bytes) -> bytes:
        try:
            piece = self._unpack.decompress(data, PIECE_BYTES_MAX)
        except zlib.error:
            if self._begun:
                raise
            self._unpack = zlib.decompressobj(_RAW)  # what some call deflate
            piece = self._unpack.decompress(data, PIECE_BYTES_MAX)
        self._begun = True
        return piece


def encoding_of(values: list[str]) -> str:
    """The one way in which the content is packed, "" for none; Permanent for any that was not asked for."""
    named = [word for value in values for part in value.lower().split(",") if (word := part.strip(" \t"))]
    packed = [word for word in named if word != "identity"]
    if len(packed) > 1 or not ENCODINGS.issuperset(packed):
        raise Permanent("encoding_unknown", "the content is packed in a way that was not asked for")
    return packed[0] if packed else ""


class Sink:
    """Where the content goes: memory, and from MEMORY_BYTES_MAX on a file, in `folder` if there is one. Raises:
    Permanent `too_large`, Transient `response_broken`."""

    def __init__(self, encoding: str, size_max: int, folder: Path | None) -> None:
        self.file: IO[bytes] = BytesIO()
        self.path: Path | None = None  # of a file in `folder`
        self.size = 0
        self.abandoned = False
        self._packed, self._size_max, self._folder = 0, size_max, folder
        self._inflater = Inflater() if encoding else None

    def take(self, parts: Sequence[bytes]) -> None:
        """Unpack and keep these parts. For a thread."""
        try:
            for part in parts:
                self._packed += len(part)
                for piece in (part,) if self._inflater is None else self._inflater.pieces(part):
                    if self.abandoned:
                        return
                    self.size += len(piece)
                    _check(self.size, self._packed, self._size_max)
                    self._write(piece)
        except zlib.error as error:
            raise Transient(f"the packed content is broken: {error}", code="response_broken") from error

    def finish(self) -> None:
        """All parts have come. For a thread."""
        if self._inflater is not None and self._packed and not self._inflater.finished:
            raise Transient("the packed content ends too early", code="response_broken")
        self.file.flush()
        self.file.seek(0)

    def _write(self, piece: bytes) -> None:
        if isinstance(self.file, BytesIO) and self.size > MEMORY_BYTES_MAX:
            begun = self.file.getbuffer()
            if self._folder is None:
                self.file = TemporaryFile()  # noqa: SIM115
            else:
                self.path = self._folder / "content"
                self.file = self.path.open("w+b")
            self.file.write(begun)
        self.file.write(piece)


async def receive(
    parts: AsyncIterator[bytes], encoding: str, size_max: int, folder: Path | None = None
) -> Sink:
    """The content as a file at its beginning. Permanent `too_large`; Transient if it is broken."""
    sink = Sink(encoding, size_max, folder)
    try:
        await _collected(parts, sink)
        await asyncio.to_thread(sink.finish)
    except BaseException:
        sink.file.close()
        raise
    return sink


async def _collected(parts: AsyncIterator[bytes], sink: Sink) -> None:
    """Hand the parts to the sink, several at a time."""
    waiting: list[bytes] = []
    length = packed = count = 0
    async for part in parts:
        packed += len(part)
        length += len(part)
        count += 1
        waiting.append(part)
        if count % PARTS_AT_ONCE == 0:
            _check_parts(count, packed)
            await asyncio.sleep(0)
        if length >= BATCH_BYTES:
            await _in_thread(sink, waiting)
            waiting, length = [], 0
    if waiting:
        await _in_thread(sink, waiting)


async def _in_thread(sink: Sink, parts: Sequence[bytes]) -> None:
    """Returns when the thread has ended, also if it is not wanted any more: it writes to a file that is closed next."""
    taking = asyncio.ensure_future(asyncio.to_thread(sink.take, parts))
    try:
        await asyncio.shield(taking)
    finally:
        if not taking.done():
            sink.abandoned = True
            await asyncio.wait({taking})
            taking.exception()


def _check(size: int, packed: int, size_max: int) -> None:
    if size > size_max:
        raise Permanent("too_large", f"the content has more than {size_max} bytes")
    if size > RATIO_BYTES_MIN and size > packed * RATIO_MAX:
        raise Permanent("too_large", f"{packed} bytes unpack to more than {size}: more than any page does")


def _check_parts(count: int, packed: int) -> None:
    if count > PARTS_FREE and packed < count * PART_BYTES_MIN:
        raise Permanent("too_large", f"the answer comes in {count} parts of a few bytes")
