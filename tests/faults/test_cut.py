"""Links to PostgreSQL that break for seconds, as in a failover: workers that live keep their documents."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet
from tests.faults.process import WorkerProcess
from tests.faults.proxy import Proxy
from tests.faults.stages import STORE_VARIABLE

pytestmark = pytest.mark.full

NAMES = [f"d{number}" for number in range(10)]
CUT_S = 2.0
#: An observer whose own link broke believes nobody dead for so long.
BELIEVES_S = 10.0
GATE = "fetch:half"
DUE_S, NEGLECT_S, SWEEP_S, MARGIN_S = 1.0, 3, 1, 6


@pytest.fixture
def fleet(postgres_store_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Looks at the store directly; its workers connect through proxies."""
    with Fleet(postgres_store_url, tmp_path) as made:
        yield made


@pytest.fixture
def proxies(postgres_store_url: str) -> Iterator[tuple[Proxy, Proxy]]:
    """A link for each of two workers."""
    with Proxy(postgres_store_url, {}) as first, Proxy(postgres_store_url, {}) as second:
        yield first, second


def test_a_link_that_comes_back_later_than_the_others(fleet: Fleet, proxies: tuple[Proxy, Proxy]) -> None:
    """Both links break; the first worker is back while the second one, with ten documents in hand, is not."""
    first, second = proxies
    holder = _start_with_documents(fleet, second)
    other = _start(fleet, first)

    ids, children = [holder.id, other.id], [holder.child, other.child]
    for link in proxies:
        link.cut()
    time.sleep(CUT_S)
    first.heal()
    fleet.wait(lambda: ids[1] not in _missing(fleet, ids), "the other worker to be back")
    time.sleep(CUT_S)
    second.heal()
    fleet.wait(lambda: not _missing(fleet, ids), "the holder to be back")

    for name in NAMES:
        fleet.open(name, GATE)
    fleet.wait_until_ended()
    assert {(s.state, s.claims) for s in fleet.statuses().values()} == {("done", 1)}
    assert fleet.tally().fenced == 0
    assert [holder.child, other.child] == children, "no process had to be started again"


def test_a_worker_that_is_killed_while_links_are_cut(fleet: Fleet, proxies: tuple[Proxy, Proxy]) -> None:
    """Nobody can tell it from one that is cut off, until those have had the time to come back."""
    first, second = proxies
    holder = _start_with_documents(fleet, second)
    _start(fleet, first)

    for link in proxies:
        link.cut()
    holder.kill()
    for name in NAMES:
        fleet.open(name, GATE)
    time.sleep(CUT_S)
    first.heal()
    took_s = fleet.wait(lambda: _fetched(fleet) == 2 * len(NAMES), "the documents to run again")
    print(f"run again {took_s:.1f} s after the link was back")
    assert took_s < BELIEVES_S + 8  # well before their leases expire
    fleet.wait_until_ended()
    assert {s.state for s in fleet.statuses().values()} == {"done"}


def test_a_leader_behind_a_link_that_went_silent(fleet: Fleet, proxies: tuple[Proxy, Proxy]) -> None:
    """It keeps the lock of the leader, so another worker notices that due documents are neglected and sweeps."""
    first, second = proxies
    _start(fleet, first)
    fleet.wait(lambda: fleet.ask(fleet.app.store.driver.locked("leader", [0])), "the first worker to lead")
    _start(fleet, second)
    first.silence()
    added = fleet.ask(fleet.app.add(text="text", name="due", dedupe=False, delay_s=DUE_S, pipeline="steps"))
    fleet.ids["due"] = added.id
    took_s = fleet.wait(lambda: fleet.starts("due"), "the document to run")
    print(f"ran {took_s - DUE_S:.1f} s after it was due")
    assert took_s < DUE_S + NEGLECT_S + SWEEP_S + MARGIN_S
    assert fleet.ask(fleet.app.store.driver.locked("leader", [0])), "the lock is still held"


def _start_with_documents(fleet: Fleet, link: Proxy) -> WorkerProcess:
    """A worker behind this link that has every document in hand."""
    for name in NAMES:
        fleet.shut(name, GATE)
    fleet.add("steps", dict.fromkeys(NAMES, "text"))
    worker = _start(fleet, link)
    fleet.wait(lambda: all(fleet.reached(name, GATE) for name in NAMES), "all documents to be in hand")
    return worker


def _start(fleet: Fleet, link: Proxy) -> WorkerProcess:
    """A worker behind this link, at work."""
    worker = fleet.start("five", concurrency=20, ready=True, module="perdure", **{STORE_VARIABLE: link.url})

    def beats() -> bool:
        found = next(w for w in fleet.ask(fleet.app.store.workers()) if w.id == worker.id)
        return found.beat_ms > found.started_ms

    fleet.wait(beats, "the worker to be at work")
    return worker


def _missing(fleet: Fleet, ids: list[int]) -> set[int]:
    return fleet.ask(fleet.app.store.missing(ids))


def _fetched(fleet: Fleet) -> int:
    return sum(line.stage == "fetch" for line in fleet.starts())
