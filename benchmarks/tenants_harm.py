"""The hostile organisation of `tenants.py`: each kind of harm by itself, or all at once.

All that it sends is made before it says that it is ready, and its requests are plain bytes: a client on the same
machine must cost little, or it would be the client that keeps the others waiting.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx2

from tests.pipelines.extract import hostile as bombs
from tests.pipelines.extract import made

FROM = ("127.0.0.2", 0)  # an address of its own: connections are counted by address
ANSWER_S = 60.0
FLOOD_LANES, LARGE_LANES, JSON_LANES, BOMB_LANES, TRICKLES, STREAMS = 24, 4, 2, 4, 600, 300
LARGE_BYTES = 16 << 20
LIST_LANES, IDLE_READERS, OUTPUT_LANES, EXPORT_LANES = 8, 6, 4, 2  # 8 downloads at a time are allowed
DOWNLOAD_BYTES, OUTPUT_BYTES = 64 << 20, 8 << 20
IDLE_S = 35.0  # that a reader takes nothing: by then it was cut off
STOCK_S = 300.0  # that the documents for readers may take to end


async def hostile(facts: dict[str, Any]) -> None:
    """Do harm for `seconds`."""
    own = Hostile(facts["url"], facts["keys"][0])
    own.prepare()
    if facts["harm"] in ("readers", "all"):
        await asyncio.to_thread(own.stock)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # until it is to begin
    await own.run(facts["harm"], facts["seconds"])
    print(json.dumps({"counts": own.counts}))


class Hostile:
    """An organisation that takes all it can."""

    def __init__(self, url: str, key: str) -> None:
        self.host, port = url.removeprefix("http://").split(":")
        self.port, self.key = int(port), key
        self.file = self.text = ""  # ids of what `readers` read
        self.head = f"Host: {self.host}\r\nAuthorization: Bearer {key}\r\n"
        self.counts: Counter[str] = Counter()
        self.until_s = 0.0

    def prepare(self) -> None:
        self.texts = [made.prose(60, seed=n) for n in range(50)]
        self.large_text = (made.prose(40_000).encode() * 64)[:LARGE_BYTES]
        self.numbers = b'{"dedupe": false, "json": [' + b"0.1," * 480_000 + b"0]}"
        self.shelf = [
            ("bomb.pdf", bombs.flate_bomb()), ("nested.pdf", bombs.nested_flate_bomb()),
            ("text.pdf", bombs.text_bomb()), ("again.pdf", bombs.repeated_contents()),
            ("endless.pdf", bombs.endless_contents()),
            ("open.pdf", bombs.open_streams()), ("loop.pdf", bombs.page_loop()), ("pages.pdf", bombs.million_pages()),
            ("wide.epub", bombs.wide_zip_bomb()), ("deep.html", b"<div>" * 200_000 + b"x"),
            ("entities.docx", bombs.docx(bombs.paragraph(b"&a9;"), bombs.ENTITY_BOMB)),
            ("mail.eml", bombs.nested_mail()),
        ]  # fmt: skip

    def stock(self) -> None:
        """Add 64 MiB that no pipeline takes, and a text with a large output; wait until both have ended."""
        text = (made.prose(40_000, seed=7).encode() * 32)[:OUTPUT_BYTES]
        self.file = self._stocked("?name=a.bin&type=application/octet-stream", os.urandom(DOWNLOAD_BYTES))
        self.text = self._stocked("?name=a.txt&type=text", text)

    def _stocked(self, query: str, body: bytes) -> str:
        url = f"http://{self.host}:{self.port}/v3/documents"
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/octet-stream"}
        with httpx2.Client(headers=headers, timeout=STOCK_S) as client:
            id_: str = client.post(f"{url}{query}", content=body).json()["id"]
            until_s = time.monotonic() + STOCK_S
            while client.get(f"{url}/{id_}").json()["finished_at"] is None and time.monotonic() < until_s:
                time.sleep(0.5)
        return id_

    async def run(self, harm: str, seconds: float) -> None:
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "flood": self.flood, "large": self.large, "bombs": self.bombs, "slow": self.slow, "streams": self.streams,
            "readers": self.readers,
        }  # fmt: skip
        self.until_s = time.monotonic() + seconds
        wanted = kinds.values() if harm == "all" else [kinds[harm]]
        tasks = [asyncio.ensure_future(kind()) for kind in wanted]
        await asyncio.sleep(seconds)
        for task in tasks:  # what is under way is cut off
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- requests -------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\n{self.head}"
        if body:
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body

    async def _many(self, number: int, what: str, make: Callable[[int], bytes], pause_s: float = 0.0) -> None:
        """Send requests on this many connections, each after the answer to the last one."""
        sent = 0

        async def lane() -> None:
            nonlocal sent
            while True:
                with suppress(OSError, EOFError, TimeoutError):
                    reader, writer = await asyncio.open_connection(self.host, self.port, local_addr=FROM)
                    try:
                        while True:
                            sent += 1
                            writer.write(make(sent))
                            async with asyncio.timeout(ANSWER_S):
                                await writer.drain()
                                self.counts[f"{what} {await _answer(reader)}"] += 1
                            await asyncio.sleep(pause_s)
                    finally:
                        writer.close()
                self.counts[f"{what} cut off"] += 1
                await asyncio.sleep(0.05)

        await asyncio.gather(*(lane() for _ in range(number)))

    async def _whole(self, number: int, what: str, path: str) -> None:
        """Repeat this request on a number of connections and read each answer to its end."""
        asked = f"GET {path} HTTP/1.1\r\nConnection: close\r\n{self.head}\r\n".encode()

        async def lane() -> None:
            while True:
                with suppress(OSError, EOFError):
                    reader, writer = await asyncio.open_connection(self.host, self.port, local_addr=FROM)
                    try:
                        writer.write(asked)
                        self.counts[f"{what} {(await reader.readline())[9:12].decode()}"] += 1
                        while piece := await reader.read(1 << 18):
                            self.counts[f"kB of {what}s"] += len(piece) >> 10
                    finally:
                        writer.close()
                await asyncio.sleep(0.05)

        await asyncio.gather(*(lane() for _ in range(number)))

    # --- kinds of harm --------------------------------------------------------------------------

    async def flood(self) -> None:
        """As many requests as 24 connections can send; every fourth adds a document."""
        reads = [
            self.request("GET", path)
            for path in ("/v3/documents?limit=100", "/v3/search?q=flood", "/v3/dead")
        ]

        def make(n: int) -> bytes:
            return self._small(n) if n % 4 == 0 else reads[n % 3]

        await self._many(FLOOD_LANES, "flood", make)

    def _small(self, n: int) -> bytes:
        asked = {"text": f"flood {n} {self.texts[n % 50]}", "dedupe": False}
        return self.request("POST", "/v3/documents", json.dumps(asked).encode())

    async def large(self) -> None:
        """Four texts of 16 MB at a time, and two heavy bodies of JSON."""

        def text(n: int) -> bytes:
            body = f"{n} {os.urandom(8).hex()} ".encode() + self.large_text
            return self.request("POST", "/v3/documents?type=text", body, "text/plain")

        heavy = self.request("POST", "/v3/documents", self.numbers)
        await asyncio.gather(
            self._many(LARGE_LANES, "text", text), self._many(JSON_LANES, "json", lambda _: heavy)
        )

    async def bombs(self) -> None:
        """Files that unfold, hang or crash their readers, four uploads at a time, each lane twice a second."""

        def bomb(n: int) -> bytes:
            name, content = self.shelf[n % len(self.shelf)]
            own = content + b"\n%% " + os.urandom(8).hex().encode()
            form = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
            body = form + own + b"\r\n--x--\r\n"
            return self.request("POST", "/v3/documents?dedupe=false", body, "multipart/form-data; boundary=x")

        await self._many(BOMB_LANES, "bomb", bomb, 0.5)

    async def slow(self) -> None:
        """300 uploads at a byte a second, and 300 connections that send half a head."""
        half = f"POST /v3/documents HTTP/1.1\r\n{self.head}"
        body = "Content-Type: application/pdf\r\nContent-Length: 1000000\r\n\r\n"

        async def trickle(lane: int) -> None:
            while True:
                with suppress(OSError):
                    reader, writer = await asyncio.open_connection(self.host, self.port, local_addr=FROM)
                    self.counts["connections"] += 1
                    writer.write((half + body if lane % 2 else half).encode())
                    while not reader.at_eof():
                        await asyncio.sleep(1)
                        writer.write(b"x" if lane % 2 else b"")
                        await writer.drain()
                    writer.close()
                await asyncio.sleep(0.2)

        await asyncio.gather(*(trickle(lane) for lane in range(TRICKLES)))

    async def streams(self) -> None:
        """300 streams of events, of which 200 are allowed, that each hear of ten documents a second."""
        asked = self.request("GET", "/v3/events?after=0-0")

        async def listen() -> None:
            while True:
                with suppress(OSError, EOFError):
                    reader, writer = await asyncio.open_connection(self.host, self.port, local_addr=FROM)
                    try:
                        writer.write(asked)
                        status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])
                        self.counts[f"stream {status}"] += 1
                        while piece := await reader.read(1 << 16):
                            self.counts["kB of events"] += len(piece) >> 10
                    finally:
                        writer.close()
                await asyncio.sleep(0.5)

        await asyncio.gather(self._many(1, "add", self._small, 0.1), *(listen() for _ in range(STREAMS)))

    async def readers(self) -> None:
        """Reads that cost much: lists by a long part of the name, outputs and exports as often as they can be had, and
        six downloads of 64 MiB of which nothing is taken."""
        asked = self.request("GET", f"/v3/documents/{self.file}/content")

        async def idle() -> None:
            while True:
                with suppress(OSError, EOFError):
                    reader, writer = await asyncio.open_connection(self.host, self.port, local_addr=FROM)
                    try:
                        writer.write(asked)
                        status = (await reader.readline())[9:12].decode()
                        self.counts[f"download {status}"] += 1
                        await asyncio.sleep(IDLE_S if status == "200" else 1)
                    finally:
                        writer.close()
                await asyncio.sleep(0.5)

        listed = self.request("GET", f"/v3/documents?limit=100&name={'a' * 200}")
        await asyncio.gather(
            self._many(LIST_LANES, "list", lambda _: listed),
            self._whole(OUTPUT_LANES, "output", f"/v3/documents/{self.text}/stages/extract"),
            self._whole(EXPORT_LANES, "export", "/v3/dead/export"),
            *(idle() for _ in range(IDLE_READERS)),
        )


async def _answer(reader: asyncio.StreamReader) -> int:
    """The status of an answer that has been read to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))
    if b"connection: close" in head.lower():
        raise EOFError(head.split(b"\r\n", 1)[0].decode())
    return int(head.split(b" ", 2)[1])
