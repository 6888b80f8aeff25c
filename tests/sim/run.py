"""One seed from beginning to end: clients, workers, faults until half time, then everything must converge."""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from perdure.calls.dependency import DEPENDENCIES
from perdure.core import outcome as rules
from perdure.core import token
from perdure.engine import execution, intake, keeper, memory, stuck
from perdure.operate import requeue
from perdure.operate.desk import Desk
from perdure.store import migrate
from tests.sim.book import Book
from tests.sim.clients import ORGS, check_tally
from tests.sim.documents import ledger_now
from tests.sim.ending import check_audit, check_end
from tests.sim.ledger import Ledger
from tests.sim.loop import BEGINS_S, VirtualLoop, running
from tests.sim.nemesis import HALF_S, Nemesis
from tests.sim.pairs import Pair
from tests.sim.promises import Violation
from tests.sim.world import Faults, Process, World, here

BOUND_S = 1_500.0  # far beyond lease + sweep + every backoff, in virtual time
QUIET_S = 200.0  # nothing that anybody waits for takes longer
MIGRATIONS = migrate.known("sqlite")


async def _leave(_: Path) -> None: ...


NO_ROOMS = types.SimpleNamespace(
    new_room=lambda: Path("nowhere"), remove=lambda _: None, remove_soon=_leave
)  # cells write no files
NEWER = migrate.Migration("9999", len(MIGRATIONS) + 1, "")  # which only a newer release has


@dataclass(frozen=True)
class Story:
    """What happened in a world."""

    seed: int
    documents: int
    processes: int
    seconds: float
    promise: str | None = None  # the one that was broken
    error: str | None = None
    seen: Counter[str] = field(default_factory=Counter, compare=False)
    pairs: set[Pair] = field(default_factory=set, compare=False)  # of features that met, see `pairs`
    log: list[str] = field(default_factory=list, repr=False)


def simulate(seed: int, tell: bool = False) -> Story:
    """Play the seed; the violation, if there was one, is in the story, and with `tell` all that happened."""
    gc.disable()  # a collection may end forgotten code, and when it comes depends on what ran before
    try:
        return _simulate(seed, tell)
    finally:
        gc.collect(0)  # all of the world was young
        gc.enable()


def _simulate(seed: int, tell: bool) -> Story:
    loop, rng = VirtualLoop(), random.Random(seed)
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(lambda *_: None)  # a killed process leaves its tasks where they are
    world = World(seed, rng, loop, [] if tell else None, Faults.drawn(rng), rng.random() < 0.5)
    violation: Violation | None = None
    with _determined(world):
        try:
            loop.run_until_complete(_play(world))
        except Violation as broken:
            violation = broken
        finally:
            _end(world)
    seconds = loop.now_s - BEGINS_S
    story = Story(
        seed, world.seen["document"], len(world.processes), seconds, seen=world.seen, pairs=world.touched.pairs(),
        log=world.log or [],
    )  # fmt: skip
    return replace(story, promise=violation.promise, error=str(violation)) if violation else story


@contextmanager
def _determined(world: World) -> Iterator[None]:
    """Time, chance and names come from the seed alone, and waits of minutes are shorter."""
    loop, rng, numbers = world.loop, world.rng, count(1)
    random.seed(world.seed)
    time = types.SimpleNamespace(monotonic=loop.time, monotonic_ns=lambda: int(loop.time() * 1e9))

    def wall_ms() -> int:
        return int(loop.now_s * 1000) + rng.choice((0, 0, 5_000, -5_000))

    def upgraded() -> bool:
        process = running.get()
        return world.migrated_s is not None and isinstance(process, Process) and not process.outdated

    async def at_once(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    with ExitStack() as patches:
        for where, name, instead in (
            (keeper, "time", time),
            (token, "wall_ms", wall_ms),
            (secrets, "randbits", rng.getrandbits),
            (intake, "uuid7", lambda: f"d{next(numbers)}"),
            (Desk, "_who", lambda _, given=None: given or here().name),
            (migrate, "known", lambda _: [*MIGRATIONS, NEWER] if upgraded() else MIGRATIONS),
            (rules, "RESCHEDULE_MS", 6_000),
            (requeue, "time", time),
            (stuck, "time", time),
            (asyncio, "to_thread", at_once),
            (
                memory,
                "give_back_if_grown",
                lambda: None,
            ),  # it collects garbage, whenever this process has grown
            (execution, "rooms", NO_ROOMS),
        ):
            patches.enter_context(mock.patch.object(where, name, instead))
        # of services that this process happens to know from elsewhere nobody hears
        patches.enter_context(mock.patch.dict(DEPENDENCIES, clear=True))
        yield


async def _play(world: World) -> None:
    ledger = Ledger(world)
    ledger_now.set(ledger)
    book = Book(world, ledger)
    nemesis = Nemesis(world, book)
    striking = world.loop.create_task(nemesis.run())
    nemesis.hand.tasks.append(striking)
    while world.loop.now_s - BEGINS_S < BOUND_S:
        await asyncio.sleep(1.0)
        _look(world)
        if striking.done() and all(job.ending for job in book.jobs.values()):
            break
        if world.loop.now_s - max(book.moved_s, world.mended_s, BEGINS_S + HALF_S) > QUIET_S:
            break
    world.seen["document"] = len(book.documents)
    check_tally(book, await nemesis.app.store.tally())
    for org in ORGS:
        await nemesis.office.follower.catch_up(nemesis.app.store, org, 100)
    _look(world)
    check_end(book)
    nemesis.office.follower.check()
    check_audit(await nemesis.app.audit(), book)


def _look(world: World) -> None:
    """Whether a promise was broken, or somebody ended who should not have."""
    for process in filter(lambda each: each.alive, world.processes):
        for task in process.tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is not None:
                world.violated("sound", f"{process.name} ended with {type(error).__name__}: {error}")
    if world.violation is not None:
        raise world.violation


def _end(world: World) -> None:
    """Sweep the world away: nothing of it may run in the next one."""
    loop, world.over = world.loop, True
    for process in world.processes:  # buried code may run its `finally` now, it can do no harm any more
        process.alive, process.frozen_until_s = True, 0.0
    loop.exhume()
    for _ in range(20):  # some code answers a cancellation by settling its job first
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
    world.database.close()
    world.clear_out()
    loop.close()
    asyncio.set_event_loop(None)
