"""PostgreSQL crashes again and again, or loses single sessions: workers come back by themselves, nothing runs again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.faults.fleet import Fleet
from tests.faults.flow import Flow, assert_arrived, assert_repeats_explained, seeded
from tests.faults.process import WorkerProcess
from tests.faults.server import Server, own_server

WORKERS = 3
CONCURRENCY = 5
OPEN_MAX = 30
BACK_S = 30.0
REST_S = 180.0
SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
    "AND pid <> pg_backend_pid() ORDER BY pid"
)


@pytest.fixture
def server() -> Iterator[Server]:
    with own_server() as made:
        yield made


@pytest.mark.parametrize(
    ("crashes", "documents", "every_s"),
    [
        pytest.param(3, 0, (1.0, 3.0), id="short"),
        pytest.param(8, 2_000, (5.0, 40.0), id="long", marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
def test_crashing_server(
    server: Server, tmp_path: Path, crashes: int, documents: int, every_s: tuple[float, float]
) -> None:
    """Stopped in good order, at once, or killed; down for up to 2 s. Each worker is at work again soon."""
    with seeded() as rng, Fleet(server.url, tmp_path, server_old=False) as fleet:
        flow = Flow(fleet, rng, open_max=OPEN_MAX)
        workers = _at_work(fleet, flow)
        children = [worker.child for worker in workers]
        ups: list[float] = []
        while len(ups) < crashes or flow.taken < documents:
            flow.feed_for(rng.uniform(*every_s))
            server.stop(rng.choice(["fast", "immediate", "kill"]))
            time.sleep(rng.uniform(0, 2))
            ups.append(server.start())
        flow.feed_for(1)
        rest_s = flow.wait_until_over(within_s=REST_S)

        _assert_unharmed(fleet)
        backs = [_back_s(fleet, worker, up_s) for up_s in ups for worker in workers]
        print(
            f"{flow.taken} documents, {len(ups)} crashes; each worker back within {max(backs):.1f} s, "
            f"all ended {rest_s:.1f} s after the last"
        )
        assert max(backs) < BACK_S
        assert [worker.child for worker in workers] == children, "nobody had to be restarted"


@pytest.mark.parametrize(
    ("sessions", "documents"),
    [
        pytest.param(8, 0, id="short"),
        pytest.param(200, 1_000, id="long", marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
def test_terminated_sessions(postgres_url: str, tmp_path: Path, sessions: int, documents: int) -> None:
    """Twice a second the server ends any session: one that writes, reads or holds a lock, a worker's or our own."""
    with seeded() as rng, Fleet(postgres_url, tmp_path) as fleet:
        flow = Flow(fleet, rng, open_max=OPEN_MAX)
        workers = _at_work(fleet, flow)
        children = [worker.child for worker in workers]
        ended = 0
        while ended < sessions or flow.taken < documents:
            flow.feed_for(0.5)
            ended += asyncio.run(_end_session(postgres_url, rng))
        rest_s = flow.wait_until_over(within_s=REST_S)

        _assert_unharmed(fleet)
        print(f"{flow.taken} documents, {ended} sessions ended; all ended {rest_s:.1f} s after the last")
        assert [worker.child for worker in workers] == children, "nobody had to be restarted"


async def _end_session(url: str, rng: random.Random) -> bool:
    connection = await asyncpg.connect(url)
    try:
        found = [row[0] for row in await connection.fetch(SESSIONS)]
        return bool(await connection.fetchval("SELECT pg_terminate_backend($1)", rng.choice(found)))
    finally:
        await connection.close()


def _at_work(fleet: Fleet, flow: Flow) -> list[WorkerProcess]:
    """Workers that all have something in hand."""
    workers = [
        fleet.start("travelling", concurrency=CONCURRENCY, ready=False, PERDURE_LOG_LEVEL="INFO")
        for _ in range(WORKERS)
    ]

    def all_at_work() -> bool:
        flow.feed_for(0)
        return {line.worker for line in fleet.starts()} == {worker.number for worker in workers}

    fleet.wait(all_at_work, "all workers to be at work", look_s=0.2)
    return workers


def _assert_unharmed(fleet: Fleet) -> None:
    """No worker died, so nothing ran again, nobody was taken for dead, and all is done once."""
    assert_arrived(fleet)
    assert_repeats_explained(fleet.ledger, [])
    assert fleet.tally().fenced == 0


def _back_s(fleet: Fleet, worker: WorkerProcess, up_s: float) -> float:
    """How long after the server was up the worker began a stage, which it can only after a claim or a save."""
    starts = [x.at_s for x in fleet.starts() if x.worker == worker.number and x.at_s > up_s]
    return min(starts) - up_s
