"""One seed from beginning to end: clients, workers, faults until half time, then everything must converge."""

from __future__ import annotations

import asyncio
import random
import secrets
import types
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

from perdure.core import token
from perdure.engine import keeper
from perdure.engine.intake import first_job
from perdure.errors import PerdureError, StoreBusy, StoreUnavailable
from perdure.store.operations import Cancel, NewDocument
from perdure.store.sql_store import SqlStore
from tests.sim.documents import CHARACTERS, books, process_now
from tests.sim.ledger import Violation, look
from tests.sim.loop import VirtualLoop
from tests.sim.world import LANES, QUEUES, Faults, Process, World, new_store, start_worker

HALF_S = 40.0
BOUND_S = 1_500.0  # far beyond lease + sweep + every backoff, in virtual time


@dataclass(frozen=True)
class Story:
    """What happened in a world."""

    seed: int
    documents: int
    processes: int
    seconds: float
    error: str | None = None


def simulate(seed: int) -> Story:
    """Play the seed; the violation, if there was one, is in the story."""
    rng = random.Random(seed)
    random.seed(seed)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(lambda *_: None)  # a killed process leaves its tasks where they are
    world = World(seed, rng, loop, faults=Faults.drawn(rng))
    time = types.SimpleNamespace(monotonic=loop.time, monotonic_ns=lambda: int(loop.time() * 1e9))

    def wall_ms() -> int:
        return int(loop.now_s * 1000) + rng.choice((0, 0, 5_000, -5_000))

    with (
        mock.patch.object(keeper, "time", time),
        mock.patch.object(token, "wall_ms", wall_ms),
        mock.patch.object(secrets, "randbits", rng.getrandbits),
    ):
        error = None
        try:
            loop.run_until_complete(_play(world))
        except Violation as violation:
            error = str(violation)
        finally:
            _end(world, loop)
    return Story(seed, len(world.ledger.acknowledged), len(world.processes), loop.now_s - 1_000.0, error)


async def _play(world: World) -> None:
    loop, rng = world.loop, world.rng
    client = Process(world, "client")
    client.start(lambda: _client(world, client))
    workers = [
        start_worker(world, f"worker-{n}", rng.choice((1, 2, 4))) for n in range(rng.choice((1, 2, 3)))
    ]
    nemesis = loop.create_task(_nemesis(world, workers))
    began_s = loop.now_s
    while loop.now_s - began_s < BOUND_S:
        await asyncio.sleep(1.0)
        _raise_violations(world)
        if nemesis.done() and _settled(world, client):
            break
    world.ledger.check_end(world.database)


def _raise_violations(world: World) -> None:
    if world.ledger.violation is not None:
        raise world.ledger.violation
    for process in world.processes:
        for task in process.tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, Violation):
                    raise error
                if process.alive:
                    raise Violation(f"{process.name} ended with {type(error).__name__}: {error}")


def _settled(world: World, client: Process) -> bool:
    unfinished = look(world.database, "SELECT count(*) FROM job WHERE finished_ms IS NULL")[0][0]
    return unfinished == 0 and (client.tasks[0].done() or not client.alive)


async def _client(world: World, process: Process) -> None:
    """Adds documents, and now and then cancels one; what was answered is acknowledged."""
    store = new_store(process)
    await _again(store.open)
    await _again(lambda: store.declare(QUEUES, LANES))
    job = first_job(books)
    for n in range(world.rng.randint(2, 6)):
        await process.pause(world.rng.random() * 6)
        character = world.rng.choice(CHARACTERS)
        org = world.rng.choice(("a", "b"))
        document = NewDocument(
            id=f"d{n}", org=org, job=job, name=character, content_hash=f"h{n}", size=1, inline=b"x"
        )
        with suppress(PerdureError):
            added = await store.add([document])
            world.ledger.acknowledged[added[0].id] = character
            if world.rng.random() < 0.1:
                await process.pause(world.rng.random() * 5)
                world.ledger.cancelled.add(document.id)
                await store.cancel(Cancel(document.org, document.id))


async def _again(call: Any) -> None:
    while True:
        with suppress(StoreBusy, StoreUnavailable):
            await call()
            return


async def _nemesis(world: World, workers: list[Process]) -> None:
    """Kills, starts again, sets the clock, takes the dependency down; at half time everything is mended."""
    rng, loop = world.rng, world.loop
    keeper_of_lanes = Process(world, "operator", immune=True)
    process_now.set(keeper_of_lanes)
    operator: SqlStore = new_store(keeper_of_lanes)
    killing = rng.choice((0.0, 0.1, 0.3))
    began_s = loop.now_s
    while loop.now_s - began_s < HALF_S:
        await asyncio.sleep(rng.random() * 2)
        if rng.random() < killing and workers:
            world.kill(rng.choice(workers))
        workers = _replaced(world, workers)
        if rng.random() < 0.03:
            world.skew_ms += rng.choice((3_000, 20_000, 60_000))
        if rng.random() < 0.1:
            await _toggle(world, operator)
    world.faults = Faults()
    if world.dependency_down:
        await _toggle(world, operator)
    while not all(process.alive for process in workers):
        workers = _replaced(world, workers)
    # somebody must be left when a document takes down one worker after the other
    loop.create_task(_replacing(world, workers))


async def _replacing(world: World, workers: list[Process]) -> None:
    while not world.over:
        await asyncio.sleep(1.0)
        workers = _replaced(world, workers)


def _replaced(world: World, workers: list[Process]) -> list[Process]:
    return [p if p.alive else start_worker(world, f"{p.name}'", world.rng.choice((1, 2, 4))) for p in workers]


async def _toggle(world: World, operator: SqlStore) -> None:
    world.dependency_down = not world.dependency_down
    if world.dependency_down:
        await _again(lambda: operator.hold("dep", "simulated"))
    else:
        await _again(lambda: operator.release("dep"))


def _end(world: World, loop: VirtualLoop) -> None:
    """Sweep the world away: nothing of it may run in the next one."""
    world.over = True
    for process in world.processes:  # buried code may run its `finally` now, it can do no harm any more
        process.alive, process.frozen_until_s = True, 0.0
    for callback, args, context in loop.buried:
        loop.call_soon(callback, *args, context=context)
    for _ in range(20):  # some code answers a cancellation by settling its job first
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
    world.database.close()
    loop.close()
    asyncio.set_event_loop(None)
