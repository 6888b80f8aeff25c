"""`/metrics` of a server shows what worker processes count, each of them once, and never goes back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.store.open import open_store
from perdure.watch.board import Board
from perdure.watch.overall import Overall
from perdure.watch.shared_counters import SharedCounters
from tests.doors.command import COMMAND, environment
from tests.ports import adjacent_ports, free_ports
from tests.watch.failing import app, notes
from tests.watch.monitoring import fetched, until_ready

PATIENCE_S = 120.0
EXHAUSTED = 'retry_job_documents_max_retries_exceeded_total{collection="documents"}'
DEAD = 'perdure_documents_dead_total{collection="documents"}'
ENDED = 'perdure_attempts_total{outcome="dead",pipeline="notes"}'


@contextmanager
def process(*words: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([*COMMAND, *words], env=environment(**variables))
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(60)
        finally:
            running.kill()


def value(text: str, series: str) -> float | None:
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(series + " ")]
    return float(found[0]) if found else None


def until(url: str, series: str, wanted: float) -> str:
    """What is shown once the series has this value; a counter that goes back fails."""
    give_up_s, before = time.monotonic() + PATIENCE_S, 0.0
    while True:
        text = fetched(url)
        now = value(text, series) or 0.0
        assert now >= before, f"{series} went from {before} to {now}"
        if now >= wanted:
            assert now == wanted, f"{series} is {now}, not {wanted}"
            return text
        assert time.monotonic() < give_up_s, f"{series} is {now}, not {wanted}"
        before = now
        time.sleep(0.2)


def added(store: str, *texts: str) -> None:
    app.service.use(store)
    with app:
        for text in texts:
            app.add(text=text, pipeline=notes)


@pytest.mark.parametrize("beside", [True, False], ids=["workers of the server", "workers elsewhere"])
def test_a_failure_in_a_worker_process_raises_the_counters_of_the_server(
    tmp_path: Path, beside: bool
) -> None:
    store = f"sqlite:///{tmp_path}/notes.db"
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/metrics"
    serve = ("serve", "tests.watch.failing:app", "--port", str(port), "--open", "--store", store)
    variables = {"PERDURE_METRICS_OPEN": "true"}
    with process(*serve, *([] if beside else ["--no-worker"]), **variables) as server:
        until_ready(url, server)
        before = fetched(url)
        assert value(before, DEAD) == value(before, EXHAUSTED) == 0.0  # so that it is seen to rise
        assert value(before, ENDED) == 0.0
        added(store, "fail", "refuse", "good")
        if beside:
            text = until(url, DEAD, 2)
        else:
            with process("worker", "tests.watch.failing:app", "--store", store):
                until(url, DEAD, 2)
            text = until(url, DEAD, 2)  # the worker has ended, and its numbers are still there
        assert value(text, EXHAUSTED) == 1.0
        assert value(text, ENDED) == 2.0
        assert value(text, 'perdure_attempts_total{outcome="done",pipeline="notes"}') == 1.0
        shown = subprocess.run(
            [*COMMAND, "metrics", "--store", store],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert value(shown, DEAD) == 2.0


def test_a_worker_with_a_port_of_its_own_is_not_counted_twice(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/notes.db"
    first, second = adjacent_ports()
    added(store, "refuse")
    worker = ("worker", "tests.watch.failing:app", "--store", store)
    with process(*worker, PERDURE_METRICS_PORT=str(first)) as one:
        urls = [f"http://127.0.0.1:{port}/metrics" for port in (first, second)]
        until_ready(urls[0], one)
        until(urls[0], DEAD, 1)
        with process(*worker, PERDURE_METRICS_PORT=str(first)) as two:
            until_ready(urls[1], two)  # the next port
            assert value(fetched(urls[1]), DEAD) == 0.0

    async def kept() -> dict[str, float]:
        opened = open_store(store)
        await opened.open()
        try:
            return await opened.metrics()
        finally:
            await opened.close()

    assert asyncio.run(kept()) == {}


def test_two_processes_add_up_and_a_third_reads(store_url: str) -> None:
    async def act() -> None:
        store = open_store(store_url)
        await store.open()
        try:
            boards = [Board.private(), Board.private()]
            shared = [SharedCounters((board,), store) for board in boards]
            boards[0].start("perdure_documents_dead_total", "archives")
            for board, n in zip(boards, (2, 3), strict=True):
                for _ in range(n):
                    board.add("perdure_documents_dead_total", "images")
                board.observe("perdure_stage_seconds", "p", "s", "1MiB", value=0.5)
                board.put("perdure_breaker_state", "llm", value=2)
            for one in (*shared, *shared):  # a second time adds nothing
                await one.add()
            found = await SharedCounters((), store).read()
            assert found["perdure_documents_dead_total", "images"] == 5
            assert found["perdure_documents_dead_total", "archives"] == 0
            assert found["perdure_stage_seconds", "p", "s", "1MiB", "sum"] == 1.0
            assert not any(key[0] == "perdure_breaker_state" for key in found)
            await store.add_metrics(
                {'["perdure_gone_total", "x"]': 1.0, '["perdure_documents_dead_total"]': 1.0}
            )
            assert await SharedCounters((), store).read() == found  # of another release
        finally:
            await store.close()

    asyncio.run(act())


@pytest.mark.parametrize("moment", range(8))
def test_what_a_cancelled_process_had_in_hand_is_not_added_twice(store_url: str, moment: int) -> None:
    """The store may have written it although nobody waited for that any more."""

    async def act() -> None:
        store = open_store(store_url)
        await store.open()
        try:
            board = Board.private()
            board.add("perdure_workers_lost_total")
            shared = SharedCounters((board,), store)
            adding = asyncio.create_task(shared.add())
            for _ in range(moment):
                await asyncio.sleep(0)
            adding.cancel()
            await asyncio.wait([adding])
            board.add("perdure_workers_lost_total")
            await shared.add()
            assert await shared.read() == {("perdure_workers_lost_total",): 2}
        finally:
            await store.close()

    asyncio.run(act())


def test_of_services_with_one_name_the_worst_is_shown(tmp_path: Path) -> None:
    """Those that are too many to be told apart are called `other`."""
    overall = Overall(open_store(f"sqlite:///{tmp_path}/s.db"), Board.private())
    for share in (1.0, 0.25, 0.9):
        overall.least("perdure_dependency_success_share", "other", value=share)
    assert overall.found == {("perdure_dependency_success_share", "other"): 0.25}
