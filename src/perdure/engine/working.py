"""Working on a store: embedded with a keeper thread, or as the child of a supervisor. `service` has the other verbs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path

from perdure.core.events import Events
from perdure.core.frozen import frozen
from perdure.core.services import CONFIGURATION, CONFIGURED
from perdure.core.stuck import StuckPolicy
from perdure.engine import rooms
from perdure.engine.about import keep_told
from perdure.engine.child_process import WAIT_S
from perdure.engine.crew import Crew, Group, groups
from perdure.engine.embedded import KeeperThread
from perdure.engine.garbage import collect
from perdure.engine.gate import memory_bytes
from perdure.engine.isolate import Nursery, NurseryLost, PreloadFailed
from perdure.engine.loop_watch import ticking
from perdure.engine.pipeline import Pipeline
from perdure.engine.runner import Runner
from perdure.engine.sandbox import in_force
from perdure.engine.slate import Slate
from perdure.engine.sweeper import Retention
from perdure.engine.worker import Worker
from perdure.errors import PerdureError, StoreBusy, StoreUnavailable
from perdure.settings import Settings
from perdure.store.blobs import CheckedBlobs
from perdure.store.sql_store import SqlStore

IDLE_S = 0.05
GATHER_BATCH = 500
MOVING = frozenset({"queued", "running", "parked"})
GARBAGE_S = 6 * 3600
_log = logging.getLogger("perdure.blobs")
_workers = logging.getLogger("perdure.worker")
WORKS_ALREADY = "the app works already; open another one to work twice"


@frozen
class Summary:
    """What a run until idle did, and what is left: documents that are held, and when the next one falls due."""

    done: int
    dead: int
    held: int
    waiting: int
    next_due: datetime | None


class Working:
    """The half of an app that runs documents."""

    url: str
    settings: Settings
    store: SqlStore
    blobs: CheckedBlobs
    pipelines: Mapping[str, Pipeline]
    concurrency: int
    events: Events
    retention: Retention
    stuck_policy: StuckPolicy
    only_queues: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self._crew: Crew | None = None
        self._working = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._sandbox: str | None = None  # of cells that read files; None: not known yet
        self._entering: asyncio.Task[None] | None = None

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of our pipelines, or those of them that this worker is to serve."""
        return self.only_queues or tuple(sorted({p.queue for p in self.pipelines.values()}))

    @property
    def works(self) -> bool:
        """Whether a worker of this app claims documents now."""
        return self._crew is not None

    async def run(self) -> None:
        """Work until `stop`; leases are renewed from a thread. RuntimeError while it works already."""
        if self._working.locked():
            raise RuntimeError(WORKS_ALREADY)
        async with self._working:
            self._stopping.clear()
            await self._run()

    async def _run(self) -> None:
        slate = Slate.private()
        nursery = self.new_nursery()
        loop = asyncio.get_running_loop()

        def absent() -> None:
            loop.call_soon_threadsafe(self.warm, nursery)

        keeper = KeeperThread(
            self.url,
            self.settings.direct_url,
            slate,
            self.events,
            self.retention,
            self.stuck_policy,
            self.queues,
            absent,
            self.settings.loop_stall_s,
        )
        worker = await asyncio.wrap_future(keeper.start())
        try:
            async with ticking(slate.tick):
                await self.work(worker, slate, nursery)
        finally:
            await loop.run_in_executor(None, keeper.stop)
            await nursery.close()

    async def _clear_out(self) -> None:
        await asyncio.to_thread(rooms.clear_out)

    async def _let_go(self) -> None:
        """Release what waits for a service that nobody had named, where our settings do."""
        for one in await self.store.dependencies():
            if one.held_by == CONFIGURATION and CONFIGURED.get(one.name, lambda: False)():
                await self.store.release(one.name, CONFIGURATION)

    async def _wait_for_blobs(self) -> None:
        """Claim nothing before the place of the blobs is known to be ours; when asked to stop, return at once."""
        asked = asyncio.create_task(self._stopping.wait())
        checking = asyncio.create_task(self._check_blobs())
        try:
            await asyncio.wait({asked, checking}, return_when=asyncio.FIRST_COMPLETED)
            if checking.done():
                checking.result()
        finally:
            asked.cancel()
            checking.cancel()
            await asyncio.gather(asked, checking, return_exceptions=True)

    async def _check_blobs(self) -> None:
        """Check the owner of the blobs, again and again until their place can be reached."""
        for pause_s in chain(WAIT_S, repeat(WAIT_S[-1])):
            try:
                return await self.blobs.check()
            except (StoreUnavailable, StoreBusy) as error:
                _log.warning("waiting for the blobs: %s", error)
                await asyncio.sleep(pause_s)

    async def work(self, worker: int, slate: Slate, nursery: Nursery) -> None:
        """Claim and run under this worker id until `stop`; somebody else keeps the leases written on `slate`."""
        await self._clear_out()
        await self._let_go()
        await self._wait_for_blobs()
        stages = [stage for p in self.pipelines.values() for stage in p.stages]
        self._sandbox, self._entering = None, None
        if not any(stage.sandbox for stage in stages):
            self._sandbox = "not used"
        else:
            self._entering = entering = asyncio.create_task(
                self._enter_sandbox(nursery), name="perdure-sandbox"
            )
            if self.settings.sandbox == "require":
                await entering
        if any(stage.isolate and not stage.sandbox for stage in stages):
            self.warm(nursery, trusted=False)
        self._crew = self.new_crew(worker, slate, nursery)
        if self._stopping.is_set():  # asked while we were getting ready
            self._crew.stop(self.settings.grace_s)
        beside = [
            asyncio.create_task(self._collect_garbage(), name="perdure-garbage"),
            asyncio.create_task(
                keep_told(
                    self.store,
                    worker,
                    [one.shares for one in self._crew.workers],
                    lambda: self._sandbox,
                    self._entering,
                ),
                name="perdure-about",
            ),
        ]
        try:
            await self._crew.run()
        finally:
            for task in beside:
                task.cancel()
            self._crew = None
            self._stopping.clear()

    def new_crew(self, worker: int, slate: Slate, nursery: Nursery) -> Crew:
        """Workers over our store that have not begun."""
        found = groups(self.pipelines.values(), self.queues, self.concurrency)
        return Crew([self.new_worker(worker, slate, nursery, group, len(found) == 1) for group in found])

    def new_worker(
        self, worker: int, slate: Slate, nursery: Nursery, group: Group | None = None, alone: bool = True
    ) -> Worker:
        """One of them, or one for all queues, for whoever drives it by hand."""
        queues, concurrency = group or (self.queues, self.concurrency)
        limits = (self.settings.stage_timeout_s or None, self.settings.stage_stall_s or None)
        runner = Runner(self.store, self.blobs, self.pipelines, self.events, nursery, slate, limits)
        return Worker(
            self.store,
            runner,
            slate,
            worker,
            queues,
            concurrency,
            self.settings.poll_s,
            alone,
            self.settings.large_slots,
        )

    async def _collect_garbage(self) -> None:
        """Now and then; several workers at it do no harm."""
        while True:
            await asyncio.sleep(GARBAGE_S * (0.5 + random.random()))
            try:
                await collect(self.store, self.blobs)
            except (PerdureError, OSError) as error:
                _log.warning("blobs that no row names were not collected: %s", error)

    async def stop(self) -> None:
        """Ask the running worker to stop and give it its grace."""
        self._stopping.set()
        if self._crew is not None:
            self._crew.stop(self.settings.grace_s)

    async def run_until_idle(self, wait: float = 0.0) -> Summary:
        """Work until nothing is ready or running and nothing falls due within `wait`; never blocks on what is held."""
        if self._working.locked():
            raise RuntimeError(WORKS_ALREADY)
        async with self._working:
            self._stopping.clear()
            await self.blobs.check()
            before = await self.store.tally()
            running = asyncio.create_task(self._run())
            try:
                await self._idle(running, wait)
            finally:
                await self.stop()
                await running
            return await self.summary(before.documents)

    async def _idle(self, running: asyncio.Task[None], wait: float) -> None:
        while not running.done():
            await asyncio.sleep(IDLE_S)
            if self._crew is None or self._crew.busy:
                continue
            if not await self.under_way(wait) and not self._crew.busy:
                return

    async def under_way(self, within_s: float) -> bool:
        """Whether anything in our queues is ready or running, or falls due within this time."""
        # what waits for others is made due by a sweep, which may not have come by, or did so just now
        return (
            await self._moving(within_s)
            or await self.store.gather(GATHER_BATCH) > 0
            or await self._moving(within_s)
        )

    async def _moving(self, within_s: float) -> bool:
        tally = await self.store.tally(self.queues)
        moving = {state for states in tally.queues.values() for state, n in states.items() if n} & MOVING
        if "running" in moving:
            return True
        if moving and await self.store.claimable(self.queues, tuple(self.pipelines), "parked" in moving):
            return True  # others are of pipelines that we do not have
        due_ms = tally.next_due_ms
        return due_ms is not None and due_ms <= await self.store.now_ms() + within_s * 1000

    async def summary(self, before: dict[str, int]) -> Summary:
        """What changed since `before`, and what is left."""
        tally = await self.store.tally(self.queues)

        def left(state: str) -> int:
            return sum(states.get(state, 0) for states in tally.queues.values())

        due = None if tally.next_due_ms is None else datetime.fromtimestamp(tally.next_due_ms / 1000, UTC)
        ended = {state: tally.documents.get(state, 0) - before.get(state, 0) for state in ("done", "dead")}
        return Summary(ended["done"], ended["dead"], left("held"), left("waiting"), due)

    def new_nursery(self) -> Nursery:
        """For stages that run in a process of their own."""
        found = list(self.pipelines.values())
        boxed = [p for p in found if any(stage.sandbox for stage in p.stages)]
        bound_mb = self.settings.cells_memory_mb
        room_bytes = memory_bytes() if bound_mb is None else bound_mb << 20
        return Nursery(
            _modules(found), _modules(boxed), self.settings.sandbox, self.settings.cell_env or "", room_bytes
        )

    def warm(self, nursery: Nursery, trusted: bool = True) -> None:
        """Start the nursery, as suspects need it unless told otherwise, in the background; whatever is wrong with it
        shows at first use."""

        async def quietly() -> None:
            with suppress(Exception):
                await nursery.warm(trusted)

        self._warming = asyncio.get_running_loop().create_task(quietly())

    async def _enter_sandbox(self, nursery: Nursery) -> None:
        """Start the nursery whose cells go into a sandbox, and say in the log what that holds.
        Raises: SandboxUnavailable."""
        try:
            held = await nursery.sandbox()
        except (PreloadFailed, NurseryLost):
            return  # shows at first use
        self._sandbox = "in force" if in_force(held) else "not available" if nursery.boxes else "off"
        if in_force(held):
            _workers.info("readers of files run in a sandbox: %s", ", ".join(held))
        else:
            why = f"this machine has {' and '.join(held) or 'neither Landlock nor seccomp'}"
            _workers.info("readers of files run without a sandbox: %s", why if nursery.boxes else "it is off")


def _modules(pipelines: Sequence[Pipeline]) -> list[str]:
    """What the process is to import that forks cells for these pipelines."""
    importable = {p.module for p in pipelines if p.module and not Path(p.module).is_absolute()} - {"__main__"}
    wanted = {name for p in pipelines for stage in p.stages for name in stage.preload}
    return ["perdure.engine.stage_cell", "pydantic", *sorted(importable), *sorted(wanted - importable)]
