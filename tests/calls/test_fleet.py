"""What processes tell each other about a service, through a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from perdure.calls.dependency import Dependency
from perdure.calls.fleet import Fleet
from perdure.calls.policy import Policy
from perdure.core.pace import Pace
from perdure.errors import DependencyDown, RateLimited, StoreUnavailable
from perdure.store.base import Query, Steps
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
            except (HttpError, RateLimited):
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
        one.ask(Script(HttpError(503)))
        await one.fleet.exchange()
        two.ask(Script(HttpError(503)))
        await two.fleet.exchange()

        assert two.service.budget.tokens < 8.1  # what one spent, the others have less of

    played(store_url, play)


def test_the_rate_of_the_fleet_is_shared_by_those_that_ask(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        pressed = Pace("pressed", 5, rate=20.0, usual_per_s=90.0, first_ms=await store.now_ms())
        for process in (one, two):
            process.ask(Script("fine"))
            await process.fleet.exchange()
        await write_pace(store, pressed)
        for process in (one, two, one):
            process.ask(Script(HttpError(503)))
            await process.fleet.exchange()

        assert (one.service.limiter.rate, two.service.limiter.rate) == (10.0, 10.0)
        assert one.service.budget.unmetered
        assert one.service.budget.spend(99.0)

    played(store_url, play)


def test_a_pause_that_one_was_asked_for_binds_the_others_for_as_long(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        one.ask(Script(HttpError(429, {"retry-after": "90"})), 3)
        await one.fleet.exchange()
        two.ask(Script(HttpError(503)))
        await two.fleet.exchange()

        now_s = two.fleet.timing.clock()
        assert 80 < two.service.limiter.pause_s(now_s) <= 90
        (known,) = await store.dependencies()
        assert (known.paused_until_ms or 0) > await store.now_ms()
        assert known.reason == "it refuses all requests and asked to wait"

    played(store_url, play)


def test_one_call_that_is_to_wait_stops_nobody_else(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        for _ in range(5):
            one.ask(Script(HttpError(429, {"retry-after": "90"})), 2)
            one.ask(Script("fine"))
        await one.fleet.exchange()

        assert one.service.limiter.pause_s(one.fleet.timing.clock()) == 0
        assert one.policy.call(Script("fine")) == "fine"

    played(store_url, play)


def test_an_outage_that_no_worker_alone_can_tell_is_found_by_the_fleet(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        for process in (one, two) * 6:
            process.ask(Script(HttpError(503)))
            await process.fleet.exchange()
        assert not one.service.breaker.troubled  # so far it may be a burst
        await write_pace(store, Pace("free", bad=0.5, row=12, row_ms=await store.now_ms() - 3_000))
        for process in (one, two):
            process.ask(Script(HttpError(503)))
            await process.fleet.exchange()

        assert one.service.breaker.state == two.service.breaker.state == "open"

    played(store_url, play)


async def write_pace(store: SqlStore, pace: Pace) -> None:
    await store._write(lambda: _write_pace(pace))


def _write_pace(pace: Pace) -> Steps[None]:
    yield Query("UPDATE dependency SET pace = $1", (pace.to_text(),))


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


def test_a_pause_is_known_to_a_worker_that_makes_no_calls_and_outlasts_a_hold(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        one.ask(Script(HttpError(429, {"retry-after": "90"})), 3)
        await one.fleet.exchange()
        await store.hold("service", "away", by="breaker")
        one.ask(Script("fine"))
        await one.fleet.exchange()
        assert one.service.held is not None
        await two.fleet.exchange()  # it has called nobody yet

        now_s = two.fleet.timing.clock()
        assert two.service.held is not None
        assert 80 < two.service.limiter.pause_s(now_s) <= 90

    played(store_url, play)


def test_a_worker_that_makes_no_calls_asks_every_few_seconds(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        await two.fleet.exchange()
        await store.hold("service", "maintenance", by="ada")
        await two.fleet.exchange()
        assert two.service.held is None
        two.fleet.timing.sleep(5.0)
        await two.fleet.exchange()
        assert two.service.held == "maintenance"

    played(store_url, play)


def test_a_pause_does_not_grow_by_being_told(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        one.ask(Script(HttpError(429, {"retry-after": "90"})), 3)
        await one.fleet.exchange()
        (known,) = await store.dependencies()
        for process in (one, two) * 3:
            process.service.failures += 1  # something to tell
            store.clock.turn(50)  # type: ignore[attr-defined]  # a round trip, in which the calls' clock stands still
            await process.fleet.exchange()
        (later,) = await store.dependencies()
        assert later.paused_until_ms == known.paused_until_ms

    played(store_url, play)


def test_after_the_fleet_a_process_decides_alone(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        await store.hold("service", "maintenance", by="ada")
        running = asyncio.create_task(one.fleet.run())
        async with asyncio.timeout(10):
            while one.service.held is None:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert one.policy.call(Script("fine")) == "fine"
        state = one.service
        assert not (state.limiter.led)
        assert not (state.breaker.led)
        assert not (state.budget.unmetered)
        assert not (state.held)
        assert state.limiter.rate is None

    played(store_url, play)


def test_without_a_store_retries_are_paid_for_again(store_url: str) -> None:
    async def play(store: SqlStore, one: Process, two: Process) -> None:
        one.ask(Script("fine"))
        one.service.budget.unmetered = one.service.limiter.led = True

        async def away(name: str, report: object) -> None:
            raise StoreUnavailable("it is away")

        one.fleet.store = SimpleNamespace(exchange=away, record_calls=away)  # type: ignore[assignment]
        one.service.rows = None
        await one.fleet.exchange()
        assert not one.service.budget.unmetered

    played(store_url, play)
