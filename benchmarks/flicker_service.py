"""For flicker.py: a service on loopback with faults, run as a program with its port."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field

LATENCY_S = 0.2
PATIENCE_S = 2.0  # of its callers
#: A collapsing service takes in so many requests at most, and works slower by this power of those for each slot.
QUEUE, STEEP = 40, 2.0


@dataclass
class Faults:
    """What is wrong with the service; shares from 0 to 1."""

    failing: float = 0.0  # answered with 503
    throttling: float = 0.0  # answered with 429
    after: str = ""  # Retry-After of these
    capacity: float = 0.0  # requests a second; 503 beyond; 0: no bound
    slots: int = 0  # requests that are worked on at a time; others wait and slow all down; 0: no bound
    mode: str = ""  # hang, reset, truncate, trickle: all requests


class Crowd:
    """The requests inside a service that collapses: a few are worked on, and each that waits slows all of them down.

    It works on what its callers have left all the same, so once answers take longer than callers wait nothing that it
    does is of use.
    """

    def __init__(self, slots: int) -> None:
        self.slots, self.inside = slots, 0
        self.free = asyncio.Semaphore(slots)

    async def work(self) -> bool:
        """Whether there was room for one more request; then it is done."""
        if self.inside >= QUEUE:
            return False
        self.inside += 1
        try:
            async with self.free:
                slower = max(1.0, (self.inside / self.slots) ** STEEP)
                await asyncio.sleep(LATENCY_S * (0.5 + random.random()) * slower)
        finally:
            self.inside -= 1
        return True


@dataclass
class Service:
    """Answers after LATENCY_S, unless something is wrong; keeps when each request came and what it was told."""

    faults: Faults = field(default_factory=Faults)
    log: list[list[float]] = field(default_factory=list)
    tokens: float = 0.0
    filled_s: float = 0.0
    crowd: Crowd | None = None

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
            self.crowd = Crowd(self.faults.slots) if self.faults.slots else None
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
        entry = [came_s, status]
        self.log.append(entry)
        if faults.mode:
            await self.fail(faults.mode, writer)
            return False
        if self.crowd is not None:
            entry[1] = 0  # until its caller has the answer in time
            status = 200 if await self.crowd.work() else 503
            entry[1] = status if time.time() - came_s < PATIENCE_S else 0
        else:
            await asyncio.sleep(LATENCY_S * (0.5 + random.random()))
        return await self.tell(writer, status, after=faults.after if status == 429 else "")

    async def fail(self, mode: str, writer: asyncio.StreamWriter) -> None:
        """Be away in this manner."""
        if mode == "hang":
            await asyncio.sleep(60)
        elif mode == "reset":
            writer.transport.abort()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc")
            await writer.drain()
        for _ in range(97 if mode == "trickle" else 0):
            await asyncio.sleep(1)
            writer.write(b"d")
            await writer.drain()

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


if __name__ == "__main__":
    asyncio.run(main())
