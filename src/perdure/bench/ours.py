"""The measures through the whole engine: intake, flusher, claims, runner, stages, saves, history, leases kept."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perdure import Pipeline
from perdure.bench import load
from perdure.core.events import AnyEvent, AttemptEnded
from perdure.core.token import new_token
from perdure.errors import PerdureError
from perdure.service import AsyncPerdure
from perdure.store.base import Query, Steps
from perdure.store.operations import Claim

TEXT = "a text of some length, so that there is something to keep"
CLAIM = 50  # jobs per claim of the growth measure
START_S = 30.0
SETTLE_S = 1.0  # after which a started worker is idle
PAUSE_S = 0.01  # between two adds of the latency measure


class BenchFailed(PerdureError):
    """A measure did not come to its end; the message says why."""

    code = "bench_failed"


async def enqueue_bulk(app: AsyncPerdure, pipeline: Pipeline, documents: int) -> float:
    """Documents per second through `add_many`."""
    began_s = time.perf_counter()
    entries = ({"text": TEXT, "name": str(n), "dedupe": False} for n in range(documents))
    await app.add_many(entries, pipeline=pipeline)  # type: ignore[arg-type]  # a TypedDict from a generator
    return documents / (time.perf_counter() - began_s)


async def enqueue_single(app: AsyncPerdure, documents: int) -> float:
    """Documents per second, each added after the one before was acknowledged."""
    began_s = time.perf_counter()
    for _ in range(documents):
        await app.add(text=TEXT, dedupe=False, pipeline=load.one)
    return documents / (time.perf_counter() - began_s)


async def drain(app: AsyncPerdure, pipeline: Pipeline, documents: int, attempts: int = 1) -> float:
    """Attempts per second of a worker with all that belongs to it, from the moment the queue opens until every document
    is done. `attempts` is what each document takes."""
    ended, done, over = 0, 0, asyncio.Event()

    def heard(event: AnyEvent) -> None:
        nonlocal ended, done
        if isinstance(event, AttemptEnded):
            ended += 1
            done += event.outcome == "done"
            if done == documents or ended > documents * attempts or event.outcome == "dead":
                over.set()

    forget = app.events.subscribe(heard)
    app.only_queues = (pipeline.queue,)
    await app.pause(pipeline.queue)
    working = asyncio.create_task(app.run())
    try:
        while not app.works:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        began_s = time.perf_counter()
        await app.resume(pipeline.queue)
        app.store.wake_soon()
        await asyncio.wait({working, asyncio.create_task(over.wait())}, return_when=asyncio.FIRST_COMPLETED)
        took_s = time.perf_counter() - began_s
    finally:
        await app.stop()
        await working
        app.only_queues = ()
        forget()
    if (done, ended) != (documents, documents * attempts):
        raise BenchFailed(f"{done} of {documents} documents were done after {ended} attempts")
    return ended / took_s


async def claim_ms(app: AsyncPerdure, backlog: int, present: int, claims: int) -> float:
    """The median time of a claim of `CLAIM` jobs with `backlog` in the queue; `present` of them are there already."""
    store = app.store

    def fill() -> Steps[None]:
        # straight into the tables: what is measured here is the claim
        numbers = f"WITH RECURSIVE n(i) AS (SELECT {present + 1} UNION ALL SELECT i + 1 FROM n WHERE i < {backlog}) "
        yield Query(
            "INSERT INTO document (org, id, collection, pipeline, kind, name, media_type, content_hash, size, inline, "
            f"meta, created_ms) {numbers} SELECT 'o' || (i % 10), 'g' || i, 'c', 'one', 'text', '', '', '', 1, NULL, "
            "CAST('{}' AS " + ("blob" if store.dialect_name == "sqlite" else "bytea") + "), 1 FROM n"
        )
        yield Query(
            "INSERT INTO job (org, key, document_id, pipeline, queue, lane, stage, state, vt, run_at_ms, lease_ms, "
            f"attempts_max, created_ms) {numbers} SELECT 'o' || (i % 10), 'doc-g' || i, 'g' || i, 'one', 'growth', '', "
            "'only', 'queued', i / 10 + 1, 1, 600000, 3, 1 FROM n"
        )
        yield Query(store.sql.FLOW_ADD, ("growth", "one", ""))

    await store.declare(("growth",), ("",))
    await store.driver.write(fill)
    worker = await store.register("worker", "growth", ("growth",))
    took_ms = []
    for _ in range(claims + 3):
        began_s = time.perf_counter()
        found = await store.claim(Claim(worker, ("growth",), new_token(), CLAIM))
        took_ms.append(1000 * (time.perf_counter() - began_s))
        if len(found) != CLAIM:
            raise BenchFailed(f"a claim of {CLAIM} jobs found {len(found)}")
    return statistics.median(took_ms[3:])


@contextmanager
def worker_process(url: str, directory: Path) -> Iterator[int]:
    """A `perdure worker` of its own; its pid."""
    environment = {**os.environ, load.STORE_VARIABLE: url, "PERDURE_LOG_LEVEL": "WARNING"}
    command = [
        sys.executable,
        "-m",
        "perdure",
        "worker",
        f"{load.__name__}:app",
        "--queue",
        load.prompt.queue,
    ]
    with (directory / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def latency_ms(app: AsyncPerdure, documents: int) -> list[float]:
    """From the call of `add` to the first line of the stage in another process that has nothing else to do."""
    sent: dict[str, int] = {}
    # the first one waits for the worker to be up, the next ones warm it
    for n in range(documents + 5):
        began_ns = time.monotonic_ns()
        added = await app.add(text=TEXT, dedupe=False, pipeline=load.prompt)
        if n >= 5:
            sent[added.id] = began_ns
        else:
            await _done(app, added.id)
            await asyncio.sleep(SETTLE_S / 5)
        await asyncio.sleep(PAUSE_S)
    return [(await _done(app, id_) - began_ns) / 1e6 for id_, began_ns in sent.items()]


async def _done(app: AsyncPerdure, document_id: str) -> int:
    """What the stage gave, once it is there."""
    until_s = time.monotonic() + START_S
    while (await app.status(document_id)).state != "done":
        if time.monotonic() > until_s:
            raise BenchFailed(
                "the worker process did not take up a document; see whether `perdure worker` runs here"
            )
        await asyncio.sleep(0.02)
    return int(await app.output(document_id, "began"))


def tree_mb(pid: int) -> float:
    """Resident memory of a process and all that came from it; 0 where it cannot be read."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    family, before = {pid}, 0
    while len(family) != before:
        before = len(family)
        family |= {child for child, parent in parents.items() if parent in family}
    page = os.sysconf("SC_PAGE_SIZE")
    pages = 0
    for member in family:
        with suppress(OSError):
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
    return pages * page / 1e6
