"""The link to PostgreSQL breaks around COMMIT, or goes silent: nothing is lost, nothing is applied twice.

A lost reply leaves the client in doubt about a transaction that is durable; a link that was cut leaves it in the same
doubt about one that is not. Both are made by a proxy, at each step of a document, under load.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import Perdure
from perdure.store.operations import Added
from tests.faults.proxied import ALL, LEASE_S, ParcelFleet, add_until, points
from tests.faults.proxy import Broken, Fault, Proxy

CONCURRENCY = 8
SHORT, LONG = 20, 500
drops = pytest.mark.parametrize(
    "drops", [SHORT, pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])]
)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url, points()) as made:
        yield made


@pytest.fixture
def fleet(postgres_url: str, tmp_path: Path) -> Iterator[ParcelFleet]:
    """Looks at the store directly; its workers are told where to connect."""
    made = ParcelFleet(postgres_url, tmp_path)
    with made:
        yield made


def arm(proxy: Proxy, point: str, drops: int) -> None:
    """Lost, cut and in good order by turns, so that a flush may meet both and one that is repeated may pass.

    Of the answers that are read back, every fourth is lost.
    """
    lost = Fault.LOST
    proxy.broken.clear()
    proxy.arm(point, [lost, None, Fault.CUT, lost, None, lost, lost] * (drops // 4))
    proxy.arm("resolve", [None, None, None, lost] * drops)


def enough(proxy: Proxy, point: str, drops: int) -> bool:
    """Whether all that was planned for this point has happened."""
    return (len(proxy.made(point, Fault.LOST)), len(proxy.made(point, Fault.CUT))) == (drops, drops // 4)


def check_faults(proxy: Proxy, point: str, drops: int) -> None:
    """As many as were planned, of transactions with several documents and of those with a stage's own statement."""
    lost, cut, again = (
        proxy.made(point, Fault.LOST), proxy.made(point, Fault.CUT), proxy.made("resolve", Fault.LOST),
    )  # fmt: skip
    several = [broken for broken in lost if broken.rows[point] > 1]
    effects = [broken for broken in lost if "effect" in broken.rows]
    print(
        f"{point}: {len(lost)} replies lost ({len(several)} of several documents, {len(effects)} with a stage's own "
        f"statement), {len(again)} lost again, {len(cut)} cut"
    )
    assert enough(proxy, point, drops)
    assert len(again) >= drops // 4
    assert len(several) >= drops // 20
    assert len(effects) >= drops // 20 or point in ("enqueue", "claim")


# --- the proxy does what it says -----------------------------------------------------------------------


async def by_block(connection: Any) -> None:
    async with connection.transaction():
        await connection.execute("INSERT INTO noted VALUES ($1)", 1)


async def by_words(connection: Any) -> None:
    await connection.execute("START TRANSACTION")
    await connection.execute("INSERT INTO noted VALUES ($1)", 1)
    await (await connection.prepare("  end")).fetch()


async def by_itself(connection: Any) -> None:
    await connection.execute("INSERT INTO noted VALUES ($1)", 1)


async def in_one_message(connection: Any) -> None:
    await connection.execute("BEGIN; INSERT INTO noted VALUES (1); COMMIT")


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CUT])
def test_a_commit_is_recognised_however_it_is_spelled(postgres_url: str, fault: Fault) -> None:
    """A lost one is in the database, one that was cut is not, and the client gets an error in both cases."""

    async def use(commit: Callable[[Any], Awaitable[None]]) -> None:
        direct, client = await asyncpg.connect(postgres_url), await asyncpg.connect(between.url)
        await direct.execute("DROP TABLE IF EXISTS noted; CREATE TABLE noted (number int)")
        await client.execute("UPDATE noted SET number = 1")  # no row, no point
        between.arm("note", [None, fault])
        await commit(client)
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InternalClientError)):
            await commit(client)
        assert await direct.fetchval("SELECT count(*) FROM noted") == (2 if fault is Fault.LOST else 1)
        await direct.close()

    with Proxy(postgres_url, {"note": "INSERT INTO noted", "change": "UPDATE noted"}) as between:
        between.arm("change", [Fault.LOST])
        spellings = (by_block, by_words, by_itself, in_one_message)
        for commit in spellings:
            asyncio.run(use(commit))
        assert between.broken == [Broken(fault, {"note": 1})] * len(spellings)


# --- lost replies ----------------------------------------------------------------------------------------


@drops
def test_enqueue(proxy: Proxy, fleet: ParcelFleet, drops: int) -> None:
    """Whoever adds is told the truth: `added` once per document, the same id to all who handed it in."""

    async def use() -> dict[str, list[Added]]:
        async with Perdure(proxy.url, pipelines=ALL) as adding:
            arm(proxy, "enqueue", drops)
            return await add_until(adding, lambda: enough(proxy, "enqueue", drops))

    answers = asyncio.run(use())
    for identity, told in answers.items():
        known = [a.answer for a in told if a.answer != "added"]
        assert len(known) == len(told) - 1, identity
        assert set(known) <= {"exists", "unchanged", "refreshed"}, identity
        assert len({a.id for a in told}) == 1, identity
    ids = sorted(told[0].id for told in answers.values())
    assert sorted(row[0] for row in fleet.look("SELECT id FROM document")) == ids
    jobs = fleet.look("SELECT state, claims, count(*), count(DISTINCT document_id) FROM job GROUP BY 1, 2")
    assert jobs == [("queued", 0, len(ids), len(ids))]
    check_faults(proxy, "enqueue", drops)


@drops
def test_work(proxy: Proxy, fleet: ParcelFleet, drops: int) -> None:
    """Every claim is in somebody's hand, no stage runs again, every effect is there once, each parcel ends once.

    What a lost reply had left in nobody's hand would wait for its lease to end and be claimed twice.
    """

    def loaded(point: str) -> bool:
        """The worker has enough to do until all has happened that was planned."""
        if fleet.left < 2 * CONCURRENCY:
            fleet.post(CONCURRENCY)
        return enough(proxy, point, drops)

    worker = fleet.begin(CONCURRENCY, proxy.url)
    child = worker.child
    for point in ("claim", "save", "finish"):
        arm(proxy, point, drops)
        fleet.wait(partial(loaded, point), f"{drops} faults at {point}", within_s=90 + drops, look_s=0.1)
        fleet.wait(lambda: not fleet.left, "every job to end", look_s=0.1)
        fleet.check_parcels()
        check_faults(proxy, point, drops)
    assert worker.child == child, "nobody had to be restarted"
    assert worker.stop() == 0


# --- silence ---------------------------------------------------------------------------------------------


def test_blackhole(proxy: Proxy, fleet: ParcelFleet) -> None:
    """A worker that is cut off gives up before its leases end; what it tried to write meanwhile is refused later."""
    other, silent = fleet.begin(CONCURRENCY), fleet.begin(CONCURRENCY, proxy.url)
    child = silent.child
    gates = fleet.lend(2 * CONCURRENCY)
    fleet.wait(lambda: all(fleet.reached(name, gate) for name, gate in gates.items()), "every gate")
    ours = [x.document for x in fleet.ledger if x.pid == child and x.event == gates[x.document]]
    late = [next(name for name in ours if gates[name] == gate) for gate in ("lend", "bring")]
    held = [name for name in ours if name not in late]

    proxy.silence()
    ends_s = fleet.leases()
    for name in set(gates) - set(held):
        fleet.open(name, gates[name])  # late ones end their stage and are saved into the void
    fleet.wait(lambda: len(fleet.abandoned()) == len(held), "what is in hand to be abandoned", 2 * LEASE_S)
    given_up = fleet.abandoned()
    for name in held:
        fleet.open(name, gates[name])
    fleet.wait_until_ended()
    stands = sorted(fleet.effects())
    assert fleet.tally().fenced == 0
    proxy.heal()
    fleet.wait(lambda: fleet.tally().fenced == len(late), "the late writes to be refused")

    spare_s = min(ends_s[name] - at_s for name, at_s in given_up.items())
    print(f"given up {spare_s:.2f} s before the lease was over")
    assert spare_s > 0
    assert set(given_up) == set(held) != set()
    assert sorted(fleet.effects()) == stands
    assert [(name, stage) for name, stage, _ in stands] == sorted(itertools.product(gates, ("lend", "bring")))
    statuses = fleet.statuses()
    assert {(s.state, s.attempts_made) for s in statuses.values()} == {("done", 1)}
    assert {name for name, s in statuses.items() if s.claims == 2} == set(ours)

    # the link is back, and so is the worker
    assert other.stop() == 0
    fleet.add("loans", {"afterwards": ""})
    fleet.wait_until_ended()
    assert {line.pid for line in fleet.starts("afterwards")} == {child}
    assert fleet.tally().fenced == len(late)


def test_a_claim_that_is_heard_of_too_late(proxy: Proxy, fleet: ParcelFleet) -> None:
    """When the news arrives the lease is over and others had the documents: the worker does not even begin."""
    other, silent = fleet.begin(CONCURRENCY), fleet.begin(CONCURRENCY, proxy.url)
    child = silent.child
    proxy.arm("claim", [Fault.SILENT])
    gates = fleet.lend(2 * CONCURRENCY)
    fleet.wait(lambda: proxy.made("claim", Fault.SILENT), "the claim whose reply is held back")
    for name, gate in gates.items():
        fleet.open(name, gate)
    fleet.wait_until_ended()
    proxy.heal()
    assert other.stop() == 0
    fleet.add("loans", {"afterwards": ""})
    fleet.wait_until_ended()

    assert {line.pid for line in fleet.starts("afterwards")} == {child}
    assert {line.document for line in fleet.starts() if line.pid == child} == {"afterwards"}
    assert [s.claims for s in fleet.statuses().values()].count(2) == proxy.broken[0].rows["claim"]


@pytest.mark.long
def test_slow_link(proxy: Proxy, fleet: ParcelFleet) -> None:
    """A fifth of a second for every round trip makes work slow and nothing else."""
    fleet.begin(CONCURRENCY, proxy.url)
    proxy.latency_s = 0.2
    fleet.post(10)
    fleet.wait(lambda: not fleet.left, "every job to end", within_s=100, look_s=0.1)
    fleet.check_parcels()
