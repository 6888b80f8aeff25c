"""What it costs to count and to find among a million documents, and to take back a hundred thousand expired leases.

    python benchmarks/scale.py [--documents 1000000] [--leases 100000] [--store sqlite --store postgres] [--json]

Rows are written straight into the tables: half of the documents done, a third queued, a tenth waiting, 4 % dead of five
causes, 1 % cancelled, of twenty organisations in three queues and two lanes; the backlog is younger than what is done.
Each read is asked ten times: median and worst. Then a worker process drains documents while its supervisor takes back
leases that expired all at once: how long that takes, and the worker's rate before and meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from perdure.bench import load, ours
from perdure.bench.place import place
from perdure.service import AsyncPerdure
from perdure.store.base import Query, Steps
from perdure.store.counting import recount
from perdure.watch.board import Board
from perdure.watch.overall import Overall

ROUNDS = 10
SLICE = 50_000  # rows of one transaction
ALLOWED_MS = 300
ORGS = 20
ENDED, WAITING = (
    0.55,
    0.65,
)  # of all, in the order of their ids: those that have ended, those that wait, the queued
DRAINED = 60_000  # documents for the worker
LOOK_S = 8.0

ORG = f"'o' || (i % {ORGS})"
ID = "'d' || substr('000000000' || i, -9)"
COLLECTION = "CASE WHEN i % 100 < 70 THEN 'documents' WHEN i % 100 < 90 THEN 'messages' ELSE 'images' END"
QUEUE = "CASE WHEN i % 100 < 70 THEN 'documents' WHEN i % 100 < 90 THEN 'messages' ELSE 'images' END"
LANE = "CASE WHEN i % 100 < 90 THEN '' ELSE 'openai' END"


def numbers(first: int, last: int) -> str:
    return f"WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) "


def filling(first: int, last: int, total: int, kind: str) -> Callable[[], Steps[None]]:
    """Documents with these numbers and all that belongs to them."""
    n = numbers(first, last)
    ended = f"i <= {int(total * ENDED)}"
    dead, cancelled = f"({ended} AND i % 55 < 4)", f"({ended} AND i % 55 = 4)"
    waiting = f"(NOT {ended} AND i <= {int(total * WAITING)})"
    state = f"CASE WHEN {dead} THEN 'dead' WHEN {cancelled} THEN 'cancelled' WHEN {ended} THEN 'done' ELSE 'open' END"
    live = f"CASE WHEN {dead} THEN 'dead' WHEN {waiting} THEN 'waiting' ELSE 'queued' END"
    id_ = ID if kind == "blob" else "'d' || lpad(CAST(i AS text), 9, '0')"

    def steps() -> Steps[None]:
        yield Query(
            "INSERT INTO document (org, id, collection, pipeline, kind, name, media_type, content_hash, size, inline, "
            f"meta, created_ms, state, finished_ms, error_code, error_message) {n} SELECT {ORG}, {id_}, {COLLECTION}, "
            f"'one', 'text', 'n' || i, '', '', 18, CAST('what was handed in' AS {kind}), CAST('{{}}' AS {kind}), i, "
            f"{state}, CASE WHEN {ended} THEN i END, CASE WHEN {dead} THEN 'http_500' WHEN {cancelled} "
            f"THEN 'cancelled' END, CASE WHEN {dead} THEN 'the service said no' END FROM n"
        )
        yield Query(
            "INSERT INTO attempt (org, document_id, job_key, generation, claim, attempt, charged, token, stage, "
            f"worker, started_ms, ended_ms, outcome, why) {n} SELECT {ORG}, {id_}, 'doc-' || {id_}, 1, 1, 1, TRUE, i, "
            f"'only', 1, i, i, CASE WHEN {dead} THEN 'dead' WHEN {waiting} THEN 'retry' ELSE 'done' END, 'so' FROM n "
            f"WHERE ({ended} OR {waiting}) AND NOT {cancelled}"
        )
        yield Query(
            "INSERT INTO dead (org, document_id, collection, pipeline, queue, lane, stage, error_type, error_code, "
            f"fingerprint, attempts, generation, died_ms) {n} SELECT {ORG}, {id_}, {COLLECTION}, 'one', {QUEUE}, "
            f"{LANE}, 'only', 'Transient', 'http_500', 'abcdef012345678' || (i % 5), 3, 1, i FROM n WHERE {dead}"
        )
        yield Query(
            "INSERT INTO job (org, key, document_id, pipeline, queue, lane, stage, state, vt, run_at_ms, lease_ms, "
            f"attempts, attempts_max, created_ms, finished_ms) {n} SELECT {ORG}, 'doc-' || {id_}, {id_}, 'one', "
            f"{QUEUE}, {LANE}, 'only', {live}, i, CASE WHEN {waiting} THEN 4000000000000 + i ELSE i END, 30000, 1, 3, "
            f"i, CASE WHEN {dead} THEN i END FROM n WHERE {dead} OR NOT {ended}"
        )

    return steps


def leasing(first: int, last: int, kind: str, expired: bool) -> Callable[[], Steps[None]]:
    """Documents for the worker; or running ones of a worker that is gone, whose leases are over."""
    n, name = numbers(first, last), "lease" if expired else "prompt"
    state = "'running', 1, 999999, 1, 1" if expired else "'queued', NULL, NULL, NULL, NULL"

    def steps() -> Steps[None]:
        yield Query(
            "INSERT INTO document (org, id, collection, pipeline, kind, name, media_type, content_hash, size, inline, "
            f"meta, created_ms) {n} SELECT {ORG}, '{name}' || i, 'leases', 'prompt', 'text', '', '', '', 1, "
            f"CAST('x' AS {kind}), CAST('{{}}' AS {kind}), i FROM n"
        )
        yield Query(
            "INSERT INTO job (org, key, document_id, pipeline, queue, lane, stage, state, token, worker, claimed_ms, "
            f"lease_until_ms, vt, run_at_ms, lease_ms, attempts, attempts_max, created_ms) {n} SELECT {ORG}, "
            f"'doc-{name}' || i, '{name}' || i, 'prompt', '{'leases' if expired else load.prompt.queue}', '', 'began', "
            f"{state}, i, 1, 30000, {int(expired)}, 3, i FROM n"
        )

    return steps


async def fill(app: AsyncPerdure, last: int, make: Callable[[int, int], Callable[[], Steps[None]]]) -> None:
    for first in range(1, last + 1, SLICE):
        await app.store.driver.write(make(first, min(first + SLICE - 1, last)))
    await app.store.driver.write(lambda: recount(app.store.sql))
    if app.store.dialect_name == "postgres":
        await app.store.driver.script("ANALYZE")


def reads(app: AsyncPerdure, documents: int) -> dict[str, Callable[[], Awaitable[object]]]:
    store = app.store
    middle, queued = f"d{int(documents * ENDED / 2):09}", f"d{documents - 7:09}"
    found: dict[str, Callable[[], Awaitable[object]]] = {
        "counts": store.counts,
        "status": app.overview,
        "metrics": lambda: Overall(store, Board.private()).read(),
        "why, queued": lambda: app.why(queued),
        "why, done": lambda: app.why(middle),
        "failure groups": app.groups,
        "list": app.documents,
        "list, one organisation": lambda: app.documents(org="o7"),
        "list, a collection": lambda: store.documents(collection="images"),
        "list, a collection of one": lambda: store.documents("o99", collection="archives"),
    }
    for state in (
        "queued",
        "waiting",
        "running",
        "held",
        "done",
        "dead",
        "cancelled",
        "failed",
        "extracting",
    ):
        found[f"list, {state}"] = lambda state=state: app.documents(state=state)  # type: ignore[misc]
    for state in ("waiting", "done", "dead"):
        found[f"list, {state}, of one"] = lambda state=state: app.documents(state=state, org="o7")  # type: ignore[misc]
    found["list, done, far down"] = lambda: app.documents(state="done", after=middle)
    return found


async def timed(act: Callable[[], Awaitable[object]]) -> dict[str, float]:
    took = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        await act()
        took.append(1_000 * (time.perf_counter() - began_s))
    return {"median_ms": round(statistics.median(took), 1), "worst_ms": round(max(took), 1)}


async def rate(app: AsyncPerdure, until: Callable[[Any], bool], longest_s: float) -> tuple[float, float]:
    """Documents that were done a second, and for how long it was looked at."""
    began_s, before = (
        time.perf_counter(),
        (await app.store.counts()).states(collection="leases").get("done", 0),
    )
    while True:
        await asyncio.sleep(0.25)
        counts, took_s = await app.store.counts(), time.perf_counter() - began_s
        if until(counts) or took_s > longest_s:
            return (counts.states(collection="leases").get("done", 0) - before) / took_s, took_s


async def sweep(app: AsyncPerdure, url: str, leases: int, kind: str) -> dict[str, float]:
    await fill(app, DRAINED, lambda first, last: leasing(first, last, kind, expired=False))
    with tempfile.TemporaryDirectory() as directory, ours.worker_process(url, Path(directory)):
        await rate(app, lambda counts: counts.states(collection="leases").get("done", 0) > 0, 60)
        alone, _ = await rate(app, lambda _: False, LOOK_S)
        await fill(app, leases, lambda first, last: leasing(first, last, kind, expired=True))
        beside, took_s = await rate(app, lambda c: not c.queues.get("leases", {}).get("running"), 120)
    left = (await app.store.counts()).queues["leases"].get("running", 0)
    return {
        "leases": leases, "left": left, "took_s": round(took_s, 1), "drain_alone_per_s": round(alone),
        "drain_beside_per_s": round(beside),
    }  # fmt: skip


async def measure(store: str, documents: int, leases: int, say: Callable[[str], None]) -> dict[str, Any]:
    async with place(store) as url:
        app = AsyncPerdure(url, pipelines=load.ALL)
        await app.start()
        try:
            kind = "blob" if url.startswith("sqlite") else "bytea"
            name = "sqlite" if url.startswith("sqlite") else "postgres"
            await app.store.declare(
                ("documents", "messages", "images", "leases", load.prompt.queue), ("", "openai")
            )
            began_s = time.perf_counter()
            await fill(app, documents, lambda first, last: filling(first, last, documents, kind))
            say(
                f"{name}, {documents:,} documents; they were written in {time.perf_counter() - began_s:.0f} s"
            )
            result: dict[str, Any] = {"store": name, "documents": documents, "reads": {}}
            for what, act in reads(app, documents).items():
                result["reads"][what] = took = await timed(act)
                slow = "  TOO SLOW" if took["worst_ms"] > ALLOWED_MS else ""
                say(
                    f"  {what:28} median {took['median_ms']:7.1f} ms   worst {took['worst_ms']:7.1f} ms{slow}"
                )
            if leases:
                result["sweep"] = swept = await sweep(app, url, leases, kind)
                say(
                    f"  {leases - swept['left']:,} of {leases:,} expired leases taken back in {swept['took_s']} s; "
                    f"drained: {swept['drain_alone_per_s']}/s before, {swept['drain_beside_per_s']}/s meanwhile"
                )
            return result
        finally:
            await app.close()


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--documents", type=int, default=1_000_000)
    arguments.add_argument("--leases", type=int, default=100_000, help="0: without the sweep")
    arguments.add_argument(
        "--store", action="append", help="sqlite, postgres or postgresql://…; both by default"
    )
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr if given.json else sys.stdout, flush=True)

    results = [
        asyncio.run(measure(store, given.documents, given.leases, say))
        for store in given.store or ("sqlite", "postgres")
    ]  # fmt: skip
    if given.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
