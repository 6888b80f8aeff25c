"""The primary dies and its standby is promoted behind the same address: workers and callers go on by themselves.

With synchronous replication nothing that was acknowledged is missing. With asynchronous replication the last moments
may be, and what is there is consistent: it is as if they had never happened.
"""

from __future__ import annotations

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
from tests.faults.replication import Node, Replication, replication
from tests.faults.stages import STORE_VARIABLE
from tests.faults.voyage import hasty

pytestmark = pytest.mark.timeout(1_800)

WORKERS = 2
CONCURRENCY = 5
OPEN_MAX = 20
REST_S = 180.0
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
NAMES = "SELECT name FROM document"


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


def at_work(fleet: Fleet, flow: Flow, *urls: str) -> list[WorkerProcess]:
    """Workers at these addresses, or at the fleet's, that all have something in hand."""
    workers = [
        fleet.start(
            "travelling",
            concurrency=CONCURRENCY,
            ready=False,
            PERDURE_LOG_LEVEL="INFO",
            **{STORE_VARIABLE: url},
        )
        for url in urls or [fleet.url] * WORKERS
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


def test_commit_that_no_standby_has_is_not_acknowledged(
    servers: Replication, address: Proxy, fleet: Fleet
) -> None:
    """The session that waits for the standby is ended, so the primary shows the commit; the caller looks and waits."""
    fleet.add("voyage", {"before": "0.1"})  # the caller is registered
    servers.attach(synchronous=True)
    servers.stop_sending()
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(fleet.add, "voyage", {"d0": "0.1"})
        for ended in range(3):  # the one that wrote, and those that look whether it did
            fleet.wait(
                lambda: adding.done() or servers.primary.ask(WAITING), "a commit to wait for the standby"
            )
            assert not adding.done(), f"acknowledged after {ended} sessions were ended, and no standby has it"
            servers.primary.ask(f"SELECT pg_terminate_backend(pid) FROM ({WAITING}) AS t")
            fleet.wait(lambda: ("d0",) in servers.primary.ask(NAMES), "the commit to be seen")
        servers.fail_over("kill")
        assert servers.primary.ask(NAMES) == [("before",)]
        address.point_to(servers.primary.url)
        adding.result(timeout=90)
    assert set(servers.primary.ask("SELECT name, id FROM document")) == set(fleet.ids.items())
    assert_books_agree(fleet)


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


@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])
def test_worker_that_is_left_behind_on_the_old_primary(
    servers: Replication, address: Proxy, fleet: Fleet, synchronous: bool
) -> None:
    """The old primary lives and one worker still writes to it; then it is fenced and the worker reaches the new one.

    If commits wait for a standby, the old primary acknowledges nothing: it has none. Otherwise it goes on and all that
    it acknowledges is lost. In the history that is left everything happened once, in both cases.
    """
    with seeded() as rng, Proxy(servers.primary.url, {}) as stale:
        flow = Flow(fleet, rng, open_max=OPEN_MAX)
        workers = at_work(fleet, flow, address.url, stale.url)
        children = [worker.child for worker in workers]
        servers.attach(synchronous=synchronous)
        old = servers.primary
        flow.feed_for(1)
        servers.promote()
        address.point_to(servers.primary.url)
        seen = set(old.ask("SELECT * FROM effect"))
        while_feeding(flow, lambda: fleet.wait(lambda: _quiet(old), "the worker to have nothing more to do"))
        acknowledged = set(old.ask("SELECT * FROM effect")) - seen
        old.stop("kill")
        stale.point_to(servers.primary.url)
        flow.feed_for(1)
        rest_s = flow.wait_until_over(within_s=REST_S)
        fleet.wait(lambda: _works_again(fleet, flow, workers[1]), "the worker to be back", look_s=0.2)
        flow.wait_until_over(within_s=REST_S)

        assert bool(acknowledged) is not synchronous
        assert_arrived(fleet)
        assert_books_agree(fleet)
        assert [worker.child for worker in workers] == children, "nobody had to be restarted"
        print(
            f"{flow.taken} documents, {len(acknowledged)} stages on the old primary alone, rest {rest_s:.1f} s"
        )


def _quiet(node: Node) -> bool:
    """Whether every commit waits for a standby, or no document is running any more."""
    running = "SELECT count(*) FROM job WHERE state IN ('running', 'queued')"
    return bool(node.ask(WAITING)) or node.ask(running) == [(0,)]


def _works_again(fleet: Fleet, flow: Flow, worker: WorkerProcess) -> bool:
    """Whether it has begun a stage of a document that was added after the failover."""
    flow.feed_for(0)
    young = set(list(fleet.ids)[-OPEN_MAX // 2 :])
    return any(line.worker == worker.number and line.document in young for line in fleet.starts())


def _ended_since(fleet: Fleet, before: set[str]) -> int:
    return len({line.run for line in fleet.ledger if line.event == "end"} - before)


def _answers(fleet: Fleet) -> bool:
    try:
        fleet.tally()
    except StoreUnavailable:
        return False
    return True
