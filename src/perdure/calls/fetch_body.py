"""The content of an answer: unpacked while it comes in, never more of it than agreed, on disk where it is large."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import IO, cast

from perdure.errors import Permanent, Transient

#: As much content is kept in memory; more goes to a temporary file without a name.
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


async def receive(parts: AsyncIterator[bytes], encoding: str, size_max: int) -> tuple[IO[bytes], int]:
    """The content as a file at its beginning, and its size. Permanent `too_large`; Transient if it is broken."""
    file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX)  # noqa: SIM115
    try:
        size = await _unpacked(parts, encoding, size_max, file)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    if size > MEMORY_BYTES_MAX:
        return cast(IO[bytes], file), size
    with file:
        return BytesIO(file.read()), size


async def _unpacked(
    parts: AsyncIterator[bytes], encoding: str, size_max: int, file: SpooledTemporaryFile[bytes]
) -> int:
    inflater = Inflater() if encoding else None
    packed = size = count = 0
    try:
        async for part in parts:
            packed += len(part)
            count += 1
            if count % PARTS_AT_ONCE == 0:
                _check_parts(count, packed)
                await asyncio.sleep(0)
            for piece in (part,) if inflater is None else inflater.pieces(part):
                size += len(piece)
                _check(size, packed, size_max)
                file.write(piece)
                if inflater is not None:
                    await asyncio.sleep(0)  # unpacking is work
    except zlib.error as error:
        raise Transient(f"the packed content is broken: {error}", code="response_broken") from error
    if inflater is not None and packed and not inflater.finished:
        raise Transient("the packed content ends too early", code="response_broken")
    return size


def _check(size: int, packed: int, size_max: int) -> None:
    if size > size_max:
        raise Permanent("too_large", f"the content has more than {size_max} bytes")
    if size > RATIO_BYTES_MIN and size > packed * RATIO_MAX:
        raise Permanent("too_large", f"{packed} bytes unpack to more than {size}: more than any page does")


def _check_parts(count: int, packed: int) -> None:
    if count > PARTS_FREE and packed < count * PART_BYTES_MIN:
        raise Permanent("too_large", f"the answer comes in {count} parts of a few bytes")
