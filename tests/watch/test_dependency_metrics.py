"""Services as metrics show them: the words of `perdure dependencies`, whichever worker is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure.calls.dependency import Dependency
from perdure.calls.fleet import Fleet
from perdure.core.events import Events
from perdure.core.pace import Pace
from perdure.store.base import BREAKER, Query
from perdure.store.operations import Report
from perdure.store.sql_store import SqlStore
from perdure.watch import meter
from perdure.watch.board import Board, Key
from perdure.watch.meter import Meter
from perdure.watch.metrics import BREAKER_STATES, DEPENDENCY_STATES, LABEL_VALUES_MAX, OTHER
from perdure.watch.overall import Overall
from tests.calls.making import World
from tests.store.making import World as StoreWorld

STATE, BREAKERS = "perdure_dependency_state", "perdure_dependency_breaker_state"


class Worker:
    """A process with a fleet and a meter of its own."""

    def __init__(self, store: SqlStore, number: int, world: World) -> None:
        self.service = Dependency("service")
        self.fleet = Fleet(store, number, {"service": self.service}, world.timing)
        self.world = world

    async def exchange(self) -> None:
        self.world.now_s += 1.0
        await self.fleet.exchange()

    def answered(self, good: int, bad: int) -> None:
        for number in range(good + bad):
            now_s = self.world.timing.clock()
            self.service.requests += 1
            if number < bad:
                self.service.missed(now_s)
                self.service.breaker.failed(now_s)
            else:
                self.service.answered(now_s)

    def shown(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """The state of the breaker as this process would be scraped."""
        board = Board.private()
        monkeypatch.setattr(meter, "DEPENDENCIES", {"service": self.service})
        counted = Meter(board, Events())
        counted.sample()
        counted.close()
        return BREAKER_STATES[int(board.read()["perdure_breaker_state", "service"])]


async def scraped(store: SqlStore) -> dict[Key, float]:
    return await Overall(store, Board.private()).read()


def with_label(found: dict[Key, float], name: str, service: str) -> dict[str, float]:
    return {key[2]: value for key, value in found.items() if key[:2] == (name, service)}


@pytest.fixture
def world() -> World:
    return World()


def test_each_state_begins_at_0_and_the_present_one_is_1(store_url: str) -> None:
    async def run() -> None:
        async with StoreWorld(store_url) as world:
            store, now_ms = world.store, world.clock.now_ms()
            await store.exchange("calm", Report(1, 5, 5, 0, 0, 0.0, 0.0, 5.0, in_flight=2, standing=True))
            await store.exchange("calm", Report(2, 3, 3, 0, 0, 4.0, 0.0, 3.0, in_flight=1, standing=True))
            await store.exchange("asked", Report(1, 3, 0, 0, 3, 0.0, 0.0, 3.0, pause_ms=90_000))
            await store.hold("away", "http_503", BREAKER)
            pressed = Pace("pressed", now_ms, 1.0, 5.0, 9.0, good=2.0, counted_ms=now_ms)
            await store._change(Query(store.sql.DEPENDENCY_ADD, ("busy", now_ms)))
            told = ("busy", 10.0, None, 0, now_ms, pressed.to_text())
            await store._change(Query(store.sql.DEPENDENCY_TOLD, told))
            found = await scraped(store)

        present = {"calm": "up", "asked": "paused", "away": "down", "busy": "pressed"}
        for service, word in present.items():
            expected = dict.fromkeys(DEPENDENCY_STATES, 0.0) | {word: 1.0}
            assert with_label(found, STATE, service) == expected
        numbers = {
            "perdure_dependency_rate_per_second": {"calm": 8.0, "asked": 3.0, "busy": 0.0},
            "perdure_dependency_limit_per_second": {"calm": 0.0, "busy": 5.0},
            "perdure_dependency_requests_in_flight": {"calm": 3.0, "busy": 0.0},
            "perdure_dependency_tokens": {"calm": 8.0, "busy": 10.0},
            "perdure_dependency_paused_seconds": {"calm": 0.0, "asked": 90.0},
            BREAKERS: {"calm": 0.0, "asked": 0.0, "away": 2.0},
        }
        for name, services in numbers.items():
            assert {service: found[name, service] for service in services} == services, name

    asyncio.run(run())


def test_services_beyond_a_bound_are_shown_as_one(store_url: str) -> None:
    async def run() -> None:
        async with StoreWorld(store_url) as world:
            for number in range(LABEL_VALUES_MAX + 2):
                await world.store.exchange(f"s{number:03}", Report(1, 1, 1, 0, 0, 0.0, 0.0, 1.0))
            found = await scraped(world.store)
        names = {key[1] for key in found if key[0] == STATE}
        assert len(names) == LABEL_VALUES_MAX + 1
        assert found["perdure_dependency_rate_per_second", OTHER] == 2.0
        assert with_label(found, STATE, OTHER)["up"] == 1.0

    asyncio.run(run())


@pytest.mark.parametrize("by", [BREAKER, "ann"])
def test_a_worker_that_only_heard_of_a_hold_shows_what_the_record_says(
    store_url: str, world: World, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    async def run() -> None:
        async with StoreWorld(store_url) as stored:
            store = stored.store
            workers = [Worker(store, number, world) for number in (1, 2)]
            ramping = "half_open" if by == BREAKER else "open"
            changes: tuple[tuple[Callable[[], Awaitable[None]], str], ...] = (
                (lambda: store.hold("service", "http_503", by), "open"),
                (lambda: store.probed("service", True), ramping),
                (lambda: store.release("service", "ann"), "closed"),
            )
            for change, word in changes:
                await change()
                for worker in workers:
                    worker.answered(1, 0)
                    await worker.exchange()
                (record,) = await store.dependencies()
                assert [worker.shown(monkeypatch) for worker in workers] == [word, word]
                assert record.breaker == word
                assert (await scraped(store))[BREAKERS, "service"] == BREAKER_STATES.index(record.breaker)

    asyncio.run(run())


def test_a_breaker_that_looks_is_half_open_at_every_door(
    store_url: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with StoreWorld(store_url) as stored:
            store = stored.store
            one, two = (Worker(store, number, world) for number in (1, 2))
            words: list[set[str]] = []
            reasons: list[str | None] = []
            for _ in range(20):
                one.answered(2, 8)  # four of five fail
                two.answered(1, 0)
                await one.exchange()
                await two.exchange()
                stored.clock.turn(1_000)
                (record,) = await store.dependencies()
                reasons.append(record.reason)
                words.append({record.breaker, one.shown(monkeypatch), two.shown(monkeypatch)})
            assert all(len(shown) == 1 for shown in words[2:]), words
            assert words[-1] == {"half_open"}
            assert reasons[-1] is not None

    asyncio.run(run())


def test_requests_that_take_long_stay_in_flight_until_they_are_back(store_url: str, world: World) -> None:
    async def run() -> None:
        async with StoreWorld(store_url) as stored:
            one, two = (Worker(stored.store, number, world) for number in (1, 2))
            one.service.flying, two.service.flying = {1, 2, 3}, {4, 5}
            seen = []
            for _ in range(30):
                await one.exchange()
                await two.exchange()
                stored.clock.turn(2_000)
                seen.append((await stored.store.dependencies())[0].in_flight)
            assert set(seen) == {5}
            one.service.flying.clear()
            await one.exchange()
            assert (await stored.store.dependencies())[0].in_flight == 2
            stored.clock.turn(60_000)  # the other worker is not heard of any more
            assert (await stored.store.dependencies())[0].in_flight == 0

    asyncio.run(run())
