"""For flicker.py: a service on loopback with faults (run as a program), and the app whose documents call it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2

from perdure import Context, Document, Perdure, Pipeline
from perdure.calls import FullJitter, Policy

URL_VARIABLE, STORE_VARIABLE = "FLICKER_URL", "FLICKER_STORE"
CALLS = 8
LATENCY_S = 0.2
BACKOFF = FullJitter(0.2, 2.0)
ATTEMPT_S = 2.0
NOWHERE = "http://no-such-host.invalid"


# --- the service ---------------------------------------------------------------------------------


@dataclass
class Faults:
    """What is wrong with the service; shares from 0 to 1."""

    failing: float = 0.0  # answered with 503
    throttling: float = 0.0  # answered with 429
    after: str = ""  # Retry-After of these
    capacity: float = 0.0  # requests a second; 503 beyond; 0: no bound
    mode: str = ""  # outage, hang, reset, truncate: all requests


@dataclass
class Service:
    """Answers after LATENCY_S, unless something is wrong; keeps when each request came and what it was told."""

    faults: Faults = field(default_factory=Faults)
    log: list[tuple[float, int]] = field(default_factory=list)
    tokens: float = 0.0
    filled_s: float = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := (await reader.readline()).decode():
                length = 0
                while (header := (await reader.readline()).decode().strip()) != "":
                    if header.lower().startswith("content-length:"):
                        length = int(header.split(":")[1])
                body = await reader.readexactly(length)
                if not await self.answer(line.split()[1], body, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        if path == "/faults":
            self.faults, self.filled_s = Faults(**json.loads(body)), time.time()
            self.tokens = self.faults.capacity / 4
            return await self.tell(writer, 200)
        if path == "/log":
            return await self.tell(writer, 200, json.dumps(self.log).encode())
        if path == "/forget":
            self.log.clear()
            return await self.tell(writer, 200)
        return await self.work(writer)

    async def work(self, writer: asyncio.StreamWriter) -> bool:
        faults, came_s = self.faults, time.time()
        status = self.status(came_s)
        self.log.append((came_s, status))
        if faults.mode == "hang":
            await asyncio.sleep(60)
        if faults.mode == "truncate":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
            await writer.drain()
        if faults.mode:
            if faults.mode == "reset":
                writer.transport.abort()
            return False
        await asyncio.sleep(LATENCY_S * (0.5 + random.random()))
        return await self.tell(writer, status, after=faults.after if status == 429 else "")

    def status(self, now_s: float) -> int:
        faults, drawn = self.faults, random.random()
        if faults.mode:
            return 0
        if faults.capacity:
            self.tokens = min(faults.capacity / 4, self.tokens + faults.capacity * (now_s - self.filled_s))
            self.filled_s = now_s
            if self.tokens < 1:
                return 503
            self.tokens -= 1
        return 503 if drawn < faults.failing else 429 if drawn < faults.failing + faults.throttling else 200

    async def tell(
        self, writer: asyncio.StreamWriter, status: int, body: bytes = b"", after: str = ""
    ) -> bool:
        asked = f"retry-after: {after}\r\n" if after else ""
        writer.write(f"HTTP/1.1 {status} X\r\n{asked}content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return True


async def main() -> None:
    server = await asyncio.start_server(Service().serve, "127.0.0.1", int(sys.argv[1]), backlog=500)
    async with server:
        await server.serve_forever()


# --- its callers ---------------------------------------------------------------------------------


class Caller:
    """Requests to the service; one client for each event loop."""

    def __init__(self) -> None:
        self.client: httpx2.AsyncClient | None = None

    async def ask(self, number: int = 0) -> int:
        if self.client is None:
            limits = httpx2.Limits(max_connections=200, max_keepalive_connections=200)
            self.client = httpx2.AsyncClient(timeout=ATTEMPT_S, limits=limits)
        url = os.environ[URL_VARIABLE]
        nameless = os.path.exists(os.environ.get("FLICKER_NAMELESS", "/nowhere"))
        answer = await self.client.get(f"{NOWHERE if nameless else url}/ask")
        answer.raise_for_status()
        return number


caller = Caller()
service = Policy("flicker", backoff=BACKOFF)
calling, idle = Pipeline("calling"), Pipeline("idle")


@calling.stage(needs=["flicker"])
async def ask(doc: Document, ctx: Context) -> int:
    """Make CALLS calls and save each."""
    made = 0

    async def call(number: int) -> int:
        return await service.acall(caller.ask, number)

    async for _ in ctx.aitems(range(CALLS), run=call):
        made += 1
    return made


@idle.stage
async def nothing(doc: Document) -> None:
    """What calls nobody."""
    await asyncio.sleep(0.02)


def settings() -> dict[str, Any]:
    return {"pipelines": [calling, idle]}


app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///flicker.db"), **settings())

if __name__ == "__main__":
    asyncio.run(main())
