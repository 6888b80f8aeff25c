"""Turns at the HTTP server: while several organisations ask, none of them has all of its time.

The event loop serves requests in the order in which they come, so an organisation that sends many at once would make
everybody else wait behind all of them. While others ask, at most two requests of an organisation are under way. The
next ones wait, in their order, until one of these has ended and for as long again as it took; if many wait, one is
under way and the next one waits three times as long. So nobody has more than half of the server, and an organisation
that floods it a quarter. An organisation that is alone waits for nothing.

A request that takes longer than 0.1 s waits itself, for its body, a file or the store, and counts no more: uploads,
searches and streams of one organisation do not wait for each other. The pause after it stays, or a server that is slow
because of a flood would let in all of it. Bodies come in pieces: while others ask, all uploads of an organisation
together take a quarter of the time (`pace`). The work of a process that reads heavy JSON counts as well: the next body
of that organisation pays for it (`owe`).

At most 100 requests of an organisation wait, and only as long as their clients do. While 32 of its uploads pause, the
organisation begins no other. While others ask, the answer 429 is sent a quarter of a second later: a client that asks
again at once would take the time of the server with refusals alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.api.metered import CONNECTION
from perdure.api.refused import Refused

AT_ONCE = 2
WAITING_MAX = 100  # requests of an organisation
UPLOADS_MAX = 32  # of an organisation that pause
AGAIN_S = 5.0  # before a request that was refused is worth sending again
MANY = 8  # requests of an organisation that wait: it floods the server
PAUSES = 3  # times as long as its request took waits who floods it
PIECE_BYTES = 1 << 20  # of bodies, after which an upload may have to pause
PIECE_PER_S = 64 << 20  # bytes that the event loop reads in a second, without what becomes of them
PIECE_S = (
    PIECE_BYTES / PIECE_PER_S
)  # of parsing and handling, after which an upload may have to pause as well
PAUSE_MAX_S = 2.0  # between looks whether an upload must still pause
REFUSED_S = 0.25  # before the answer that says to wait
OWED_MAX_S = 5.0  # for one body
COUNTS_S = 0.1  # that a request counts at most
RECENT_S = 1.0  # for this long after its last request an organisation is taken to ask
TOO_MANY = 429
TURN = "perdure.turn"


class Turns:
    """See the module."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._of: dict[str, _Of] = {}  # organisations with requests that count or wait
        self._paced: dict[str, float] = {}  # until when uploads of an organisation pause
        self._pausing: Counter[str] = Counter()  # these uploads
        self._last, self._last_s, self._other_s = "", -RECENT_S, -RECENT_S

    async def take(self, org: str, scope: Scope) -> None:
        """Wait for a turn; `Ending` gives it back when the request has been answered. Raises: Refused."""
        now_s = self._now_s()
        if org != self._last:
            self._last, self._other_s = org, self._last_s
        self._last_s = now_s
        own = self._of.setdefault(org, _Of())
        if own.waiting or (own.counted >= AT_ONCE and self._others_ask(org, now_s)):
            await self._wait(org, own, scope)
        else:
            own.counted += 1
        scope[TURN] = _Turn(self, org)

    async def _wait(self, org: str, own: _Of, scope: Scope) -> None:
        if len(own.waiting) >= WAITING_MAX:
            await self.delay_refusal(org)
            raise Refused(
                429, "rate_limited", f"{WAITING_MAX} requests of this organisation wait for their turn; wait",
                retry_after_s=AGAIN_S,
            )  # fmt: skip
        turn = asyncio.get_running_loop().create_future()
        own.waiting.append(turn)
        try:
            with _watched(scope, turn):
                mine = await turn
        except asyncio.CancelledError:
            if turn.cancelled() or not turn.result():
                own.leave(turn)
            else:
                self._ended(org)  # it was given the turn, and has gone
            raise
        if not mine:
            own.leave(turn)
            raise Refused(400, "upload_broken_off", "the connection was closed before the answer")

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(own.waiting) for own in self._of.values())

    def _others_ask(self, org: str, now_s: float) -> bool:
        return now_s - (self._other_s if org == self._last else self._last_s) < RECENT_S

    async def delay_refusal(self, org: str) -> None:
        """Keep the organisation from asking again at once, where others ask."""
        if self._others_ask(org, self._now_s()):
            await asyncio.sleep(REFUSED_S)

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
                turn.set_result(True)
                own.counted += 1
        if not own.counted and not own.waiting:
            del self._of[org]

    def owe(self, org: str, took_s: float) -> float:
        """Seconds that the next piece of an upload of the organisation must wait after something that took so long; 0
        where no other organisation asks."""
        now_s = self._now_s()
        if not self._others_ask(org, now_s):
            self._paced.pop(org, None)
            return 0.0
        until_s = max(self._paced.get(org, 0.0), now_s - took_s) + (1 + PAUSES) * took_s
        self._paced[org] = until_s
        for idle in [each for each, at_s in self._paced.items() if at_s < now_s]:
            del self._paced[idle]
        return until_s - now_s

    async def pace(self, org: str, took_s: float) -> None:
        """Wait as all uploads of the organisation together must after one of them took so long; not at all where no
        other organisation asks."""
        left_s = self.owe(org, took_s)
        if not left_s:
            return
        self._pausing[org] += 1
        try:
            while left_s > 0 and self._others_ask(org, self._now_s()):
                step_s = min(left_s, PAUSE_MAX_S)
                await asyncio.sleep(step_s)
                left_s -= step_s
        finally:
            self._pausing[org] -= 1
            if not self._pausing[org]:
                del self._pausing[org]

    def check_uploads(self, org: str) -> None:
        """Check that the organisation may begin another upload. Raises: Refused."""
        if self._pausing[org] >= UPLOADS_MAX:
            raise Refused(
                429, "rate_limited", f"{UPLOADS_MAX} uploads of this organisation are under way and must pause; wait",
                retry_after_s=AGAIN_S,
            )  # fmt: skip


@contextmanager
def _watched(scope: Scope, turn: asyncio.Future[bool]) -> Iterator[None]:
    """End the wait with False if the client closes the connection during the block."""

    def lost() -> None:
        if not turn.done():
            turn.set_result(False)

    if (connection := scope.get(CONNECTION)) is not None:
        connection.on_lost = lost
    try:
        yield
    finally:
        if connection is not None:
            connection.on_lost = None


class _Of:
    """The requests of an organisation."""

    def __init__(self) -> None:
        self.counted = 0
        self.waiting: deque[asyncio.Future[bool]] = (
            deque()
        )  # True: it has its turn; False: its client has gone

    def leave(self, turn: asyncio.Future[bool]) -> None:
        """Wait no more."""
        with suppress(ValueError):  # a turn that ended since passed it over
            self.waiting.remove(turn)


class _Turn:
    """A turn that is taken, until it is ended or too long."""

    def __init__(self, turns: Turns, org: str) -> None:
        self._turns, self.org = turns, org
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

    def spent(self, took_s: float) -> None:
        """It took so long to parse its body; the next piece pays for it."""
        self._took_s += took_s

    async def delay_refusal(self) -> None:
        """Wait before the answer that says to wait, and count no more."""
        self.end()
        await self._turns.delay_refusal(self.org)

    def owe(self, took_s: float) -> None:
        """Work for it took so long beside the event loop: the next upload pays for it."""
        self._turns.owe(self.org, took_s)

    async def pay(self) -> None:
        """Wait for as long as its organisation owes."""
        await self._turns.pace(self.org, 0.0)

    def check_uploads(self) -> None:
        """Check that its body may come. Raises: Refused."""
        self._turns.check_uploads(self.org)

    async def received(self, size: int, took_s: float) -> None:
        """Wait if it must: so many bytes of its body came, and it took so long to do something with them."""
        self._bytes += size
        self._took_s += took_s
        if self._bytes >= PIECE_BYTES or self._took_s >= PIECE_S:
            took_s, self._bytes, self._took_s = self._took_s + self._bytes / PIECE_PER_S, 0, 0.0
            await self._turns.pace(self.org, took_s)

    def _end(self, took_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._turns.end(self.org, took_s)


def pass_on(scope: Scope) -> None:
    """From here on the request waits and takes no time of the server: the next one may have its turn."""
    if (turn := scope.get(TURN)) is not None:
        turn.pass_on()


async def received(scope: Scope, size: int, took_s: float) -> None:
    """Wait if it must: part of the request's body came and was worked on."""
    if (turn := scope.get(TURN)) is not None:
        await turn.received(size, took_s)


async def pay(scope: Scope) -> None:
    """Wait for as long as the organisation owes for work that a process of the server did for it."""
    if (turn := scope.get(TURN)) is not None:
        await turn.pay()


def owe(scope: Scope, took_s: float) -> None:
    """A process of the server worked so long for the request: the next upload of the organisation pays for it. At most
    a few seconds count: on a busy machine most of a longer time is that of others."""
    if (turn := scope.get(TURN)) is not None:
        turn.owe(min(took_s, OWED_MAX_S))


def check_uploads(scope: Scope) -> None:
    """Check that the body of the request may come, if it may be large. Raises: Refused."""
    if (turn := scope.get(TURN)) is not None:
        length = Headers(scope=scope).get("content-length", "")
        if not length.isdigit() or int(length) > PIECE_BYTES:
            turn.check_uploads()


class Ending:
    """Ends the turn of each request when it has been answered, and delays refusals."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message.get("status") == TOO_MANY and (turn := scope.get(TURN)) is not None:
                await turn.delay_refusal()
            await send(message)

        try:
            await self.app(scope, receive, answer)
        finally:
            if (turn := scope.get(TURN)) is not None:
                turn.end()
