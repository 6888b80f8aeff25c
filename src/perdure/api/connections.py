"""Limits of connections to the HTTP server: their number, in all and per address, and the time they may take.

A connection that has not sent the whole head of a request within `head_s` is closed, and so is one whose client does
not read its answer. A connection beyond the limits is answered 503 and closed before anything is read. A body in tiny
chunks is parsed piece by piece (`metered`), and refused if its chunks stay tiny.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from perdure.api.metered import CHUNK_BYTES, CONNECTION, HEAD_LINES_MAX, Backlog, Flow, Metered
from perdure.api.turns import TURN
from perdure.settings import Settings

HEAD_BYTES_MAX = 65_536
DESCRIPTORS_MAX = 65_536  # enough; programs that workers start may look at each
DESCRIPTORS_KEPT = 128  # for the store, its blobs and the log
STALL_S = 300.0  # without a byte of the answer taken
LINGER_S, LINGER_BYTES = (
    1.0,
    16 << 20,
)  # that a client may send after it was refused, or it would not hear why
SELDOM_S = 10.0
SELDOM = ("socket.accept()", "Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket")


def _answer(status: str, code: str, detail: str, more: str = "Retry-After: 5\r\n") -> bytes:
    number, _, title = status.partition(" ")
    problem = {
        "type": f"urn:perdure:{code}",
        "title": title,
        "status": int(number),
        "code": code,
        "detail": detail,
    }
    body = json.dumps(problem).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body


FULL = _answer(
    "503 Service Unavailable", "connections_too_many", "too many connections are open; try again later"
)
LATE = _answer(
    "408 Request Timeout", "head_too_slow", "the head of the request did not arrive in time; send it again"
)
TINY = _answer(
    "400 Bad Request", "chunks_too_small", f"the chunks of the body have less than {CHUNK_BYTES} bytes on average; "
    "send larger ones", "",
)  # fmt: skip
LONG = _answer(
    "431 Request Header Fields Too Large", "head_too_long", f"the head of the request has more than {HEAD_LINES_MAX} "
    "lines; send fewer", "",
)  # fmt: skip


class Guard:
    """Count of connections, in all and of each address."""

    def __init__(self, most: int, most_of_one: int, head_s: float, idle_s: float) -> None:
        self.most, self.most_of_one, self.head_s, self.idle_s = most, most_of_one, head_s, idle_s
        self._of: Counter[str] = Counter()
        self.backlog = Backlog()

    @classmethod
    def of(cls, settings: Settings) -> Guard:
        """Make one as the settings say, within the file descriptors: a connection may need one for a file, too."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if descriptors == resource.RLIM_INFINITY:
            descriptors = DESCRIPTORS_MAX
        most = max(2, min(settings.api_connections_max, (descriptors - DESCRIPTORS_KEPT) // 2))
        one = min(most, settings.api_connections_per_address or max(1, most // 2))
        return cls(most, one, settings.api_head_s, settings.api_idle_s)

    @property
    def open(self) -> int:
        return self._of.total()

    def enter(self, whose: str) -> bool:
        """Count one more connection of this address; False if there is no room for it."""
        if self.open >= self.most or self._of[whose] >= self.most_of_one:
            return False
        self._of[whose] += 1
        return True

    def leave(self, whose: str) -> None:
        self._of[whose] -= 1
        if not self._of[whose]:
            del self._of[whose]


class Guarded(H11Protocol):
    """A connection that its guard has let in, with limits of time."""

    conn: Metered
    flow: Flow
    scope: Any  # None before the first request
    _whose: str | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _queued = False  # in the backlog
    _unheard = -1  # bytes that were thrown away; -1: it listens
    on_lost: Callable[[], None] | None = None  # called when the client has gone

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = Metered(h11.SERVER, config.h11_max_incomplete_event_size or HEAD_BYTES_MAX)

    @property
    def _guard(self) -> Guard:
        guard: Guard = self.config.app.state.guard  # type: ignore[union-attr]
        return guard

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        whose = whose_network(transport.get_extra_info("peername"))
        if not self._guard.enter(whose):
            transport.write(FULL)
            transport.close()
            return
        self._whose = whose
        super().connection_made(transport)
        self.flow = Flow(transport, self._wanted)
        transport.set_write_buffer_limits(0)  # or the last bytes, which nobody takes, would not be watched
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._whose is None:
            return
        self._guard.leave(self._whose)
        self._whose = None
        self._end_timers()
        if self.on_lost is not None:
            self.on_lost()
        if self.scope is not None:
            self.scope.pop(CONNECTION, None)
        self.flow.wanted = None  # or it would stay in memory until cycles are looked for
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._whose is None:
            return
        if self._unheard >= 0:
            self._unheard += len(data)
            if self._unheard > LINGER_BYTES:
                self.transport.close()
            return
        super().data_received(data)
        self._watch_head()

    def handle_events(self) -> None:
        """Parse a share of the data; the rest waits in the backlog."""
        self.conn.start()
        super().handle_events()
        if self.scope is not None and self._whose is not None:
            self.scope[CONNECTION] = self
        self.flow.held = self.conn.cut
        if self.conn.chunks_tiny:
            self._refuse(TINY)
        elif self.conn.cut and self._answered and self.conn.their_state is h11.SEND_BODY:
            self._refuse(b"")  # nobody wants this body
        else:
            self.flow.settle()
            if self.conn.cut:
                self._wanted()

    @property
    def _answered(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _wanted(self) -> None:
        """Wait for a turn to parse more."""
        if not self._queued and self._whose is not None:
            turn = self.scope.get(TURN) if self.scope is not None else None
            self._queued = True
            self._guard.backlog.add(
                f"address {self._whose}" if turn is None else f"organisation {turn.org}", self
            )

    def go_on(self) -> None:
        """Parse more, unless the application has yet to take the last pieces: it calls `_wanted` when it has."""
        self._queued = False
        if self._whose is None or self._unheard >= 0 or self.transport.is_closing():
            return
        if not self._answered and self.cycle.body:
            return
        began_s = time.perf_counter()
        self.handle_events()
        self._watch_head()
        if (turn := self.scope.get(TURN) if self.scope is not None else None) is not None:
            turn.spent(time.perf_counter() - began_s)

    def stop_listening(self) -> None:
        """Throw away all that still comes."""
        if self._unheard < 0:
            self._unheard = 0
            self.flow.held = self.flow.read_paused = False
            self.flow.settle()

    def break_off(self) -> None:
        """Close the connection at once; what was not sent is lost."""
        self._disconnect()
        self.transport.abort()

    def _disconnect(self) -> None:
        """Let the application answer no more."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _refuse(self, answer: bytes) -> None:
        """End the connection, with this answer unless another one has begun; the client has a moment to read it."""
        if self.transport.is_closing():
            return
        if not self._answered:
            self._disconnect()
        if self._answered or not self.cycle.response_started:
            self.transport.write(answer)
        self.stop_listening()
        self._end_timers()
        self._head_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong, unless an answer is under way or was given: then only close."""
        if self.conn.head_long:
            self._refuse(LONG)
        elif self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _watch_head(self) -> None:
        """Start the clock when bytes come while no request is being answered; more bytes do not reset it."""
        if self._unheard >= 0:
            return
        if not self._answered:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self._guard.head_s, self._late)

    def _late(self) -> None:
        if (
            self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        ):  # one has begun, and hears why it ends
            self.transport.write(LATE)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_stall(-1)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_stall(self, left: int) -> None:
        """End the connection if the client has read nothing since the last look."""
        waiting = self.transport.get_write_buffer_size()
        if waiting == left:
            self.transport.abort()
        else:
            self._stall_timer = self.loop.call_later(STALL_S, self._watch_stall, waiting)

    def _end_timers(self) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()


def whose_network(peer: Any) -> str:
    """Name the network that counts as one address: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return "local"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def raise_descriptors() -> None:
    """Raise the limit of open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Seldom(logging.Filter):
    """A filter that passes lines that any client can cause only once in ten seconds, each kind by itself."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now, self._said = now, dict[str, float]()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return False  # the server stops; how many requests that ends is a line of its own
        kind = next((start for start in SELDOM if record.getMessage().startswith(start)), None)
        if kind is None:
            return True
        now_s = self._now()
        if now_s - self._said.get(kind, -SELDOM_S) < SELDOM_S:
            return False
        self._said[kind] = now_s
        return True


_SELDOM = Seldom()


def log_seldom() -> None:
    """Keep clients from filling the log of the server."""
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(_SELDOM)  # once, however often it is asked for
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a line for each byte of a wrong form
