"""A proxy in front of a server that loses requests and answers as it is told to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from perdure.app import Portal

Fault = Literal["cut", "lost", "busy", "late", "pass"]
BUSY = (
    b'HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/problem+json\r\n'
    b'Content-Length: 43\r\nConnection: close\r\n\r\n{"code": "store_busy", "detail": "wait"}   '
)  # fmt: skip


@dataclass
class Asked:
    """A request that came by: when, its first line, its key, how much body it had."""

    at_s: float
    line: str
    key: str | None
    size: int


class Flaky:
    """`cut`: closed before the server sees it; `lost`: done by the server, but the answer is not passed on; `busy`: 503
    with Retry-After; `late`: as long as the client waits. One after the other; then everything passes."""

    def __init__(self, url: str, faults: Iterable[Fault]) -> None:
        self._to = urlsplit(url)
        self._faults = deque(faults)
        self.asked: list[Asked] = []

    def __enter__(self) -> Flaky:
        self._portal = Portal()
        self.url = self._portal.call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._shut())
        self._portal.close()

    async def _open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _shut(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._once(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        now_s = asyncio.get_running_loop().time()
        self.asked.append(Asked(now_s, first, headers.get("idempotency-key"), len(body)))
        fault: Fault = self._faults.popleft() if self._faults else "pass"
        if fault == "cut":
            return
        if fault == "busy":
            writer.write(BUSY)
            await writer.drain()
            return
        kept = [line for line in lines if not line.lower().startswith("connection:")]
        there, back = await asyncio.open_connection(self._to.hostname, self._to.port)
        back.write("\r\n".join([first, *kept, "Connection: close", "", ""]).encode("latin-1") + body)
        answer = await there.read()
        back.close()
        if fault == "late":
            await asyncio.sleep(5)
        if fault == "pass":
            writer.write(answer)
            await writer.drain()
