"""What workers tell each other about a service, and what is kept of calls."""

from __future__ import annotations

import asyncio

import pytest

from perdure.core.frozen import frozen
from perdure.store.base import BREAKER
from perdure.store.operations import Report
from perdure.store.records import DependencyRecord, Kpi, Shared
from tests.store.making import QUEUE, START_MS, World, document


def report(worker: int = 1, requests: int = 1, **more: float | None) -> Report:
    given = {"spent": 0.0, "earned": 0.0, "rate": None, **more}
    return Report(worker, requests, requests, 0, 0, **given)  # type: ignore[arg-type]


async def nominal(world: World) -> float | None:
    (found,) = await world.store.dependencies()
    return found.nominal_per_s


async def test_tokens_are_the_fleets(world: World) -> None:
    assert await world.store.exchange("openai", report(1, spent=4.0)) == Shared(False, None, 6.0, None, 1)
    assert (await world.store.exchange("openai", report(2, spent=9.0))).tokens == 1.5  # it was one of two
    assert (await world.store.exchange("openai", report(1, earned=2.5))).tokens == 2.75
    assert (await world.store.exchange("openai", report(1, spent=99))).tokens == 0.0
    assert (await world.store.exchange("openai", report(1, earned=99))).tokens == 10.0


async def test_nothing_that_is_told_at_the_same_time_is_lost(world: World) -> None:
    other = await world.another()
    stores = (world.store, other) * 10
    await asyncio.gather(*(s.exchange("openai", report(n, spent=0.25)) for n, s in enumerate(stores)))
    shared = await world.store.exchange("openai", report(0))
    assert shared.workers == 20
    assert shared.tokens == pytest.approx(10 - sum(0.25 / workers for workers in range(1, 21)))


async def test_who_was_not_heard_of_for_a_while_does_not_count(world: World) -> None:
    await world.store.exchange("openai", report(1, rate=8.0))
    world.clock.turn(3_000)
    shared = await world.store.exchange("openai", report(2, rate=2.0))
    assert (shared.rate, shared.workers) == (None, 2)
    world.clock.turn(3_000)
    shared = await world.store.exchange("openai", report(3))
    assert (shared.rate, shared.workers) == (None, 2)


async def test_one_that_has_nothing_to_tell_hears_the_same_and_writes_nothing(world: World) -> None:
    nothing = Report(9, 0, 0, 0, 0, 0.0, 0.0, None)
    assert await world.store.exchange("openai", nothing) == Shared(False, None, 10.0, None, 0)
    assert await world.table("dependency") == []
    told = await world.store.exchange("openai", report(1, rate=2.0, spent=1.0))
    assert await world.store.exchange("openai", nothing) == told
    await world.store.hold("openai", "503", BREAKER)
    heard = await world.store.exchange("openai", nothing)
    assert (heard.down, heard.reason) == (True, "503")


async def test_what_is_usual_is_counted_over_all_workers_and_only_while_it_is_up(world: World) -> None:
    for _ in range(400):
        world.clock.turn(500)
        await world.store.exchange("openai", report(1, 10))
        await world.store.exchange("openai", report(2, 5))
    assert await nominal(world) == pytest.approx(30, abs=1)
    await world.store.hold("openai", "503", BREAKER)
    for _ in range(20):
        world.clock.turn(1_000)
        await world.store.exchange("openai", report(1, 1_000))
    assert await nominal(world) == pytest.approx(30, abs=1)


async def test_runs_are_what_is_usual_where_they_are_told(world: World) -> None:
    for _ in range(3):
        world.clock.turn(1_000)
        await world.store.exchange("openai", report(1, 500, runs=10))
    assert await nominal(world) == pytest.approx(10)


async def test_dependencies_tell_who_holds_what_and_how_many_wait(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr", "ocr+openai", "mail"])
    await world.add(document(lane="ocr"), document(lane="ocr+openai"), document(lane="mail"), document())
    await world.store.hold("ocr", "503", BREAKER)
    world.clock.turn(1_000)
    await world.store.hold("mail", "maintenance", "ann")
    assert await world.store.dependencies() == [
        DependencyRecord("mail", "down", START_MS + 1_000, "maintenance", "ann", 1, breaker="open"),
        DependencyRecord(
            "ocr", "down", START_MS, "503", BREAKER, 2, START_MS + 4_000, success_share=0.0, breaker="open"
        ),
        DependencyRecord("openai"),
    ]
    await world.store.probed("ocr", True)
    await world.store.release("mail", "ann")
    mail, ocr, _ = await world.store.dependencies()
    assert mail == DependencyRecord("mail")
    assert (ocr.state, ocr.ramp_per_s, ocr.probe_at_ms, ocr.held) == ("ramping", 1.0, None, 2)


@frozen
class Operation:
    """One call, as it is recorded."""

    retries: int = 0
    success: bool = True
    added_ms: int = 0
    at_ms: int = START_MS
    name: str = "openai"


async def record(world: World, *operations: Operation) -> None:
    await world.store.record_calls(
        [(o.name, o.retries, o.success, 100 + o.added_ms, o.at_ms, o.added_ms) for o in operations]
    )


async def test_kpis_are_counted_by_service(world: World) -> None:
    await record(world, *[Operation()] * 60, *[Operation(success=False)] * 2)
    await record(world, *(Operation(2, n >= 10, n * 100) for n in range(38)))
    await record(world, Operation(name="ocr"), Operation(name="ocr", at_ms=START_MS - 1))
    await world.store.record_calls([])
    assert await world.store.kpis(START_MS) == [
        Kpi("ocr", 1, 0.0, None, None, None, 0.0),
        Kpi("openai", 100, 0.38, 28 / 38, 2.0, 3_600, 0.12),
    ]


async def test_old_operations_are_forgotten_a_batch_at_a_time(world: World) -> None:
    await record(world, *[Operation(at_ms=START_MS - 10_000)] * 5, *[Operation()] * 3)
    await world.store.exchange("openai", report(1))
    world.clock.turn(120_000)
    assert await world.store.forget_calls(125_000, 3) == 3
    assert await world.store.forget_calls(125_000, 3) == 2
    assert await world.store.forget_calls(125_000, 3) == 0
    assert (await world.store.kpis(0))[0].operations == 3
    assert await world.table("dependency_worker") == []
