"""Connections of the HTTP server: how many there are, of whom, and how long they may say nothing.

A connection that has not sent the whole head of a request within `head_s` is closed, however slowly it goes on sending;
so is one whose answer nobody takes. Beyond the limits a connection is answered 503 and closed before it is read from.
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

from perdure.settings import Settings

DESCRIPTORS_MAX = 65_536  # enough; programs that workers start may look at each
DESCRIPTORS_KEPT = 128  # for the store, its blobs and the log
STALL_S = 300.0  # without a byte of the answer taken
SELDOM_S = 10.0
SELDOM = ("socket.accept()", "Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket")


def _answer(status: str, code: str, detail: str) -> bytes:
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
        "Retry-After: 5\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


FULL = _answer(
    "503 Service Unavailable", "connections_too_many", "too many connections are open; try again later"
)
LATE = _answer(
    "408 Request Timeout", "head_too_slow", "the head of the request did not arrive in time; send it again"
)


class Guard:
    """How many connections there are, in all and of each address."""

    def __init__(self, most: int, most_of_one: int, head_s: float, idle_s: float) -> None:
        self.most, self.most_of_one, self.head_s, self.idle_s = most, most_of_one, head_s, idle_s
        self._of: Counter[str] = Counter()

    @classmethod
    def of(cls, settings: Settings) -> Guard:
        """As it is set, below what the descriptors of this process allow: a connection may need one for a file."""
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
        """Whether there is room for one more of this address; it is counted then."""
        if self.open >= self.most or self._of[whose] >= self.most_of_one:
            return False
        self._of[whose] += 1
        return True

    def leave(self, whose: str) -> None:
        self._of[whose] -= 1
        if not self._of[whose]:
            del self._of[whose]


class Guarded(H11Protocol):
    """A connection that the guard of its application lets in, and that must get on with it."""

    _whose: str | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

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
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._whose is None:
            return
        self._guard.leave(self._whose)
        self._whose = None
        self._end_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._whose is None:
            return
        super().data_received(data)
        self._watch_head()

    def _watch_head(self) -> None:
        """The time runs whenever bytes come and no request is being answered, and no byte makes it longer."""
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
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
        """End it where nothing of the answer was taken since the last look."""
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
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 one, which is one customer's."""
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
    """Let this process have as many descriptors as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Seldom(logging.Filter):
    """Lets lines that strangers can cause at will through once in a while, each kind for itself."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now, self._said = now, dict[str, float]()

    def filter(self, record: logging.LogRecord) -> bool:
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
    """Keep the log of the server from growing as fast as somebody connects."""
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(_SELDOM)  # once, however often it is asked for
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a line for each byte of a wrong form
