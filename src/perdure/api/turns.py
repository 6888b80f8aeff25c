"""Turns at the HTTP server: while several organisations ask, none of them has all of its time.

The event loop serves requests in the order in which they come, so an organisation that sends many at once would make
everybody else wait behind all of them. While others ask, at most two requests of an organisation are under way. The
next ones wait, in their order, until one of these has ended and for as long again as it took; if many wait, one is
under way and the next one waits three times as long. So nobody has more than half of the server, and an organisation
that floods it a quarter. An organisation that is alone waits for nothing.

A request that takes longer than 0.1 s waits itself, for its body, a file or the store, and counts no more: uploads,
searches and streams of one organisation do not wait for each other. The pause after it stays, or a server that is slow
because of a flood would let in all of it. Bodies come in pieces: while others ask, all uploads of an organisation
together take a quarter of the time (`pace`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

AT_ONCE = 2
MANY = 8  # requests of an organisation that wait: it floods the server
PAUSES = 3  # times as long as its request took waits who floods it
PIECE_BYTES = 1 << 20  # of bodies, after which an upload may have to pause
PIECE_PER_S = 64 << 20  # bytes that the event loop reads in a second, without what becomes of them
PAUSE_MAX_S = 2.0  # between two pieces of a body
COUNTS_S = 0.1  # that a request counts at most
RECENT_S = 1.0  # for this long after its last request an organisation is taken to ask
TURN = "perdure.turn"


class Turns:
    """See the module."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._of: dict[str, _Of] = {}  # organisations with requests that count or wait
        self._paced: dict[str, float] = {}  # until when uploads of an organisation pause
        self._last, self._last_s, self._other_s = "", -RECENT_S, -RECENT_S

    async def take(self, org: str, scope: Scope) -> None:
        """Wait for a turn; `Ending` gives it back when the request has been answered."""
        now_s = self._now_s()
        if org != self._last:
            self._last, self._other_s = org, self._last_s
        self._last_s = now_s
        own = self._of.setdefault(org, _Of())
        if own.waiting or (own.counted >= AT_ONCE and self._others_ask(org, now_s)):
            turn = asyncio.get_running_loop().create_future()
            own.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.cancelled():
                    with suppress(ValueError):  # a turn that ended since passed it over
                        own.waiting.remove(turn)
                else:
                    self._ended(org)  # it was given the turn, and has gone
                raise
        else:
            own.counted += 1
        scope[TURN] = _Turn(self, org)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(own.waiting) for own in self._of.values())

    def _others_ask(self, org: str, now_s: float) -> bool:
        return now_s - (self._other_s if org == self._last else self._last_s) < RECENT_S

    def end(self, org: str, took_s: float) -> None:
        """A request counts no more; if others wait behind it, the next one's turn comes after a pause."""
        own = self._of[org]
        if took_s and own.waiting and self._others_ask(org, self._now_s()):
            pause_s = took_s * (PAUSES if len(own.waiting) >= MANY else 1)
            asyncio.get_running_loop().call_later(pause_s, self._ended, org)
        else:
            self._ended(org)

    def _ended(self, org: str) -> None:
        own = self._of[org]
        own.counted -= 1
        alone = not self._others_ask(org, self._now_s())
        while own.waiting and (alone or own.counted < (1 if len(own.waiting) >= MANY else AT_ONCE)):
            turn = own.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                own.counted += 1
        if not own.counted and not own.waiting:
            del self._of[org]

    async def pace(self, org: str, took_s: float) -> None:
        """Wait as all uploads of the organisation together must after one of them took so long; not at all where no
        other organisation asks."""
        now_s = self._now_s()
        if not self._others_ask(org, now_s):
            self._paced.pop(org, None)
            return
        until_s = max(self._paced.get(org, now_s), now_s) + PAUSES * took_s
        self._paced[org] = min(until_s, now_s + PAUSE_MAX_S)
        for idle in [each for each, at_s in self._paced.items() if at_s < now_s]:
            del self._paced[idle]
        await asyncio.sleep(self._paced[org] - now_s)


class _Of:
    """The requests of an organisation."""

    def __init__(self) -> None:
        self.counted = 0
        self.waiting: deque[asyncio.Future[None]] = deque()


class _Turn:
    """A turn that is taken, until it is ended or too long."""

    def __init__(self, turns: Turns, org: str) -> None:
        self._turns, self._org = turns, org
        self._began_s = time.monotonic()
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(
            COUNTS_S, self._end, COUNTS_S
        )
        self._bytes, self._took_s = 0, 0.0  # of its body, since the last pause

    def end(self) -> None:
        """The request was answered."""
        self._end(time.monotonic() - self._began_s)

    def pass_on(self) -> None:
        """The request goes on, and takes no time of the server."""
        self._end(0.0)

    async def received(self, size: int, took_s: float) -> None:
        """Wait if it must: so many bytes of its body came, and it took so long to do something with them."""
        self._bytes += size
        self._took_s += took_s
        if self._bytes >= PIECE_BYTES:
            took_s, self._bytes, self._took_s = self._took_s + self._bytes / PIECE_PER_S, 0, 0.0
            await self._turns.pace(self._org, took_s)

    def _end(self, took_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._turns.end(self._org, took_s)


def pass_on(scope: Scope) -> None:
    """From here on the request waits and takes no time of the server: the next one may have its turn."""
    if (turn := scope.get(TURN)) is not None:
        turn.pass_on()


async def received(scope: Scope, size: int, took_s: float) -> None:
    """Wait if it must: part of the request's body came and was worked on."""
    if (turn := scope.get(TURN)) is not None:
        await turn.received(size, took_s)


class Ending:
    """Ends the turn of each request when it has been answered."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        finally:
            if (turn := scope.get(TURN)) is not None:
                turn.end()
