"""One organisation floods a server while others hand in a document now and then: how long do these wait?"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx2

from perdure import Document, Perdure, Pipeline
from tests.api.served import new_key, served

paced = Pipeline("paced")
STAGE_S = 0.1  # on the average
SLOTS = 4
RATE_PER_S = 25
APART_S = 0.2  # between two documents of a quiet organisation


@paced.stage
async def read(doc: Document) -> int:
    await asyncio.sleep(STAGE_S * (0.5 + random.random()))
    return len(doc.text)


app = Perdure("sqlite:///not-opened.db", pipelines=[paced])


class Field:
    """A server with a worker that does `SLOTS / STAGE_S` documents a second; two quiet organisations and a loud one."""

    def __init__(self, store: str, url: str) -> None:
        self.refused: Counter[str] = Counter()  # answers 429, by organisation
        self.clients = {org: self._client(store, url, org) for org in ("quiet", "calm", "flood")}

    def _client(self, store: str, url: str, org: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {new_key(store, org)}"}
        return httpx2.Client(base_url=url, headers=headers, timeout=90)

    def ask(self, org: str, method: str, path: str, **more: Any) -> httpx2.Response:
        answer = self.clients[org].request(method, path, **more)
        self.refused[org] += answer.status_code == 429
        return answer

    def waits_s(self, number: int) -> list[float]:
        """From adding to the end, of so many documents of each quiet organisation, sorted."""
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda org: self._waits_s(org, number), ("quiet", "calm")))
        return sorted(found[0] + found[1])

    def _waits_s(self, org: str, number: int) -> list[float]:
        began_s, ids = time.monotonic(), []
        for n in range(number):
            time.sleep(max(0.0, began_s + n * APART_S - time.monotonic()))
            asked = {"text": f"{org} {n}", "pipeline": "paced", "dedupe": False}
            ids.append(self.ask(org, "POST", "/v3/documents", json=asked).json()["id"])
        return [self._waited_s(org, id_) for id_ in ids]

    def _waited_s(self, org: str, id_: str) -> float:
        until_s = time.monotonic() + 60
        while (found := self.ask(org, "GET", f"/v3/documents/{id_}").json())["finished_at"] is None:
            assert time.monotonic() < until_s, f"not ended in time: {found}"
            time.sleep(0.2)
        times = [datetime.fromisoformat(found[name]) for name in ("created_at", "finished_at")]
        return (times[1] - times[0]).total_seconds()

    @contextmanager
    def flood(self, documents: int, threads: int) -> Iterator[None]:
        """Thousands of documents at once, and more requests than are allowed for as long as the block lasts."""
        texts = [{"text": f"{n}", "pipeline": "paced", "dedupe": False} for n in range(1000)]
        for _ in range(documents // 1000):
            answer = self.ask("flood", "POST", "/v3/documents/bulk", json={"documents": texts})
            assert answer.status_code == 201, answer.text
        over = threading.Event()

        def pester() -> None:
            while not over.is_set():
                answer = self.ask("flood", "GET", "/v3/documents?limit=1")
                time.sleep(0.05 if answer.status_code == 429 else 0)

        with ThreadPoolExecutor(threads) as pool:
            for _ in range(threads):
                pool.submit(pester)
            try:
                yield
            finally:
                over.set()


@contextmanager
def field(store: str) -> Iterator[Field]:
    """Served by real processes, ended with the block."""
    settings = {"PERDURE_CONCURRENCY": str(SLOTS), "PERDURE_API_RATE_PER_S": str(RATE_PER_S)}
    with served(store, target=f"{__name__}:app", **settings) as url:
        made = Field(store, url)
        yield made
        for client in made.clients.values():
            client.close()
