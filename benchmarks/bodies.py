"""How long `/healthz` waits beside the largest JSON that is allowed: `python benchmarks/bodies.py [--store URL]`.

Posts bodies of several shapes, each as large as the settings allow, one at a time and then from three organisations at
once, to a real `perdure serve`, and asks for `/healthz` all the while. Prints the waits, and the most memory that the
server and the processes beside it had.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.api.served import new_key, served

MB = 1 << 20
SIZE = 32 * MB - 1000
VALUES = 499_000
EVERY_S = 0.01


def _text(piece: str, times: int) -> bytes:
    return b'{"pipeline": "notes", "dedupe": false, "text": "' + piece.encode() * times + b'"}'


def _json(value: str) -> bytes:
    return f'{{"pipeline": "notes", "dedupe": false, "json": {value}}}'.encode()


def _with_meta() -> bytes:
    return _text("x", 10)[:-1] + b', "meta": {"k": [' + b"0," * 480 + b"0]}}"


def _bulk(number: int, document: bytes) -> bytes:
    return b'{"documents": [' + b",".join([document] * number) + b"]}"


#: Each with its path below /v3/documents; all are legal, or just not.
SHAPES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "one string": ("", lambda: _text("x", SIZE)),
    "string with one emoji": ("", lambda: _text("x", SIZE - 10) [:-2] + "😀\"}".encode()),
    "string of umlauts": ("", lambda: _text("ü", SIZE // 2)),
    "string of escapes": ("", lambda: _text("\\n", SIZE // 2)),
    "string of \\u escapes": ("", lambda: _text("\\u00fc", SIZE // 6)),
    "numbers": ("", lambda: _json("[" + "0," * VALUES + "0]")),
    "empty lists": ("", lambda: _json("[" + "[]," * VALUES + "0]")),
    "keys": ("", lambda: _json("{" + ",".join(f'"{n:050}":0' for n in range(VALUES // 2)) + "}")),
    "duplicate keys": ("", lambda: _json("{" + '"k":{},' * (VALUES // 2) + '"k":0}')),
    "nested lists": ("", lambda: _json("[" + ",".join(["[" * 190 + "]" * 190] * (VALUES // 190)) + "]")),
    "long numbers": ("", lambda: _json("[" + ",".join(["9" * 999] * (SIZE // 1000)) + "]")),
    "floats": ("", lambda: _json("[" + "0.1234567890123456e-300," * VALUES + "0]")),
    "short strings": ("", lambda: _json("[" + f'"{"y" * 60}",' * VALUES + "0]")),
    "meta": ("", lambda: b'{"text": "a", "meta": {"k": [' + b"0," * VALUES + b"0]}}"),
    "1000 documents of 32 KB": ("/bulk", lambda: _bulk(1000, _text("x", 32_000))),
    "1000 documents with meta": ("/bulk", lambda: _bulk(1000, _with_meta())),
    "1000 small documents": ("/bulk", lambda: _bulk(1000, _text("x", 10))),
    "UTF-16": ("", lambda: _text("ü", SIZE // 4).decode().encode("utf-16")),
    "a million digits": ("", lambda: _json("9" * MB)),
    "broken UTF-8": ("", lambda: b'{"text": "' + b"\xff" * SIZE + b'"}'),
    "unknown keys": ("", lambda: json.dumps({f"unknown-{n}": n for n in range(VALUES // 2)}).encode()),
}  # fmt: skip


class Watch:
    """Asks for /healthz, and looks at the memory of the server, until it is told to stop."""

    def __init__(self, url: str, process: psutil.Process) -> None:
        self.waits: list[float] = []
        self.server_mb = self.reader_mb = 0.0
        self._url, self._process, self._over = url, process, threading.Event()

    def ask(self) -> None:
        with httpx2.Client(base_url=self._url, timeout=90) as client:
            while not self._over.wait(EVERY_S):
                began_s = time.perf_counter()
                assert client.get("/healthz").status_code == 200
                self.waits.append(time.perf_counter() - began_s)

    def look(self) -> None:
        while not self._over.wait(0.05):
            self.server_mb = max(self.server_mb, self._process.memory_info().rss / MB)
            readers = [one for one in self._process.children() if "perdure.api.reader" in _command(one)]
            self.reader_mb = max([self.reader_mb, *(_rss(one) / MB for one in readers)])

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(self.ask), pool.submit(self.look)]
            try:
                yield
            finally:
                self._over.set()
            for one in both:
                one.result()


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def post(client: httpx2.Client, path: str, body: bytes) -> int:
    headers = {"Content-Type": "application/json", "Idempotency-Key": f"{time.time_ns()}"}
    return client.post(f"/v3/documents{path}", content=body, headers=headers).status_code


def measure(name: str, url: str, clients: list[httpx2.Client], path: str, body: bytes) -> float:
    server = next(one for one in psutil.Process().children() if "serve" in _command(one))
    watch, began_s = Watch(url, server), time.perf_counter()
    with watch.watching(), ThreadPoolExecutor(len(clients)) as pool:
        statuses = list(pool.map(lambda client: post(client, path, body), clients))
    took_s, waits = time.perf_counter() - began_s, sorted(watch.waits) or [0.0]
    print(
        f"{name:26} {len(body) / MB:5.1f} MB x{len(clients)}  answered {'/'.join(map(str, sorted(set(statuses)))):7} "
        f"in {took_s:5.1f} s  healthz P50 {waits[len(waits) // 2] * 1000:5.0f} P99 "
        f"{waits[int(len(waits) * 0.99)] * 1000:5.0f} max {waits[-1] * 1000:5.0f} ms  "
        f"server {watch.server_mb:4.0f} MB, reader {watch.reader_mb:4.0f} MB",
        flush=True,
    )
    return waits[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store")
    parser.add_argument("--shape", help="Only shapes with this in their name.", default="")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = asked.store or f"sqlite:///{directory}/perdure.db"
        keys = [new_key(store, f"org-{n}") for n in range(3)]
        with served(store, "--no-worker") as url:
            clients = [
                httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=300)
                for key in keys
            ]
            longest = 0.0
            for name, (path, make) in SHAPES.items():
                if asked.shape in name:
                    body = make()
                    longest = max(longest, measure(name, url, clients[:1], path, body))
                    longest = max(longest, measure(name, url, clients, path, body))
            print(f"the longest wait for /healthz was {longest * 1000:.0f} ms")


if __name__ == "__main__":
    main()
