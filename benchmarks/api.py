"""How fast the HTTP API takes documents in, beside a bare FastAPI route that does its own insert; how fast it answers.

    python benchmarks/api.py [--store sqlite --store postgres] [--seconds 4] [--rounds 3] [--json]

Creation: `POST /v3/documents` of `perdure serve`, and a route that writes a row for the document and one for its job in
a transaction per request, into the same kind of store, as durable; by turns, from 32 connections. Reading: `GET
/v3/documents/{id}` 200 times a second, whether or not earlier ones were answered, while a worker drains documents; the
latency counts from when a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from perdure import Document, Perdure, Pipeline
from perdure.bench.place import place
from perdure.service import AsyncPerdure

CONNECTIONS = 32
RATE_PER_S = 200
WAITING = 30_000
TEXT = "A text of some length, as people write them. " * 8

notes = Pipeline("notes")


@notes.stage
def read(doc: Document) -> int:
    return len(doc.text)


app = Perdure("sqlite:///not-opened.db", pipelines=[notes])


# --- the bare route ------------------------------------------------------------------------------


class New(BaseModel):
    text: str
    pipeline: str


class Taken(BaseModel):
    id: str


def bare(store: str, port: int) -> None:
    """Serve one route over the bare driver."""
    import uvicorn

    @contextlib.asynccontextmanager
    async def life(served: FastAPI) -> AsyncIterator[None]:
        async with _insert(store) as served.state.insert:
            yield

    served = FastAPI(lifespan=life)

    @served.get("/readyz")
    async def ready() -> None:
        return

    @served.post("/v3/documents", status_code=201)
    async def create(new: New) -> Taken:
        return Taken(id=await served.state.insert(new.text, new.pipeline))

    uvicorn.run(served, host="127.0.0.1", port=port, log_level="warning", access_log=False, loop="asyncio")


TABLES = (
    "CREATE TABLE bare_document (id text PRIMARY KEY, body text, created_ms bigint)",
    "CREATE TABLE bare_job (id text PRIMARY KEY, pipeline text, state text, created_ms bigint)",
)


@contextlib.asynccontextmanager
async def _insert(store: str) -> AsyncIterator[Any]:
    """What writes a document and its job, durable when it returns."""
    from uuid_utils import uuid7

    if store.startswith("sqlite"):
        from perdure.store.sqlite import connect

        connection = connect(Path(store.removeprefix("sqlite:///") + "-bare"))
        lock = asyncio.Lock()
        for table in TABLES:
            connection.execute(table)

        def write(id_: str, text: str, pipeline: str, now_ms: int) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO bare_document VALUES (?, ?, ?)", (id_, text, now_ms))
            connection.execute("INSERT INTO bare_job VALUES (?, ?, 'queued', ?)", (id_, pipeline, now_ms))
            connection.execute("COMMIT")

        async def insert(text: str, pipeline: str) -> str:
            id_ = str(uuid7())
            async with lock:
                await asyncio.to_thread(write, id_, text, pipeline, time.time_ns() // 1_000_000)
            return id_

        yield insert
        connection.close()
        return

    import asyncpg

    async with asyncpg.create_pool(store, min_size=8, max_size=8) as pool:
        for table in TABLES:
            await pool.execute(table)

        async def insert_postgres(text: str, pipeline: str) -> str:
            id_, now_ms = str(uuid7()), time.time_ns() // 1_000_000
            async with pool.acquire() as taken, taken.transaction():
                await taken.execute("INSERT INTO bare_document VALUES ($1, $2, $3)", id_, text, now_ms)
                await taken.execute(
                    "INSERT INTO bare_job VALUES ($1, $2, 'queued', $3)", id_, pipeline, now_ms
                )
            return id_

        yield insert_postgres


# --- servers and clients -------------------------------------------------------------------------


@contextlib.contextmanager
def running(arguments: list[str]) -> Any:
    """A process of ours, ended with the block."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    given = {
        **os.environ,
        "PYTHONPATH": path,
        "PERDURE_API_RATE_PER_S": "1000000",
        "PERDURE_LOG_LEVEL": "WARNING",
    }
    process = subprocess.Popen([sys.executable, *arguments], env=given)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


class Link:
    """A connection that is kept: as little client as can be, because it runs beside the server."""

    def __init__(self, port: int, key: str) -> None:
        self.port, self.head = port, f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"

    async def open(self) -> Link:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\n{self.head}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.writer.write(head.encode() + b"\r\n" + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(answer.split(b" ", 2)[1]), await self.reader.readexactly(length)


async def ready(port: int) -> None:
    """Until the server answers."""
    for _ in range(600):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, IndexError):
            link = await Link(port, "").open()
            await link.ask("GET", "/readyz")
            link.writer.close()
            return
        await asyncio.sleep(0.1)
    raise SystemExit("the server does not answer")


def new(n: int) -> bytes:
    return json.dumps({"text": f"{n} {random.random()} {TEXT}", "pipeline": "notes"}).encode()


async def creation(port: int, key: str, seconds: float) -> float:
    """Documents a second from all connections."""
    links = [await Link(port, key).open() for _ in range(CONNECTIONS)]
    until_s, made = time.perf_counter() + seconds, 0

    async def one(link: Link, n: int) -> int:
        count = 0
        while time.perf_counter() < until_s:
            status, said = await link.ask("POST", "/v3/documents", new(n))
            assert status == 201, said
            count += 1
        link.writer.close()
        return count

    made = sum(await asyncio.gather(*(one(link, n) for n, link in enumerate(links))))
    return made / seconds


async def reading(port: int, key: str, ids: list[str], seconds: float) -> list[float]:
    """Latencies in milliseconds, sorted, from when each request was due."""
    free: asyncio.Queue[Link] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await Link(port, key).open())
    began_s, took = time.perf_counter() + 0.1, []

    async def one(n: int) -> None:
        due_s = began_s + n / RATE_PER_S
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        link = await free.get()
        status, said = await link.ask("GET", f"/v3/documents/{random.choice(ids)}")
        assert status == 200, said
        took.append(1000 * (time.perf_counter() - due_s))
        free.put_nowait(link)

    await asyncio.gather(*(one(n) for n in range(int(RATE_PER_S * seconds))))
    while not free.empty():
        free.get_nowait().writer.close()
    return sorted(took)


# --- what is measured ----------------------------------------------------------------------------


async def key_of(store: str) -> str:
    service = AsyncPerdure(store)
    await service.start()
    try:
        return (await service.add_key("bench", "bench", ("read", "write", "operate")))[1]
    finally:
        await service.close()


async def measure(kind: str, seconds: float, rounds: int) -> dict[str, Any]:
    async with place(kind) as store:
        key, port = await key_of(store), 20_000 + random.randrange(20_000)
        serve = ["-m", "perdure", "serve", "api:app", "--store", store, "--port"]
        found: dict[str, Any] = {"store": kind}
        with (
            running([*serve, str(port), "--no-worker"]),
            running([__file__, "--bare", store, "--port", str(port + 1)]),
        ):
            await ready(port)
            await ready(port + 1)
            rates: dict[str, list[float]] = {"ours": [], "bare": []}
            for _ in range(rounds):
                for who, at in (("ours", port), ("bare", port + 1)):
                    rates[who].append(await creation(at, key, seconds))
        ours, bound = (statistics.median(rates[who]) for who in ("ours", "bare"))
        found |= {"created_per_s": ours, "bare_per_s": bound, "ratio": ours / bound}
        ids = await waiting(store)
        with running([*serve, str(port + 2)]):
            await ready(port + 2)
            while not await done(port + 2, key):
                await asyncio.sleep(0.2)
            await reading(
                port + 2, key, ids, 1
            )  # connections to the store are made when they are first needed
            before = await done(port + 2, key)
            took = await reading(port + 2, key, ids, 2.5 * seconds)
            drained = await done(port + 2, key) - before
        found |= {"get_p50_ms": took[len(took) // 2], "get_p99_ms": took[int(len(took) * 0.99)]}
        return found | {"drained_per_s": drained / (2.5 * seconds)}


async def waiting(store: str) -> list[str]:
    """Documents for the worker to drain meanwhile."""
    service = AsyncPerdure(store, pipelines=[notes])
    await service.start()
    try:
        entries = ({"text": f"{n} {TEXT}", "dedupe": False, "org": "bench"} for n in range(WAITING))
        return [one.id for one in await service.add_many(entries, pipeline="notes")]  # type: ignore[arg-type]
    finally:
        await service.close()


async def done(port: int, key: str) -> int:
    """How many are done by now."""
    link = await Link(port, key).open()
    counted = json.loads((await link.ask("GET", "/v3/status"))[1])
    link.writer.close()
    return int(counted["documents"].get("done", 0))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--store", action="append")
    asked.add_argument("--seconds", type=float, default=4)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--bare", help=argparse.SUPPRESS)
    asked.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.bare:
        bare(given.bare, given.port)
        return
    found = [
        asyncio.run(measure(k, given.seconds, given.rounds)) for k in given.store or ["sqlite", "postgres"]
    ]
    if given.json:
        print(json.dumps(found))
        return
    names = ("created/s", "bare/s", "ratio", "GET p50 ms", "GET p99 ms", "drained/s")
    print(f"{'store':10}" + "".join(f"{name:>12}" for name in names))
    for one in found:
        print(
            f"{one['store']:10}{one['created_per_s']:12.0f}{one['bare_per_s']:12.0f}{one['ratio']:12.2f}"
            f"{one['get_p50_ms']:12.1f}{one['get_p99_ms']:12.1f}{one['drained_per_s']:12.0f}"
        )


if __name__ == "__main__":
    main()
