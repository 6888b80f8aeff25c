"""The primary dies and its standby is promoted behind the same address: workers and callers go on by themselves.

With synchronous replication nothing that was acknowledged is missing. With asynchronous replication the last moments
may be, and what is there is consistent: it is as if they had never happened.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perdure.errors import StoreUnavailable
from perdure.store.counting import miscounted
from tests.faults.fleet import Fleet
from tests.faults.flow import Flow, assert_arrived, seeded
from tests.faults.process import WorkerProcess
from tests.faults.proxy import Proxy
from tests.faults.replication import Replication, replication
from tests.faults.voyage import hasty

pytestmark = pytest.mark.timeout(600)

WORKERS = 2
CONCURRENCY = 5
OPEN_MAX = 20
REST_S = 60.0


@pytest.fixture
def servers() -> Iterator[Replication]:
    with replication() as made:
        yield made


@pytest.fixture
def address(servers: Replication) -> Iterator[Proxy]:
    """Where everybody connects to; it leads to the primary."""
    with Proxy(servers.primary.url, {}) as made:
        yield made


@pytest.fixture
def fleet(address: Proxy, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(address.url, tmp_path, server_old=False) as made:
        yield made


def at_work(fleet: Fleet, flow: Flow) -> list[WorkerProcess]:
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


def while_feeding(flow: Flow, act: Callable[[], object]) -> None:
    """Callers keep adding until the act is over."""
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        while not acting.done():
            flow.feed_for(0.1)
        acting.result()


def assert_books_agree(fleet: Fleet) -> None:
    """All that was accepted is there, and the counters say what the rows say."""
    store = fleet.app.store
    assert fleet.ask(store.balance()).difference == 0
    assert fleet.ask(store.driver.snapshot(lambda: miscounted(store.sql))) == {}


def test_synchronous_standby_has_all_that_was_acknowledged(
    servers: Replication, address: Proxy, fleet: Fleet
) -> None:
    """Two failovers; in the second one callers reach the standby while it still refuses writes."""

    def killed() -> None:
        servers.fail_over("kill")
        address.point_to(servers.primary.url)

    def crashed() -> None:
        assert servers.standby is not None
        servers.primary.stop("immediate")
        address.point_to(servers.standby.url)
        fleet.wait(
            lambda: "read-only" in "".join(w.said for w in workers) or refused(), "writes to be refused"
        )
        servers.promote()

    def refused() -> bool:
        assert servers.standby is not None
        return "read-only transaction" in servers.standby.log

    with seeded() as rng:
        flow = Flow(fleet, rng, open_max=OPEN_MAX)
        workers = at_work(fleet, flow)
        children = [worker.child for worker in workers]
        for act in (killed, crashed):
            servers.attach(synchronous=True)
            flow.feed_for(rng.uniform(1, 3))
            while_feeding(flow, act)
        flow.feed_for(1)
        rest_s = flow.wait_until_over(within_s=REST_S)

        assert_arrived(fleet)
        assert_books_agree(fleet)
        assert [worker.child for worker in workers] == children, "nobody had to be restarted"
        print(f"{flow.taken} documents, 2 failovers; all ended {rest_s:.1f} s after the last")


def test_asynchronous_standby_lacks_the_last_moments_and_is_consistent(
    servers: Replication, address: Proxy, fleet: Fleet
) -> None:
    """A caller that adds the missing ones again gets them in. Pipelines first used in the lost moments are served."""
    with seeded() as rng:
        flow = Flow(fleet, rng, open_max=OPEN_MAX)
        workers = at_work(fleet, flow)
        children = [worker.child for worker in workers]
        servers.attach(synchronous=False)
        flow.feed_for(1)
        servers.stop_sending()
        ended = {line.run for line in fleet.ledger if line.event == "end"}
        flow.feed_for(2)
        fleet.add(hasty.name, {"first of its pipeline": "0.1"})
        fleet.wait(lambda: _ended_since(fleet, ended) >= OPEN_MAX, "stages to be saved that will be lost")
        servers.fail_over("kill")
        address.point_to(servers.primary.url)
        there = {row[0] for row in servers.primary.ask("SELECT id FROM document")}
        missing = {name for name, id_ in fleet.ids.items() if id_ not in there}
        fleet.wait(lambda: _answers(fleet), "the store to answer")
        for name in missing:
            fleet.add(hasty.name if name == "first of its pipeline" else flow.pipeline, {name: "0.1"})
        flow.feed_for(1)
        rest_s = flow.wait_until_over(within_s=REST_S)

        assert "first of its pipeline" in missing
        assert_arrived(fleet)
        assert_books_agree(fleet)
        assert [worker.child for worker in workers] == children, "nobody had to be restarted"
        print(
            f"{flow.taken} documents, {len(missing)} missing and added again, all ended after {rest_s:.1f} s"
        )


def _ended_since(fleet: Fleet, before: set[str]) -> int:
    return len({line.run for line in fleet.ledger if line.event == "end"} - before)


def _answers(fleet: Fleet) -> bool:
    try:
        fleet.tally()
    except StoreUnavailable:
        return False
    return True
