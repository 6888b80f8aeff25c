"""Where messages begin in an mbox, found without reading the file into memory.

A line begins a message if, and only if,

- it is the first of the file (after a byte order mark, NULs and empty lines), or the line before it is empty, or NULs
  stand before it (a crash left them), and
- it reads `From SENDER DATE`, DATE with weekday, month, day, time and year in one of the usual orders, and
- a header, an empty line or the end of the file follows.

So a line of prose that begins with "From " ends no message, quoted (`>From `) or not. A Content-Length is believed only
where it leads exactly to such a line or to the end of the file; then nothing before that place begins a message.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from typing import Protocol

WINDOW_BYTES = 1 << 20
_LINES_BYTES = 1_024  # a From_ line and the beginning of the next one
_NULS_MAX = 64 * 1024
_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_FROM = re.compile(
    rb"From [^\r\n]{0,300}?\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +"
    rb"(?:" + _MONTH + rb" +\d{1,2}|\d{1,2} +" + _MONTH + rb")\b"
    rb"(?=[^\r\n]{0,60}? \d{1,2}:\d\d)(?=[^\r\n]{0,60}? \d{4}\b)[^\r\n]{0,60}(?:\r?\n|\Z)"
    rb"(?=>?[!-9;-~]+(?:[ \t]*:|\Z)|>From |\r?\n|\Z)"
)
_LEADING = re.compile(rb"[\x00\r\n]*")
_LENGTH = re.compile(rb"^Content-Length:[ \t]*(\d{1,12})[ \t]*\r?$", re.I | re.M)
_HEADERS_END = re.compile(rb"\r?\n\r?\n")


class Source(Protocol):
    """Bytes that can be read anywhere."""

    size: int

    def read(self, at: int, count: int) -> bytes: ...


class Memory:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def read(self, at: int, count: int) -> bytes:
        return self._data[at : at + count]

    def close(self) -> None:
        pass


class File:
    """A file as long as it was when it was opened; what is appended meanwhile is left for the next time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def read(self, at: int, count: int) -> bytes:
        data = os.pread(self._fd, min(count, max(0, self.size - at)), at)
        while len(data) < min(count, self.size - at) and (more := os.pread(self._fd, count, at + len(data))):
            data += more[: count - len(data)]
        return data

    def close(self) -> None:
        os.close(self._fd)


def first(source: Source) -> int | None:
    """Where the first message begins; None if this is no mbox."""
    head = source.read(0, _NULS_MAX + _LINES_BYTES)
    at = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    found = _LEADING.match(head, at)
    at = found.end() if found else at
    return at if _FROM.match(head, at) else None


def spans(source: Source, start: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of each message from the one that begins at `start` on; together they are the rest of the file."""
    window = _Window(source)
    while start < source.size:
        end = window.next(start + 1)
        if end < source.size:
            end = _by_length(source, start, end) or end
        yield start, end
        start = end


class _Window:
    """Looks for beginnings, forwards, in one piece of the source after the other."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._start, self._data = 0, b""
        self._limit = 0  # what begins before it can be judged by what is in the window

    def next(self, at: int) -> int:
        """The first beginning at or after `at`; the size of the source if there is none."""
        while at < self._source.size:
            if at >= self._limit:
                self._move(at)
            place = self._data.find(b"From ", at - self._start, self._limit - self._start + 4)
            if place < 0:
                at = self._limit
            elif self._begins(place):
                return self._start + place
            else:
                at = self._start + place + 5
        return self._source.size

    def _move(self, at: int) -> None:
        self._start = max(0, at - 3)
        self._data = self._source.read(self._start, WINDOW_BYTES)
        end = self._start + len(self._data)
        self._limit = self._source.size if len(self._data) < WINDOW_BYTES else end - _LINES_BYTES

    def _begins(self, place: int) -> bool:
        apart = self._data[max(0, place - 3) : place].endswith((b"\n\n", b"\n\r\n", b"\x00"))
        return apart and _FROM.match(self._data, place) is not None


def _by_length(source: Source, start: int, end: int) -> int | None:
    """Where the message ends by its Content-Length, if that is exact and beyond `end`."""
    head = source.read(start, min(end - start, 64 * 1024))
    headers = _HEADERS_END.search(head)
    said = _LENGTH.search(head, 0, headers.start() + 1) if headers else None
    if headers is None or said is None:
        return None
    begin = start + headers.end() + int(said[1])
    if begin <= end or begin > source.size:
        return None
    rest = source.read(begin, _LINES_BYTES)
    gap = re.match(rb"(?:\r?\n){0,2}", rest)
    at = gap.end() if gap else 0
    if not rest[at:]:
        return source.size
    return begin + at if source.read(begin + at - 1, 1) == b"\n" and _FROM.match(rest, at) else None
