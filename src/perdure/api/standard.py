"""JSON as it is stored, made into JSON that every parser reads, a piece at a time.

What stages save may have NaN and Infinity, which standard JSON has no words for: they become null. All else is sent as
it is stored, without values being made of it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

PART_BYTES = 64 << 10  # that are looked through at once: many short strings take milliseconds
_NAMES = (b"NaN", b"Infinity")
_NAME_MAX = len(b"-Infinity")
_LETTERS = b"-NaInfity"  # of which they consist
#: A string, which may end with the part, or one of the names.
_FOUND = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z))|NaN|-?Infinity', re.DOTALL)


async def standard(stored: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The JSON of these pieces, which end anywhere, without numbers that are not finite."""
    parts = _Parts()
    async with aclosing(stored):
        async for piece in stored:
            for start in range(0, len(piece), PART_BYTES):
                if made := parts.next(piece[start : start + PART_BYTES]):
                    yield made
    if made := parts.end():
        yield made


class _Parts:
    """Goes through the parts, and knows whether one begins within a string."""

    def __init__(self) -> None:
        self._held, self._within = b"", False

    def next(self, part: bytes) -> bytes:
        """The next part, without what may be the beginning of an escape or of a name."""
        part = self._held + part
        end = len(part.rstrip(_LETTERS))
        if len(part) - end >= _NAME_MAX:  # so many of these letters stand in strings only
            end = len(part)
        end -= (end - len(part[:end].rstrip(b"\\"))) % 2
        self._held = part[end:]
        return self._replaced(part[:end])

    def end(self) -> bytes:
        """What was held back."""
        return self._replaced(self._held)

    def _replaced(self, part: bytes) -> bytes:
        within = self._within
        self._within ^= part.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') % 2 == 1
        if not any(name in part for name in _NAMES):
            return part
        if within:
            return _FOUND.sub(_null, b'"' + part)[1:]
        return _FOUND.sub(_null, part)


def _null(found: re.Match[bytes]) -> bytes:
    return found[1] or b"null"
