"""Workers: the real engine in simulated processes, embedded as `app.run()` has it or under a supervisor."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Any

from perdure.core.events import AnyEvent, JobRecovered, StuckSwept, SweepPartial, WorkerLost
from perdure.core.stuck import StuckPolicy
from perdure.engine.blame import Standstill
from perdure.engine.keeper import Keeper
from perdure.engine.pipeline import Pipeline
from perdure.engine.runner import Runner
from perdure.engine.slate import Slate
from perdure.engine.supervisor import LOOK_S, Supervisor
from perdure.engine.sweeper import Retention, Sweeper
from perdure.engine.worker import Worker
from perdure.errors import StoreError
from perdure.service import AsyncPerdure
from perdure.settings import Settings
from perdure.store.blobs import CheckedBlobs
from tests.sim.book import Book
from tests.sim.cells import SimNursery
from tests.sim.driver import SimStore
from tests.sim.releases import FIRST, PART, RELEASES
from tests.sim.world import LARGE_BYTES, Process, World, here

SETTINGS = Settings(grace_s=3.0, poll_s=1.0, large_bytes=LARGE_BYTES)
QUEUES = ("documents", "notes")
#: Far from what is usual in hours, near to it in worlds that last for a minute.
STUCK = StuckPolicy(
    interval_s=6.0, threshold_ms=9_000, base_ms=2_000, cap_ms=10_000, attempts={"documents": 2}
)
#: What a keeper may tell of a round that failed; anything else is a bug.
EXPECTED = {"StoreBusy", "StoreUnavailable", "TimeoutError"}


class NoBlobs:
    """All content here is small enough for its row."""

    where, inside, beside = "nowhere", True, False

    async def list(self, older_than_ms: int = 0) -> AsyncIterator[tuple[str, int]]:
        none: tuple[tuple[str, int], ...] = ()
        for one in none:
            yield one


class SimApp(AsyncPerdure):
    """The app as one process has it."""

    def __init__(self, process: Process, book: Book, pipelines: Sequence[Pipeline] = FIRST) -> None:
        self.process, self.book = process, book
        super().__init__("simulated", pipelines=pipelines, settings=SETTINGS)
        process.serves = frozenset(self.pipelines)
        process.release = RELEASES.index(pipelines) if pipelines in RELEASES else 0
        self.stuck_policy = STUCK
        self.events.subscribe(self._heard)

    def _connect(self) -> None:
        no_blobs: Any = NoBlobs()
        self.store = SimStore(self.process, self.book)
        self.store.flusher.large_bytes = LARGE_BYTES
        self.blobs, self._closed = CheckedBlobs(self.store, no_blobs), False

    async def _clear_out(self) -> None:
        """Real files and threads are none of the simulated world's business."""

    def new_worker(
        self, worker: int, slate: Slate, nursery: Any, group: Any = None, alone: bool = True
    ) -> Worker:
        runner = Runner(self.store, self.blobs, self.pipelines, self.events, nursery, slate)
        return SimWorker(self.store, runner, slate, worker, QUEUES, self.concurrency, SETTINGS.poll_s)

    def _heard(self, event: AnyEvent) -> None:
        world = self.process.world
        match event:
            case SweepPartial(failed=failed):
                for text in failed:
                    world.happened("round failed", text)
                    expected = {*EXPECTED, "SchemaNewer"} if self.process.outdated else EXPECTED
                    if text.split(": ")[1] not in expected:
                        world.violated("sound", f"{self.process.name}: {text}")
            case StuckSwept():
                self.book.stuck.heard(event)
            case WorkerLost(worker=worker):
                world.happened("worker buried", worker)
            case JobRecovered():
                world.happened("job recovered", event.document_id)


class SimWorker(Worker):
    """A worker that does not keep the errors of its journeys to itself."""

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreError):
            here().world.violated("sound", f"a journey ended with {type(error).__name__}: {error}")
        super()._ended(task)


class Fleet:
    """The workers of a world; whoever ends is replaced."""

    def __init__(self, world: World, book: Book) -> None:
        self.world, self.book = world, book
        self.retention = Retention(every_s=1e9)
        if world.rng.random() < 0.5:
            self.retention = Retention(age_ms=20_000, count=3, every_s=4.0)
        self.workers: list[Process] = []
        self._started = 0

    def start(self, whole: bool = True) -> Process:
        """A new worker; one that is not whole knows only some of the pipelines."""
        self._started += 1
        supervised = self.world.rng.random() < 0.5
        process = Process(self.world, f"{'supervisor' if supervised else 'worker'}-{self._started}")
        concurrency = self.world.rng.choice((1, 2, 4))
        pipelines = self.world.rng.choice(RELEASES) if whole else PART
        main = self._supervise if supervised else self._embed
        process.start(lambda: main(process, pipelines, concurrency))
        return process

    def replace(self) -> None:
        self.workers = [each if each.alive else self.start() for each in self.workers]

    async def register(self, process: Process, app: SimApp, slate: Slate) -> tuple[SimStore, Keeper]:
        """A keeper with a store of its own, registered as a worker."""
        store = SimStore(process, self.book)
        await store.open()
        worker = await store.register("worker", process.name, QUEUES)
        self.book.ledger.workers[worker] = process
        sweeper = Sweeper(store, app.events, self.retention, STUCK)
        return store, Keeper(store, app.events, worker, slate, sweeper)

    async def _embed(self, process: Process, pipelines: Sequence[Pipeline], concurrency: int) -> None:
        app, slate = SimApp(process, self.book, pipelines), Slate.private()
        store, keeper = await self.register(process, app, slate)
        stopping = asyncio.Event()
        keeping = asyncio.create_task(keeper.run(stopping))
        await app.start()
        await self.work(app, keeper.worker, slate, concurrency)
        stopping.set()
        await keeping
        if not await store.in_hand(keeper.worker):
            await store.retire(keeper.worker)
        await store.close()

    async def work(self, app: SimApp, worker: int, slate: Slate, concurrency: int) -> None:
        """Claim and run until asked to stop."""
        app.concurrency = concurrency
        loop = asyncio.get_running_loop()
        app.process.stop = lambda: loop.create_task(app.stop())
        nursery: Any = SimNursery(self.world)
        await app.work(worker, slate, nursery)
        await app.close()

    async def _supervise(self, process: Process, pipelines: Sequence[Pipeline], concurrency: int) -> None:
        supervisor = SimSupervisor(self, process, pipelines, concurrency)
        process.stop = supervisor.stop
        await supervisor.run()


class SimChild:
    """The process that runs stages under a supervisor, and the two ends of their pipe."""

    def __init__(
        self, fleet: Fleet, parent: Process, pipelines: Sequence[Pipeline], concurrency: int
    ) -> None:
        self.world = fleet.world
        self.process = Process(self.world, f"{parent.name}.{len(parent.children) + 1}", parent=parent)
        self.slate = Slate.private()
        self.started_s = self.world.loop.now_s
        self.control = self
        self.ready = False
        self._worker: asyncio.Future[int] = self.world.loop.create_future()
        app = SimApp(self.process, fleet.book, pipelines)

        async def main() -> None:
            await app.start()
            self.ready = True
            await fleet.work(app, await self._worker, self.slate, concurrency)

        self.process.start(main)

    def heard(self, said: bytes) -> None:
        self._worker.set_result(json.loads(said)["worker"])

    def send(self, word: bytes) -> None: ...
    def close(self) -> None: ...

    @property
    def lives(self) -> bool:
        return self.process.alive

    async def exited(self) -> int:
        await self.process.ended.wait()
        return self.process.status

    def send_signal(self, number: int) -> None:
        if not self.process.alive:
            return
        if number == signal.SIGKILL:
            self.world.kill(self.process, "killed by its supervisor")
        else:
            self.process.stop()


class SimSupervisor(Supervisor):
    """The real supervisor over simulated processes."""

    def __init__(
        self, fleet: Fleet, process: Process, pipelines: Sequence[Pipeline], concurrency: int
    ) -> None:
        self.fleet, self.process = fleet, process
        self.app = SimApp(process, fleet.book)  # for its events
        super().__init__("simulated", {}, self.app.events)
        self._pipelines, self._concurrency = pipelines, concurrency

    def _spawn(self) -> Any:
        return SimChild(self.fleet, self.process, self._pipelines, self._concurrency)

    async def _hello(self, child: Any) -> dict[str, Any] | None:
        while child.process.alive and not child.ready:
            await asyncio.sleep(LOOK_S)
        return {} if child.ready else None

    async def _open(self, hello: dict[str, Any], child: Any, stopping: asyncio.Event) -> asyncio.Task[None]:
        self._store, self._keeper = await self.fleet.register(self.process, self.app, child.slate)
        self._worker, self._grace_s = self._keeper.worker, SETTINGS.grace_s
        return asyncio.create_task(self._keeper.run(stopping))

    async def _recover(self, child: Any, status: int, still: Standstill | None) -> None:
        """Told to the ledger: whose stage was past its time when the child ended, and may be charged for it."""
        for held in child.slate.held():
            job = self.fleet.book.jobs.get(held.job_id)
            if held.started and job is not None and 0 < held.deadline_ms < child.process.died_s * 1000:
                self.fleet.book.ledger.stood_still(job.key, job.generation)
        await super()._recover(child, status, still)
