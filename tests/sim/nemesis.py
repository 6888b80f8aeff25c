"""What befalls a world in its first half, and how it is mended for the second."""

from __future__ import annotations

import asyncio
import math

from perdure.store.base import BREAKER
from tests.sim.book import Book
from tests.sim.clients import Client, opened
from tests.sim.fleet import QUEUES, Fleet, SimApp
from tests.sim.loop import running
from tests.sim.post import Office
from tests.sim.scenes import actors
from tests.sim.world import Faults, Process, World

HALF_S = 25.0
MIGRATED = "INSERT INTO migration SELECT '9999', count(*) + 1, 0 FROM migration"


class Nemesis:
    """Starts clients and workers, and strikes them until half time."""

    def __init__(self, world: World, book: Book) -> None:
        self.world, self.book, self.rng = world, book, world.rng
        self.fleet = Fleet(world, book)
        self.office = Office(world, book)
        self.clients: list[Client] = []
        self.hand = Process(world, "operator", immune=True)
        self.app: SimApp
        draw = self.rng.choice
        #: How likely each blow is in a round of about a second.
        self.blows = {
            self._kill: draw((0.0, 0.1, 0.3)), self._stop: draw((0.0, 0.05, 0.1)), self._freeze: draw((0.0, 0.05)),
            self._skew: draw((0.0, 0.05, 0.1)), self._outage: draw((0.0, 0.0, 0.05)), self._cut: draw((0.0, 0.1)),
            self._toggle: draw((0.0, 0.1)), self._migrate: draw((0.0, 0.0, 0.0, 0.0, 0.05)),
        }  # fmt: skip

    async def run(self) -> None:
        """Until half time; then mend everything."""
        running.set(self.hand)
        self.app = await opened(self.hand, self.book)
        if self.rng.random() < 0.5:
            await self.app.limit("few", concurrency=2, new=True)
            await self.app.limit("slow", rate_per_s=0.5, new=True)
        self.clients = [self._new_client() for _ in range(self.rng.choice((1, 2)))]
        self.clients += [self._new_client(kind) for kind in actors(self.world)]
        whole = self.rng.random() < 0.8
        self.fleet.workers = [self.fleet.start(whole or n > 0) for n in range(self.rng.choice((1, 2, 2, 3)))]
        self.office.replace()
        until_s = self.world.loop.now_s + HALF_S
        while self.world.loop.now_s < until_s:
            await asyncio.sleep(self.rng.random() * 2)
            for blow, chance in self.blows.items():
                if self.rng.random() < chance:
                    await blow()
            self.fleet.replace()
            self.office.replace()
            self.clients = [
                each if each.process.alive else self._new_client(type(each)) for each in self.clients
            ]
        await self._mend(whole)

    def _new_client(self, kind: type[Client] = Client) -> Client:
        process = Process(self.world, f"client-{len(self.world.processes)}")
        client = kind(process, self.book)
        process.start(client.run)
        return client

    # --- blows -----------------------------------------------------------------------------------

    def _anybody(self) -> Process:
        candidates = [each for each in self.world.processes if each.alive and not each.immune]
        return self.rng.choice(candidates or [Process(self.world, "nobody")])

    async def _kill(self) -> None:
        self.world.kill(self._anybody(), "killed")

    async def _stop(self) -> None:
        process = self.rng.choice(self.fleet.workers)
        self.world.happened("asked to stop", process.name)
        process.stop()

    async def _freeze(self) -> None:
        self.world.freeze(self._anybody(), self.rng.choice((5.0, 9.0, 20.0)))

    async def _skew(self) -> None:
        by_ms = self.rng.choice((3_000, 20_000, 60_000, -3_000, -20_000))
        self.world.skew_ms += by_ms
        self.world.happened("clock set forward" if by_ms > 0 else "clock set back", f"{by_ms} ms")

    async def _outage(self) -> None:
        self.world.outage(self.rng.choice((2.0, 10.0, 20.0)))

    async def _cut(self) -> None:
        if self.world.network:
            self.world.cut(self._anybody())

    async def _migrate(self) -> None:
        """The store needs a newer release from now on: what is started has it, and the operator."""
        if self.world.migrated_s is None:
            self.world.happened("migrated")
            self.world.migrated_s = self.world.loop.now_s
            self.world.database.execute(MIGRATED)
            self.app.store.flusher.knows = math.inf

    async def _toggle(self) -> None:
        if self.world.dependency_down:
            self.world.dependency_down = False
            if (
                self.book.held_by.get("dep") != BREAKER or self.rng.random() < 0.5
            ):  # else it comes back of itself
                await self.app.release("dep")
        else:
            await self.app.store.hold("dep", "simulated", self.rng.choice(("operator", BREAKER)))
            self.world.dependency_down = True
            self.world.happened("dependency down")

    # --- half time -------------------------------------------------------------------------------

    async def _mend(self, whole: bool) -> None:
        world = self.world
        world.tell("half time: everything is mended")
        world.faults, world.away_until_s, world.dependency_down = Faults(), 0.0, False
        world.mended_s, world.looks_late = world.loop.now_s, False
        for client in self.clients:
            client.leaving = True
        while not all(client.process.idle for client in self.clients):
            await asyncio.sleep(0.1)
        if self.book.held_by.get("dep") != BREAKER:
            await self.app.release("dep")
        for queue in QUEUES:
            await self.app.resume(queue)
        self.fleet.replace()
        self.office.replace()
        if not whole:
            self.fleet.workers.append(self.fleet.start())
        # somebody must be left when a document takes down one worker after the other
        world.loop.create_task(self._replacing())
        await Client(self.hand, self.book).last_acts()

    async def _replacing(self) -> None:
        while not self.world.over:
            await asyncio.sleep(1.0)
            self.fleet.replace()
            self.office.replace()
