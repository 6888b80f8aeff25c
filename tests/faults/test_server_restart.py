"""PostgreSQL restarted under load: workers come back by themselves, nothing is lost, nothing is done twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet
from tests.faults.server import Server, own_server

JOBS = 80


@pytest.fixture
def server() -> Iterator[Server]:
    with own_server() as made:
        yield made


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restarts_under_load(server: Server, tmp_path: Path, mode: str) -> None:
    """Down for a moment, then for three seconds; `immediate` is as if the server had crashed."""
    with Fleet(server.url, tmp_path, server_old=False) as fleet:
        fleet.add("second", {f"d{number}": "0.4" for number in range(JOBS)})
        fleet.add("steps", {f"s{number}": "text" for number in range(JOBS // 8)})
        workers = [fleet.start("mixed", concurrency=5) for _ in range(2)]
        fleet.wait(lambda: len(fleet.starts()) > 15, "work to be under way")
        children = [worker.child for worker in workers]
        for down_s in (0.0, 3.0):
            server.stop(mode)
            time.sleep(down_s)
            server.start()
            before = len(fleet.starts())
            took_s = fleet.wait(lambda before=before: len(fleet.starts()) > before + 5, "work to go on")  # type: ignore[misc]
            print(f"at work again {took_s:.1f} s after the restart")
        fleet.wait_until_ended(within_s=90)

        statuses = fleet.statuses()
        assert {s.state for s in statuses.values()} == {"done"}
        assert {name: s.attempts_made for name, s in statuses.items() if s.attempts_made != 1} == {}
        pairs = [(document, stage) for document, stage, _ in fleet.effects()]
        assert len(pairs) == len(set(pairs)) == JOBS + 5 * (JOBS // 8)
        assert [worker.child for worker in workers] == children, "nobody had to be restarted"
        assert [worker.stop() for worker in workers] == [0, 0]


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_worker_while_the_server_is_away(server: Server, tmp_path: Path) -> None:
    """A child that dies meanwhile is replaced when the server is back; one that is to stop does not wait for it."""
    with Fleet(server.url, tmp_path, server_old=False) as fleet:
        fleet.add("steps", {"one": "a", "two": "b"})
        for name in ("one", "two"):
            fleet.shut(name, "embed:item-2")
        worker = fleet.start("mixed", PERDURE_GRACE_S="1")
        fleet.wait(lambda: all(fleet.reached(n, "embed:item-2") for n in ("one", "two")), "both gates")
        server.stop("fast")
        worker.kill_child()
        time.sleep(2)
        server.start()
        fleet.wait(
            lambda: [x.event for x in fleet.ledger].count("embed:item-2") == 4, "the new child to go on"
        )

        server.stop("fast")
        began_s = time.monotonic()
        assert worker.stop() == 0
        took_s = time.monotonic() - began_s
        print(f"stopped {took_s:.1f} s after it was asked to, without a server")
        assert took_s < 20
        fleet.wait_until_gone(worker)

        server.start()
        for name in ("one", "two"):
            fleet.open(name, "embed:item-2")
        fleet.start("mixed")
        fleet.wait_until_ended(within_s=60)
        assert {(s.state, s.attempts_made) for s in fleet.statuses().values()} == {("done", 1)}
        assert len(fleet.effects()) == 2 * 5
