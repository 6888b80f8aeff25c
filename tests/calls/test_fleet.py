"""What processes tell each other about a service, through a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure.calls.dependency import Dependency
from perdure.calls.fleet import Fleet
from perdure.calls.policy import Policy
from perdure.errors import DependencyDown
from perdure.store.sql_store import SqlStore
from tests.calls.making import HttpError, Script, World, at_work
from tests.store.making import World as StoreWorld


class Process:
    """One of several that call the same service."""

    def __init__(self, store: SqlStore, number: int, world: World) -> None:
        self.service = Dependency("service")
        self.policy = world.policy(dependency=self.service, on_exhausted="raise", retries=0)
        self.fleet = Fleet(store, number, {"service": self.service}, world.timing)

    def ask(self, script: Script, times: int = 1) -> None:
        for _ in range(times):
            try:
                self.policy.call(script)
            except HttpError:
                continue


def played(url: str, play: Callable[[SqlStore, Process, Process], Awaitable[None]]) -> None:
    async def run() -> None:
        async with StoreWorld(url) as world:
            calm = World()
            workers = [await world.store.register("worker", str(n), ("q",)) for n in range(2)]
            one, two = (Process(world.store, worker, calm) for worker in workers)
            await play(world.store, one, two)

    asyncio.run(run())


def test_a_hold_reaches_every_process_and_so_does_its_end(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        two.ask(Script("fine"))
        await store.hold("service", "maintenance", by="ada")
        await two.fleet.exchange()
        with pytest.raises(DependencyDown, match="maintenance"):
            two.policy.call(Script("fine"))

        await store.release("service", by="ada")
        await two.fleet.exchange()
        assert two.policy.call(Script("fine")) == "fine"

    played(store_url, play)


def test_retries_are_paid_from_one_purse(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        for process in (one, two):
            process.ask(Script("fine"))
            await process.fleet.exchange()
        assert one.service.budget.spend(4.0)
        one.ask(Script("fine"))
        await one.fleet.exchange()
        two.ask(Script("fine"))
        await two.fleet.exchange()

        assert two.service.budget.tokens < 8.1  # what one spent, the others have less of

    played(store_url, play)


def test_what_one_was_throttled_to_binds_the_others(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        one.ask(Script(HttpError(429)), 2)
        assert one.service.limiter.rate is not None
        await one.fleet.exchange()
        assert two.service.limiter.rate is None
        two.ask(Script("fine"))
        await two.fleet.exchange()

        assert two.service.limiter.rate == one.service.limiter.rate

    played(store_url, play)


def test_every_operation_is_a_row(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        await one.fleet.exchange()  # from now on they are recorded
        patient: Policy = one.policy.but(retries=2)
        patient.call(Script(HttpError(503), "fine"))
        patient.call(Script("fine"))
        one.ask(Script(HttpError(401)))
        await one.fleet.exchange()

        (kpi,) = await store.kpis(0)
        assert (kpi.api_name, kpi.operations) == ("service", 3)
        assert kpi.retry_rate == pytest.approx(1 / 3)
        assert kpi.success_after_retry == 1.0
        assert kpi.failure_rate == pytest.approx(1 / 3)
        assert kpi.p95_added_ms == 1000  # what the policy waited

    played(store_url, play)


def test_nothing_is_written_while_nothing_happens(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        with at_work():
            one.ask(Script("fine"))
        await one.fleet.exchange()
        flushes = await store.dependencies()
        one.fleet.store = None  # type: ignore[assignment]  # a store that must not be asked
        await one.fleet.exchange()
        assert flushes == await store.dependencies()

    played(store_url, play)
