"""Clients that upload to a real `perdure serve` which is killed under them, and try again under the same key."""

from __future__ import annotations

import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx2

from tests.faults.fleet import Fleet
from tests.faults.process import WorkerProcess
from tests.ports import free_ports

PIPELINE = "second"
AGAIN_S = 0.05
PATIENCE_S = 60.0


class Uploads:
    """`number` documents from `threads` clients; `taken` has the id of each that was acknowledged."""

    def __init__(self, fleet: Fleet, number: int, threads: int, rng: random.Random) -> None:
        self.fleet, self.number, self.threads, self.rng = fleet, number, threads, rng
        self.taken: dict[int, str] = {}
        self.broken = 0  # requests whose connection broke while the server was to answer them
        self.kills = 0
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._key = fleet.ask(fleet.app.add_key("acme", "uploads", ("read", "write")))[1]
        self._serve = ["-m", "perdure", "serve", "tests.faults.stages:seconds", "--port", str(port)]

    def run(self, kills: int) -> None:
        """Upload all of them while the server is killed so many times, at no special moment."""
        server = self._start()
        with ThreadPoolExecutor(self.threads) as pool:
            sent = [pool.submit(self._upload, n) for n in range(self.number)]
            for at in sorted(self.rng.sample(range(1, self.number), kills)):
                self.fleet.wait(partial(self._has, at), f"{at} uploads", PATIENCE_S, look_s=0.001)
                time.sleep(self.rng.random() * 0.02)
                server.kill()
                self.kills += 1
                server = self._start()
            for one in sent:
                one.result(PATIENCE_S)

    def _has(self, number: int) -> bool:
        return len(self.taken) >= number

    def _start(self) -> WorkerProcess:
        return self.fleet.run(
            self._serve, {"PERDURE_LOG_LEVEL": "WARNING", "PERDURE_API_RATE_PER_S": "100000"}
        )

    _local = threading.local()

    def _client(self) -> httpx2.Client:
        if getattr(self._local, "url", None) != self.url:
            headers = {"Authorization": f"Bearer {self._key}"}
            self._local.client = httpx2.Client(base_url=self.url, headers=headers, timeout=90)
            self._local.url = self.url
        client: httpx2.Client = self._local.client
        return client

    def _upload(self, n: int) -> None:
        until_s = time.monotonic() + PATIENCE_S
        for _ in itertools.count():
            try:
                answer = self._send(n)
            except httpx2.ConnectError:
                pass
            except httpx2.TransportError:
                self.broken += 1
            else:
                assert answer.status_code in (201, 503), answer.text
                if answer.status_code == 201:
                    self.taken[n] = answer.json()["id"]
                    return
            assert time.monotonic() < until_s, f"upload {n} was not taken in"
            time.sleep(AGAIN_S)

    def _send(self, n: int) -> httpx2.Response:
        """A file in a form, a text as JSON, or a raw body; never deduplicated by content."""
        name, text, client = f"upload-{n}", f"{n % 7}e-4", self._client()
        headers = {"Idempotency-Key": name}
        asked: dict[str, str] = {"pipeline": PIPELINE, "name": name, "dedupe": "false"}
        if n % 3 == 0:
            files = {"file": (name, text.encode(), "text/plain")}
            return client.post("/v3/documents", files=files, data=asked, headers=headers)
        if n % 3 == 1:
            return client.post(
                "/v3/documents", json={**asked, "dedupe": False, "text": text}, headers=headers
            )
        headers["Content-Type"] = "text/plain"
        return client.post("/v3/documents", content=text.encode(), params=asked, headers=headers)
