"""All measures of one store, beside their bounds; a table for people, one JSON object for programs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from perdure.bench import bare, load, ours
from perdure.bench.place import place
from perdure.core.frozen import frozen
from perdure.engine.collector import calm_collector
from perdure.service import AsyncPerdure

#: Slots of the worker that drains: the more there are, the more jobs share a commit.
DRAIN_CONCURRENCY = 1_000
STAGES_CONCURRENCY = 50
ADD_BATCH = 500

Say = Callable[[str], None]


@frozen
class Sizes:
    """How much of each."""

    drain: int = 40_000
    stages5: int = 10_000
    single: int = 2_000
    storm: int = 8_000
    latency: int = 500
    backlogs: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    claims: int = 100


QUICK = Sizes(10_000, 2_000, 500, 3_000, 150, (10_000, 100_000), 40)


async def measure(store: str, sizes: Sizes, say: Say) -> dict[str, Any]:
    """Every measure, in this order; the bound of each right after it, on the same store."""
    async with place(store) as url:
        app = AsyncPerdure(url, pipelines=load.ALL, concurrency=DRAIN_CONCURRENCY)
        await app.start()
        driver = await bare.connect(url)
        calm_collector()  # as a worker process does
        try:
            bound = bare.Bound(driver)
            await bound.register()
            return {
                "store": "sqlite" if url.startswith("sqlite") else "postgres",
                **await _worker(app, url, sizes, say),
                **await _rates(app, bound, sizes, say),
                "growth": await _growth(app, sizes, say),
            }
        finally:
            await driver.close()
            await app.close()


async def _rates(app: AsyncPerdure, bound: bare.Bound, sizes: Sizes, say: Say) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def pair(
        name: str, our: Awaitable[float], fill: Awaitable[float] | None, their: Awaitable[float]
    ) -> None:
        await bound.bare.tidy()
        ours_per_s = await our
        if fill is not None:
            await fill
        await bound.bare.tidy()
        bound_per_s = await their
        found[name] = {
            "ours_per_s": round(ours_per_s, 1),
            "bound_per_s": round(bound_per_s, 1),
            "ratio": round(ours_per_s / bound_per_s, 3),
        }
        say(
            f"{name:15} {ours_per_s:9,.0f}/s   bound {bound_per_s:9,.0f}/s   ratio {ours_per_s / bound_per_s:.2f}"
        )

    add = ours.enqueue_bulk
    await pair("enqueue_bulk", add(app, load.one, sizes.drain), None, bound.enqueue(sizes.drain, ADD_BATCH))
    await pair(
        "drain", ours.drain(app, load.one, sizes.drain), add(app, load.one, sizes.drain),
        bound.drain(DRAIN_CONCURRENCY),
    )  # fmt: skip
    await add(app, load.storm, sizes.storm)
    await pair(
        "retry_storm", ours.drain(app, load.storm, sizes.storm, load.FAILURES + 1), add(app, load.storm, sizes.storm),
        bound.retry_storm(DRAIN_CONCURRENCY),
    )  # fmt: skip
    await add(app, load.five, sizes.stages5)
    app.concurrency = STAGES_CONCURRENCY
    await pair(
        "stages5", ours.drain(app, load.five, sizes.stages5), add(app, load.five, sizes.stages5),
        bound.stages5(STAGES_CONCURRENCY),
    )  # fmt: skip
    await pair("enqueue_single", ours.enqueue_single(app, sizes.single), None, bound.enqueue(sizes.single, 1))
    return found


async def _worker(app: AsyncPerdure, url: str, sizes: Sizes, say: Say) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="perdure-bench-") as directory,
        ours.worker_process(url, Path(directory)) as pid,
    ):
        took_ms = sorted(await ours.latency_ms(app, sizes.latency))
        memory_mb = ours.tree_mb(pid)
    p50, p99 = statistics.median(took_ms), took_ms[int(len(took_ms) * 0.99)]
    say(
        f"{'latency':15} p50 {p50:.1f} ms, p99 {p99:.1f} ms from add to the start of the stage in an idle worker"
    )
    say(f"{'idle worker':15} {memory_mb:.0f} MB resident (supervisor and child)")
    return {"latency_ms": {"p50": round(p50, 2), "p99": round(p99, 2)}, "idle_rss_mb": round(memory_mb, 1)}


async def _growth(app: AsyncPerdure, sizes: Sizes, say: Say) -> dict[str, float]:
    found, present = {}, 0
    for backlog in sizes.backlogs:
        took_ms = await ours.claim_ms(app, backlog, present, sizes.claims)
        name = f"{backlog // 1000}k" if backlog < 1_000_000 else f"{backlog // 1_000_000}m"
        found[f"claim_ms_{name}"] = round(took_ms, 3)
        present = backlog
        say(f"{'growth':15} a claim of {ours.CLAIM} takes {took_ms:.2f} ms with {backlog:,} in the queue")
    return found


async def run(stores: list[str], quick: bool, as_json: bool) -> None:
    """Measure each store; one JSON object (a list of them for several stores) on standard output, or a table."""
    running = asyncio.current_task()
    assert running is not None
    # so that server, worker and files are cleared away
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    results = []
    for store in stores:

        def say(line: str) -> None:
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

        began_s = time.monotonic()
        say(
            f"perdure bench on {store.partition('://')[0]}, {os.cpu_count()} cores; ratios are ours / bound of this run"
        )
        result = await measure(store, QUICK if quick else Sizes(), say)
        result["took_s"] = round(time.monotonic() - began_s, 1)
        results.append(result)
        say(f"took {result['took_s']:.0f} s\n")
    if as_json:
        print(json.dumps(results[0] if len(results) == 1 else results))
