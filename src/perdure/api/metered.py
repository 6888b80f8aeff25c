"""Requests in tiny pieces: how much of a connection is parsed in one turn of the event loop.

A body can come in chunks of one byte. One read of the socket then holds tens of thousands of them, and the server would
answer no other client until all are parsed. A connection therefore parses `EVENTS` pieces of a read at once. The rest
waits in the `Backlog`, which all connections share. The backlog takes at most half of the time of the event loop, and
callers (organisations, or addresses as long as the organisation is not known) take turns in it. A connection goes on
only after the application has taken the pieces that were parsed before.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import h11
from h11._receivebuffer import ReceiveBuffer
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl

EVENTS = 16  # that a connection parses at once; a request without a body is two
SLICE_S = 0.001  # that the backlog takes at once
RESTS = 1  # times as long as it took rests the backlog
CHUNKS_FREE = 2000  # of a body, before their size matters
CHUNK_BYTES = 64  # that the chunks of a body have on average, at least
HEAD_LINES_MAX = 256
CONNECTION = "perdure.connection"
_BLANK_LINE = re.compile(rb"\n\r?\n")


class Lines(ReceiveBuffer):
    """Data that has not been parsed; its heads and trailers have at most `HEAD_LINES_MAX` lines."""

    long = False

    def maybe_extract_lines(self) -> list[bytearray] | None:
        if self._data.count(b"\n") > HEAD_LINES_MAX:
            end = _BLANK_LINE.search(self._data)
            if self._data.count(b"\n", 0, end.start() if end else len(self._data)) > HEAD_LINES_MAX:
                self.long = True
                raise h11.LocalProtocolError("too many lines")
        return super().maybe_extract_lines()


class Metered(h11.Connection):
    """A parser that claims to need more data when its share of events is used up."""

    left = 0  # of the share
    cut = False  # whether the share ended before the data
    chunks_tiny = False  # and the request must be refused
    _chunks = _bytes = 0

    def __init__(self, role: type[h11.SERVER], incomplete_bytes_max: int) -> None:
        super().__init__(role, incomplete_bytes_max)
        self._receive_buffer = self._lines = Lines()

    @property
    def head_long(self) -> bool:
        """Whether the request must be refused for its many lines."""
        return self._lines.long

    def start(self) -> None:
        """Begin a new share."""
        self.left, self.cut = EVENTS, False

    def next_event(self) -> Any:
        if self.left <= 0 or self.chunks_tiny:
            self.cut = True
            return h11.NEED_DATA
        self.left -= 1
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks += event.chunk_end
            self._bytes += len(event.data)
            self.chunks_tiny = self._chunks > CHUNKS_FREE and self._bytes < CHUNK_BYTES * self._chunks
        elif isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        return event


class Flow(FlowControl):
    """Reads from the socket only when neither the application nor the backlog of the connection is in the way."""

    def __init__(self, transport: asyncio.Transport, wanted: Callable[[], None]) -> None:
        super().__init__(transport)
        self.wanted: Callable[[], None] | None = wanted  # called when the application asks for more
        self.held = False

    def settle(self) -> None:
        """Read, or do not."""
        if self.read_paused or self.held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_reading(self) -> None:
        self.read_paused = True
        self.settle()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self.settle()
        if self.held and self.wanted is not None:
            self.wanted()


class Waiting(Protocol):
    """A connection that has data to parse."""

    def go_on(self) -> None: ...


class Backlog:
    """Connections that have more data than their share; callers take turns."""

    def __init__(self) -> None:
        self._of: dict[str, deque[Waiting]] = {}
        self._runs = False

    def add(self, whose: str, connection: Waiting) -> None:
        """Call `go_on` of the connection when the turn of this caller comes."""
        self._of.setdefault(whose, deque()).append(connection)
        if not self._runs:
            self._runs = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        if not self._of:
            self._runs = False
            return
        began_s = took_s = time.perf_counter()
        try:
            while self._of and took_s - began_s < SLICE_S:
                whose = next(iter(self._of))
                queue = self._of.pop(whose)
                connection = queue.popleft()
                if queue:
                    self._of[whose] = queue  # behind the others
                connection.go_on()
                took_s = time.perf_counter()
        finally:
            asyncio.get_running_loop().call_later(RESTS * (took_s - began_s), self._run)


def stop_listening(scope: Scope) -> None:
    """Throw away the rest of the body of a request that is refused, without parsing it."""
    if (connection := scope.get(CONNECTION)) is not None:
        connection.stop_listening()


def break_off(scope: Scope) -> bool:
    """Close the connection of a request whose answer has begun, so that the client sees it is incomplete; False if the
    server that runs the application has no such connections."""
    if (connection := scope.get(CONNECTION)) is None:
        return False
    connection.break_off()
    return True
