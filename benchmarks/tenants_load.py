"""The two loads of `tenants.py`, each a process of its own: `python benchmarks/tenants_load.py polite|hostile FACTS`.

`polite` prints a JSON object of samples when it ends, `hostile` one of counts. Both end by themselves, and speak to
loopback only.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.pipelines.extract import hostile as bombs
from tests.pipelines.extract import made

POLL_S = 0.1
DONE_S = 120.0  # that a document is waited for
JSON, PLAIN = {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}


class Polite:
    """An organisation that adds a document, waits for it, searches, and begins again at a steady pace."""

    def __init__(self, url: str, key: str, number: int, pace_s: float, until_s: float) -> None:
        self.samples: dict[str, list[float]] = {
            name: [] for name in ("add", "done", "search", "status", "lag")
        }
        self.errors: Counter[str] = Counter()
        self._number, self._pace_s, self._until_s = number, pace_s, until_s
        self._client = httpx2.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=DONE_S
        )

    async def run(self) -> None:
        begun_s = time.monotonic() + self._pace_s * self._number / 19  # not all at once
        cycles: list[asyncio.Task[None]] = []
        cycle = 0
        while (at_s := begun_s + cycle * self._pace_s) < self._until_s:
            await asyncio.sleep(at_s - time.monotonic())
            self.samples["lag"].append(time.monotonic() - at_s)
            cycles.append(asyncio.create_task(self._cycle(cycle)))
            cycle += 1
        await asyncio.gather(*cycles)
        await self._client.aclose()

    async def _cycle(self, cycle: int) -> None:
        began_s = time.monotonic()
        added = await self._timed("add", "POST", "/v3/documents", **self._document(cycle))
        if added is None:
            return
        await self._timed("search", "GET", f"/v3/search?q=organisation+{self._number}")
        while time.monotonic() < began_s + DONE_S:
            found = await self._timed("status", "GET", f"/v3/documents/{added['id']}")
            if found is None or found["finished_at"] is not None:
                if found is not None and found["status"] == "done":
                    self.samples["done"].append(time.monotonic() - began_s)
                elif found is not None:
                    self.errors[f"ended {found['status']}"] += 1
                return
            await asyncio.sleep(POLL_S)
        self.errors["not done in time"] += 1

    def _document(self, cycle: int) -> dict[str, Any]:
        words = made.prose(120, seed=self._number * 1000 + cycle)
        name = f"organisation {self._number} document {cycle}"
        if cycle % 4 == 3:
            kind = (
                ("page.html", made.page(name, {"Part": words}))
                if cycle % 8 == 3
                else ("a.pdf", made.pdf([words]))
            )
            return {"files": {"file": kind}}
        return {"json": {"text": f"{name}. {words}", "name": name}}

    async def _timed(self, what: str, method: str, path: str, **more: Any) -> Any:
        began_s = time.monotonic()
        try:
            answer = await self._client.request(method, path, **more)
        except httpx2.HTTPError as error:
            self.errors[f"{what} {type(error).__name__}"] += 1
            return None
        self.samples[what].append(time.monotonic() - began_s)
        if answer.status_code >= 400:
            self.errors[f"{what} {answer.status_code}"] += 1
            return None
        return answer.json()


async def polite(facts: dict[str, Any]) -> dict[str, Any]:
    until_s = time.monotonic() + facts["seconds"]
    own = [Polite(facts["url"], key, n, facts["pace_s"], until_s) for n, key in enumerate(facts["keys"])]
    await asyncio.gather(*(one.run() for one in own))
    samples = {name: [each for one in own for each in one.samples[name]] for name in own[0].samples}
    return {"samples": samples, "errors": sum((one.errors for one in own), Counter())}


# --- the hostile one --------------------------------------------------------------------------------


class Hostile:
    """An organisation that takes what it can get, one kind of harm at a time or all of them."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.url, self.key = facts["url"], facts["keys"][0]
        self.until_s = time.monotonic() + facts["seconds"]
        self.counts: Counter[str] = Counter()
        limits = httpx2.Limits(max_connections=400)
        self.client = httpx2.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=120, limits=limits
        )

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until_s

    async def run(self, harm: str) -> None:
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "flood": self.flood, "large": self.large, "bombs": self.bombs, "slow": self.slow, "streams": self.streams,
        }  # fmt: skip
        wanted = kinds.values() if harm == "all" else [kinds[harm]]
        await asyncio.gather(*(kind() for kind in wanted))
        await self.client.aclose()

    async def _ask(self, what: str, method: str, path: str, **more: Any) -> None:
        try:
            answer = await self.client.request(method, path, **more)
            self.counts[f"{what} {answer.status_code}"] += 1
        except httpx2.HTTPError as error:
            self.counts[f"{what} {type(error).__name__}"] += 1

    async def _many(self, number: int, once: Callable[[int], Awaitable[None]]) -> None:
        async def loop(lane: int) -> None:
            while not self.over:
                await once(lane)

        await asyncio.gather(*(loop(lane) for lane in range(number)))

    async def flood(self) -> None:
        """As many requests as 24 connections can send; every fourth adds a document."""

        async def once(_: int) -> None:
            n = self.counts.total()
            if n % 4 == 0:
                asked = {"text": f"flood {n} {made.prose(60, seed=n)}", "dedupe": False}
                await self._ask("add", "POST", "/v3/documents", json=asked)
            else:
                await self._ask(
                    "get", "GET", ("/v3/documents?limit=100", "/v3/search?q=flood", "/v3/dead")[n % 3]
                )

        await self._many(24, once)

    async def large(self) -> None:
        """Four texts of 16 MB at a time, and two heavy bodies of JSON."""
        text = made.prose(40_000).encode() * 64
        numbers = b'{"dedupe": false, "json": [' + b"0.1," * 480_000 + b"0]}"

        async def once(lane: int) -> None:
            if lane < 4:
                content = f"{random.random()} ".encode() + text[: 16 << 20]
                await self._ask(
                    "text",
                    "POST",
                    "/v3/documents?type=text",
                    content=content,
                    headers={"Content-Type": "text/plain"},
                )
            else:
                await self._ask("json", "POST", "/v3/documents", content=numbers, headers=JSON)

        await self._many(6, once)

    async def bombs(self) -> None:
        """Files that unfold, hang or crash their readers, four uploads at a time and at most 200."""
        shelf = [
            ("bomb.pdf", bombs.flate_bomb()), ("nested.pdf", bombs.nested_flate_bomb()),
            ("text.pdf", bombs.text_bomb()), ("again.pdf", bombs.repeated_contents()),
            ("endless.pdf", bombs.endless_contents()),
            ("open.pdf", bombs.open_streams()), ("loop.pdf", bombs.page_loop()), ("pages.pdf", bombs.million_pages()),
            ("wide.epub", bombs.wide_zip_bomb()), ("deep.html", b"<div>" * 200_000 + b"x"),
            ("entities.docx", bombs.docx(bombs.paragraph(b"&a9;"), bombs.ENTITY_BOMB)),
            ("mail.eml", bombs.nested_mail()),
        ]  # fmt: skip

        async def once(_: int) -> None:
            number = self.counts.total()
            name, content = shelf[number % len(shelf)]
            if number >= 200:
                await asyncio.sleep(1)
                return
            own = {"file": (name, content + b"\n%% " + os.urandom(8).hex().encode())}
            await self._ask("bomb", "POST", "/v3/documents?dedupe=false", files=own)
            await asyncio.sleep(0.5)

        await self._many(4, once)

    async def slow(self) -> None:
        """150 uploads at a byte a second, and 150 connections that send half a head."""
        host, port = self.url.removeprefix("http://").split(":")

        async def trickle(lane: int) -> None:
            head = f"POST /v3/documents HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {self.key}\r\n"
            if lane % 2:
                head += "Content-Type: application/pdf\r\nContent-Length: 1000000\r\n\r\n"
            while not self.over:
                with suppress(OSError):
                    reader, writer = await asyncio.open_connection(host, int(port))
                    self.counts["connections"] += 1
                    writer.write(head.encode())
                    while not self.over and not reader.at_eof():
                        await asyncio.sleep(1)
                        writer.write(b"x" if lane % 2 else b"")
                        await writer.drain()
                    writer.close()
                await asyncio.sleep(0.2)

        await asyncio.gather(*(trickle(lane) for lane in range(300)))

    async def streams(self) -> None:
        """300 streams of events, of which 200 are allowed."""

        async def listen(_: int) -> None:
            with suppress(httpx2.HTTPError):
                async with self.client.stream("GET", "/v3/events?after=0-0") as answer:
                    self.counts[f"stream {answer.status_code}"] += 1
                    async for _piece in answer.aiter_bytes():
                        if self.over:
                            return
            await asyncio.sleep(0.5)

        lanes = [asyncio.create_task(self._many(1, listen)) for _ in range(300)]
        await asyncio.sleep(self.until_s - time.monotonic())
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)


async def hostile(facts: dict[str, Any]) -> dict[str, Any]:
    own = Hostile(facts)
    await own.run(facts["harm"])
    return {"counts": own.counts}


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    os.nice(given["nice"])
    print("ready", flush=True)  # everything is imported
    print(json.dumps(asyncio.run({"polite": polite, "hostile": hostile}[sys.argv[1]](given))))
