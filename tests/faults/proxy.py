"""A proxy in front of a real PostgreSQL: it knows what each transaction did and breaks the link at chosen points.

It reads the wire protocol just far enough to know which statements the server ran since the transaction began, and
takes the server's word for its end: the tag COMMIT, or ReadyForQuery after statements outside of a transaction. A point
is the text of a statement; a transaction reaches it when that statement touched at least one row.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from perdure.app import Portal

PIECE_BYTES = 16 << 10
Message = tuple[bytes, bytes]  # kind and length, body


class Wire:
    """Follows one connection: what the server ran in the open transaction, and what it has yet to answer."""

    def __init__(self) -> None:
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._asked: deque[tuple[bytes, str]] = deque()
        self._ran: Counter[str] = Counter()
        self._outside = True  # of a transaction, by the server's last word
        self._failed = False

    def sent(self, message: Message) -> Counter[str]:
        """Note what the client asks for; if that would end a transaction, rows per statement of what it did.

        A statement that is not answered yet counts as one row.
        """
        kind, body = message[0][:1], message[1]
        match kind:
            case b"P":
                name, sql = body.split(b"\0", 2)[:2]
                self._prepared[name] = sql.decode()
            case b"B":
                portal, name = body.split(b"\0", 2)[:2]
                self._portals[portal] = self._prepared[name]
            case b"E":
                self._asked.append((kind, self._portals[body.split(b"\0", 1)[0]]))
            case b"Q" | b"S":
                self._asked.append((kind, body.rstrip(b"\0").decode()))
        if kind not in b"EQS":
            return Counter()
        begun = not self._outside or any(_says(sql, "BEGIN", "START") for _, sql in self._asked)
        ends = _says(self._asked[-1][1], "COMMIT", "END") if begun else kind != b"E"
        return self._ran + Counter(sql for _, sql in self._asked) if ends else Counter()

    def answered(self, message: Message) -> Counter[str]:
        """Note what the server says; if it is the news of a commit, rows per statement of what it committed."""
        kind, body = message[0][:1], message[1]
        match kind:
            case b"C":
                tag = body.rstrip(b"\0").decode().split()
                self._ran[self._asked[0][1]] += int(tag[-1]) if tag[-1].isdigit() else 0
                self._executed()
                self._failed = self._failed or tag == ["ROLLBACK"]
                return self._end() if tag == ["COMMIT"] else Counter()
            case b"s" | b"I":
                self._executed()
            case b"E":
                self._failed = True
            case b"Z":
                while self._asked and self._asked.popleft()[0] == b"E":
                    pass  # skipped after an error
                self._outside, failed, self._failed = body == b"I", self._failed, False
                if self._outside:
                    ran = self._end()
                    return Counter() if failed else ran
        return Counter()

    def _executed(self) -> None:
        if self._asked[0][0] == b"E":  # a simple query may hold several statements; it is over when all are
            self._asked.popleft()

    def _end(self) -> Counter[str]:
        ran, self._ran = self._ran, Counter()
        return ran


def _says(sql: str, *words: str) -> bool:
    return any(part.strip().upper().startswith(words) for part in sql.split(";"))


class Fault(Enum):
    """What may happen to a transaction at a point."""

    LOST = "the server commits and the client never hears of it"
    CUT = "the link breaks before the commit reaches the server"
    LATE = "the commit reaches the server only when `let_through` is called, whatever became of the client"
    SILENT = "the server commits, and from then on nothing passes on any link"


@dataclass(frozen=True, slots=True)
class Broken:
    """What happened to a transaction, and how many rows it had touched at each point."""

    fault: Fault
    rows: Mapping[str, int]


class Proxy:
    """Listens on a Unix socket, in a thread of its own, for as long as its `with` block lasts.

    `arm` plans faults for a point, `silence` holds everything back, `point_to` moves it to another server, `latency_s`
    makes every round trip longer, `bytes_per_s` is the speed of each link.
    """

    def __init__(self, server_url: str, points: Mapping[str, str]) -> None:
        self.server_url = server_url
        self.points = dict(points)
        self.broken: list[Broken] = []
        self.latency_s = 0.0
        self.bytes_per_s = math.inf
        self._armed: dict[str, deque[Fault | None]] = {point: deque() for point in points}
        self._errors: list[BaseException] = []
        self._flowing = asyncio.Event()
        self._through = asyncio.Event()
        self._links: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Proxy:
        # programs of other users connect, too, and the path of a socket is at most 107 bytes long
        self._directory = tempfile.TemporaryDirectory(prefix="proxy-", dir="/tmp")
        Path(self._directory.name).chmod(0o755)
        self._portal = Portal()
        self._portal.call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._shut())
        self._portal.close()
        self._directory.cleanup()
        assert self._errors == [], "the proxy did not understand what it carried"

    @property
    def url(self) -> str:
        """The same database, through the proxy."""
        parts = urlsplit(self.server_url)
        user = parts.netloc.rpartition("@")[0]
        query = urlencode({"host": self._directory.name})
        return urlunsplit(parts._replace(netloc=f"{user}@" if user else "", query=query))

    # --- faults ----------------------------------------------------------------------------------

    def arm(self, point: str, faults: Iterable[Fault | None]) -> None:
        """From now on each transaction that reaches the point meets the next of these; None lets it pass."""
        self._armed[point] = deque(faults)

    def made(self, point: str, fault: Fault) -> list[Broken]:
        """The faults of this kind that were made at this point so far."""
        return [broken for broken in list(self.broken) if broken.fault is fault and point in broken.rows]

    def silence(self) -> None:
        """Nothing passes any more, in either direction, and nobody is told."""
        self._portal.call(self._flow(False))

    def heal(self) -> None:
        """All that was held back arrives, and what follows."""
        self._portal.call(self._flow(True))

    def let_through(self) -> None:
        """Send the commit that is late."""
        self._portal.call(self._let_through())

    def cut(self) -> None:
        """Both sides see their links break; whoever connects from now on gets no answer until it is healed."""
        self._portal.call(self._cut())

    def break_links(self) -> int:
        """Both sides see their links break and may connect again at once; how many there were."""
        return self._portal.call(self._break())

    def point_to(self, server_url: str) -> None:
        """Break all links; who connects from now on reaches this server, as when an address moves to another host."""
        self.server_url = server_url
        self.break_links()

    def _meet(self, statements: Counter[str], sending: bool) -> bool:
        """What is planned for a transaction that did this happens, and the plan is one shorter; whether it is late."""
        late = False
        if not statements:
            return late
        rows = {
            point: sum(count for statement, count in statements.items() if sql in statement)
            for point, sql in self.points.items()
        }
        reached = {point: count for point, count in rows.items() if count}
        plans = filter(None, (self._armed[point] for point in reached))
        # some happen on the way to the server, the others when the server has answered
        on_the_way = (Fault.CUT, Fault.LATE)
        for fault in [plan.popleft() for plan in plans if (plan[0] in on_the_way) is sending]:
            if fault is not None:
                self.broken.append(Broken(fault, reached))
            if fault is Fault.SILENT:
                self._flowing.clear()
            elif fault is Fault.LATE:
                self._through.clear()
                late = True
            elif fault is not None:
                raise ConnectionAbortedError(fault.value)
        return late

    # --- links -----------------------------------------------------------------------------------

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One client, until it, the server or a fault ends it."""
        ends = [to_client]
        try:
            await self._flowing.wait()
            server, to_server = await self._dial()
            ends.append(to_server)
            wire = Wire()
            async with asyncio.TaskGroup() as ways:
                pair = {
                    ways.create_task(self._upwards(client, to_server, wire)),
                    ways.create_task(self._downwards(server, to_client, wire)),
                }
                for way in pair:
                    self._links.add(way)
                    way.add_done_callback(self._links.discard)
        except* (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one side is gone, or the link was broken
        except* Exception as errors:
            self._errors.append(errors)
        finally:
            for end in ends:
                end.transport.abort()

    async def _upwards(
        self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter, wire: Wire
    ) -> None:
        length = await client.readexactly(4)  # the first message has no kind
        to_server.write(length + await client.readexactly(int.from_bytes(length) - 4))
        async for message in _messages(client):
            await self._flowing.wait()
            if self._meet(wire.sent(message), sending=True):
                await self._through.wait()
            await self._carry(to_server, b"".join(message))

    async def _downwards(
        self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter, wire: Wire
    ) -> None:
        async for message in _messages(server):
            self._meet(wire.answered(message), sending=False)
            await self._flowing.wait()
            if message[0][:1] == b"Z":
                await asyncio.sleep(self.latency_s)
            await self._carry(to_client, b"".join(message))

    async def _carry(self, to: asyncio.StreamWriter, data: bytes) -> None:
        """As fast as the link is."""
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            if self.bytes_per_s < math.inf:
                await asyncio.sleep(len(piece) / self.bytes_per_s)
            to.write(piece)
            await to.drain()

    async def _open(self) -> None:
        self._flowing.set()
        self._through.set()
        path = f"{self._directory.name}/.s.PGSQL.5432"
        self._listening = await asyncio.start_unix_server(self._serve, path)
        Path(path).chmod(0o777)

    async def _shut(self) -> None:
        self._listening.close()

    async def _let_through(self) -> None:
        self._through.set()

    async def _cut(self) -> None:
        self._flowing.clear()
        await self._break()

    async def _break(self) -> int:
        links = list(self._links)
        for link in links:
            link.cancel()
        return len(links) // 2

    async def _flow(self, free: bool) -> None:
        (self._flowing.set if free else self._flowing.clear)()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.server_url)
        query = dict(parse_qsl(parts.query))
        host = query.get("host") or parts.hostname or "localhost"
        port = int(query.get("port") or parts.port or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """Every message after the first, whole."""
    while True:
        head = await reader.readexactly(5)
        yield head, await reader.readexactly(int.from_bytes(head[1:]) - 4)
