"""Plain values as bytes and back: the form of everything that crosses between a worker and its cells.

A value is None, a bool, a 64-bit integer, a float, text, bytes, a list, or a map with text as keys. Bytes from a cell
may be forged: to decode them imports, looks up and calls nothing, takes time and memory in proportion to their length,
and ends with a value or with Malformed.
"""

from __future__ import annotations

import struct
from typing import Any

#: A message holds at most this many values, nested at most this deep.
VALUES_MAX = 4_000_000
DEPTH_MAX = 12

_NONE, _TRUE, _FALSE, _INT, _FLOAT, _TEXT, _BYTES, _LIST, _MAP = b"ntfidsblm"
_COUNTED = struct.Struct("!BI")
_COUNT = struct.Struct("!I")
_WHOLE = struct.Struct("!Bq")
_INTEGER = struct.Struct("!q")
_REAL = struct.Struct("!Bd")
_DOUBLE = struct.Struct("!d")


class Malformed(ValueError):
    """A message is not what it must be: its sender has a bug or is under foreign control."""


class TooLarge(Malformed):
    """A message, or a run as a whole, is beyond a bound that an honest sender can meet, too."""


def encode(value: Any) -> bytes:
    """The value as bytes. Raises: ValueError, TypeError, OverflowError for one that is not plain."""
    parts: list[bytes] = []
    _write(value, parts.append, 0)
    return b"".join(parts)


def _write(value: Any, add: Any, depth: int) -> None:
    if value is None:
        add(b"n")
    elif value is True:
        add(b"t")
    elif value is False:
        add(b"f")
    elif isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        add(_COUNTED.pack(_TEXT, len(raw)))
        add(raw)
    elif isinstance(value, bytes):
        add(_COUNTED.pack(_BYTES, len(value)))
        add(value)
    elif isinstance(value, int):
        _packed(add, _WHOLE, _INT, value)
    elif isinstance(value, float):
        add(_REAL.pack(_FLOAT, value))
    elif isinstance(value, list | tuple | dict):
        _write_many(value, add, depth + 1)
    else:
        raise TypeError(f"{type(value).__name__} is not a plain value")


def _packed(add: Any, form: struct.Struct, tag: int, value: int) -> None:
    try:
        add(form.pack(tag, value))
    except struct.error:
        raise OverflowError("an integer has more than 64 bits") from None


def _write_many(value: list[Any] | tuple[Any, ...] | dict[str, Any], add: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    if not isinstance(value, dict):
        add(_COUNTED.pack(_LIST, len(value)))
        for part in value:
            _write(part, add, depth)
        return
    add(_COUNTED.pack(_MAP, len(value)))
    for key, part in value.items():
        if not isinstance(key, str):
            raise TypeError("a key is not text")
        _write(key, add, depth)
        _write(part, add, depth)


def decode(body: bytes) -> Any:
    """The value in these bytes, which must be all of them. Raises: Malformed."""
    reader = _Reader(body)
    try:
        value = reader.value(0)
    except (struct.error, IndexError):
        raise Malformed("it ends too early") from None
    except UnicodeDecodeError:
        raise Malformed("a text is not UTF-8") from None
    if reader.at != len(body):
        raise Malformed("more follows after its end")
    return value


class _Reader:
    """Goes through the bytes once. Nothing is allocated for a count that the bytes do not bear out."""

    __slots__ = ("at", "body", "left")

    def __init__(self, body: bytes) -> None:
        self.body, self.at, self.left = body, 0, VALUES_MAX

    def value(self, depth: int) -> Any:
        at = self.at
        tag = self.body[at]
        self.at = at + 1
        self.left -= 1
        if self.left < 0:
            raise TooLarge(f"a message with more than {VALUES_MAX:,} values")
        if tag == _TEXT:
            return str(self._slice(), "utf-8", "surrogatepass")
        if tag == _BYTES:
            return self._slice()
        if tag == _INT:
            self.at += 8
            return _INTEGER.unpack_from(self.body, at + 1)[0]
        if tag == _NONE:
            return None
        if tag in (_TRUE, _FALSE):
            return tag == _TRUE
        if tag == _FLOAT:
            self.at += 8
            return _DOUBLE.unpack_from(self.body, at + 1)[0]
        return self._many(tag, depth + 1)

    def _many(self, tag: int, depth: int) -> Any:
        if tag not in (_LIST, _MAP):
            raise Malformed(f"unknown tag {tag}")
        if depth > DEPTH_MAX:
            raise Malformed(f"it is nested deeper than {DEPTH_MAX}")
        (count,) = _COUNT.unpack_from(self.body, self.at)
        self.at += 4
        if count > len(self.body) - self.at:  # each takes a byte at least
            raise Malformed("it ends too early")
        if tag == _LIST:
            return [self.value(depth) for _ in range(count)]
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.value(depth)
            if not isinstance(key, str) or key in found:
                raise Malformed("a key is not text, or is there twice")
            found[key] = self.value(depth)
        return found

    def _slice(self) -> bytes:
        (size,) = _COUNT.unpack_from(self.body, self.at)
        start = self.at + 4
        self.at = start + size
        if self.at > len(self.body):
            raise Malformed("it ends too early")
        return self.body[start : self.at]
