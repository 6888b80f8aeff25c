"""`/metrics` over HTTP, from within an event loop that has other things to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from perdure.core.events import Events
from perdure.store.sql_store import SqlStore
from perdure.watch.board import Board, Key, together
from perdure.watch.meter import Meter
from perdure.watch.overall import Overall
from perdure.watch.render import CONTENT_TYPE, text
from perdure.watch.shared_counters import SHARED, SharedCounters

PATIENCE_S = 10.0
AGAIN_S = 5.0
PORTS = 16  # from the one that is set on
HEAD_BYTES_MAX = 16 * 1024
_log = logging.getLogger("perdure.metrics")


class Scrape:
    """What one process shows: what it counted, on its boards, and what is true of the whole store. With `shared` its
    counters are those of all processes that add up theirs in the store, its own included."""

    def __init__(
        self, boards: Sequence[Board], store: SqlStore, shared: SharedCounters | None = None
    ) -> None:
        self.boards = boards
        self.store = store
        self.shared = shared
        self._overall = Overall(store, boards[0], shared)

    async def numbers(self) -> dict[Key, float]:
        overall = await self._overall.read()
        own = together(self.boards)
        if self.shared is not None:  # without the others' they would seem to go back
            own = {key: value for key, value in own.items() if key[0] not in SHARED}
        return {**own, **overall}

    async def text(self) -> bytes:
        """In the format of Prometheus; never fails because of the store."""
        return text(await self.numbers())


async def serve_worker(child: Board, events: Events, store: SqlStore, host: str, port: int) -> None:
    """Show what a supervisor sees and what its child counts on a board that they share, until it is cancelled."""
    own = Board.private()
    meter = Meter(own, events)
    try:
        await MetricsServer(Scrape((own, child), store), host, port).run()
    finally:
        meter.close()


class MetricsServer:
    """Answers `GET /metrics` until it is cancelled: at its port, or the first free one of those that follow, so that
    several workers of one host each have their own. If all are taken they are tried again every few seconds."""

    def __init__(self, scrape: Scrape, host: str, port: int, ports: int = PORTS) -> None:
        self.scrape = scrape
        self.host, self.port, self.ports = host, port, ports

    async def run(self) -> None:
        told = False
        while True:
            try:
                server = await self._bound()
            except OSError as error:
                if not told:
                    _log.error("metrics cannot be served at %s:%s: %s", self.host, self.port, error)
                told = True
                await asyncio.sleep(AGAIN_S)
                continue
            port = server.sockets[0].getsockname()[1]
            _log.info("metrics are served at http://%s:%s/metrics", self.host, port)
            async with server:
                await server.serve_forever()

    async def _bound(self) -> asyncio.Server:
        last = min(self.port + self.ports, 65_536) - 1
        for port in range(self.port, last):
            with suppress(OSError):
                return await asyncio.start_server(self._serve, self.host, port, limit=HEAD_BYTES_MAX)
        return await asyncio.start_server(self._serve, self.host, last, limit=HEAD_BYTES_MAX)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked went away, or never asked
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes) -> bytes:
        verb, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _response("404 Not Found", "text/plain; charset=utf-8", b"metrics are at /metrics\n")
        if verb not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain; charset=utf-8", b"ask with GET\n")
        body = await self.scrape.text()
        return _response("200 OK", CONTENT_TYPE, body, with_body=verb == b"GET")


def _response(status: str, kind: str, body: bytes, with_body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (body if with_body else b"")
