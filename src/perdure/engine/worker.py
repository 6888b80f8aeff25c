"""The claim loop: slots, wake-ups, graceful stop. What happens to a claimed job is the runner's business.

Suspect jobs have slots of their own, as many again: they run one by one in cells, must not wait behind a full worker
and must not keep others from running. Large documents have slots beside those of small ones, and no organisation holds
all of them for long (`shares`). A job whose stages are through and that only waits for its end to be committed
takes no slot any more, so the claim of its successor rides in the same commit; with two claims under way the database
works on one half of the slots while the stages of the other half run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from perdure.core.events import WorkerStarted, WorkerStopped
from perdure.core.model import Job
from perdure.core.outcome import Orphaned
from perdure.core.token import new_token
from perdure.engine.journey import Journey
from perdure.engine.keeper import monotonic_ms
from perdure.engine.recovery import recover
from perdure.engine.runner import Runner
from perdure.engine.shares import NOTHING, Asked, Shares
from perdure.engine.slate import Slate
from perdure.errors import PerdureError, StoreError
from perdure.store.base import Store
from perdure.store.operations import Claim
from perdure.store.records import Claimed

ASKS_MAX = 2  # claims under way
GROUP_MIN = 250  # jobs that a claim may always take; above that it takes half of the slots
START_MAX = 25  # jobs that are started at a go, before the loop serves the commit that is under way
POLL_S = 1.0
LOOK_S = 0.25
DOWN_S = 1.0
GRACE_S = 10.0
UNKEPT_MS = 3_000


class Worker:
    """Claims from its queues and runs up to `concurrency` jobs at a time."""

    def __init__(
        self, store: Store, runner: Runner, slate: Slate, worker: int, queues: Sequence[str], concurrency: int,
        poll_s: float = POLL_S, alone: bool = True, large_slots: int | None = None,
    ) -> None:  # fmt: skip
        """`large_slots`: besides `concurrency`, where both small and large documents wait; by default half as many, one
        at least."""
        self.store = store
        self.runner = runner
        self.slate = slate
        self.id = worker
        self.queues = tuple(queues)
        self.concurrency = runner.slots = concurrency
        self.poll_s = poll_s
        self.alone = alone  # nobody else claims under this id
        self.stopping = asyncio.Event()
        self._turn = asyncio.Event()  # a slot is free, or there may be work
        self._tasks: dict[asyncio.Task[None], Journey] = {}
        self._hurry = asyncio.Event()
        self._idle = False
        self._asks: set[asyncio.Task[None]] = set()
        self._broken: Exception | None = None  # what a claim ended with
        self._claims = False  # by itself, not driven by hand
        self._asking = False  # an ask is on its way
        self._missed = False  # there may be work, but all asks were out
        self.shares = Shares(concurrency, max(1, concurrency // 2) if large_slots is None else large_slots)
        store.give_way(self)
        self._suspects = 0  # slots of suspects that are taken
        self._suspects_reserved = 0  # and that are asked for and not answered yet
        self._unstarted = 0  # claimed, and of no line in the slate yet
        self.claimed = 0
        self.grace_s = GRACE_S

    async def run(self) -> None:
        """Until `stop` is called; then running stages have their grace, and the rest gives its attempt back."""
        self.runner.events.publish(WorkerStarted(self.id, self.queues, self.concurrency))
        unlisten = await self._listen()
        watching = [
            asyncio.create_task(self._look(), name="perdure-look"),
            asyncio.create_task(self._tend(), name="perdure-tend"),
        ]
        self._claims = True
        try:
            while not self.stopping.is_set():
                self._turn.clear()
                self._ask()
                await self._wait()
                if (
                    self._broken is not None
                ):  # nothing that waiting would mend; whoever started us starts another
                    raise self._broken
            if self._asks:  # what they bring is in hand, and given back like the rest
                await asyncio.wait(self._asks)
            await self._drain()
            self.runner.events.publish(WorkerStopped(self.id))
        finally:
            for task in (*watching, *self._asks):
                task.cancel()
            if unlisten is not None:
                with suppress(StoreError):
                    await unlisten()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Claim no more; jobs stop at their next stage boundary, or after the grace in the middle of a stage.

        Asked again, it leaves at once.
        """
        if self.stopping.is_set():
            self._hurry.set()
            return
        self.grace_s = grace_s
        self.stopping.set()
        self._turn.set()
        for journey in self._tasks.values():
            journey.stopping = True

    def _ask(self) -> None:
        """One claim more, unless enough are under way; one that only looks for suspects goes alone."""
        if self._asking:
            return  # it has not counted the free slots yet
        if self._asks and (len(self._asks) >= ASKS_MAX or not self._free()[0].total):
            self._missed = True
            return
        self._asking = True
        ask = asyncio.create_task(self._answered(), name="perdure-claim")
        self._asks.add(ask)

    async def _answered(self) -> None:
        again = False
        try:
            again = await self.claim()
        except Exception as error:
            self._broken = error
        self._asks -= {asyncio.current_task()}
        if again or self._missed or self._broken:
            self._missed = False
            self._turn.set()

    def _free(self) -> tuple[Asked, int]:
        """Slots for jobs and for suspects that are neither taken nor asked for; as many as the slate has lines."""
        now_ms = monotonic_ms()
        if self.slate.unkept_ms(now_ms) > UNKEPT_MS:
            return NOTHING, 0  # the keeper is frozen: nobody would renew what we took
        lines = self.slate.room - self._unstarted - self.shares.reserved - self._suspects_reserved
        asked = self.shares.ask(max(0, min(lines, max(self.concurrency // 2, GROUP_MIN))), now_ms)
        suspects = min(self.concurrency - self._suspects - self._suspects_reserved, lines - asked.total)
        return asked, max(suspects, 0)

    @property
    def shared(self) -> bool:
        """Whether it had documents of several organisations lately."""
        return self.shares.several(monotonic_ms())

    @property
    def serves(self) -> tuple[str, ...] | None:
        """The pipelines whose jobs it claims."""
        return tuple(sorted(self.runner.pipelines))

    async def claim(self) -> bool:
        """One claim for what is free; whether it is worth asking again at once."""
        self._asking = False
        asked, suspects = self._free()
        if not asked.total and not suspects:
            return False
        # with another ask under way nobody knows what the store will have been told
        idle = self._idle if self.alone and len(self._asks) < ASKS_MAX else None
        self.shares.reserve(asked, 1)
        self._suspects_reserved += suspects
        try:
            asked_ms = monotonic_ms()
            found = await self.store.claim(
                Claim(
                    self.id, self.queues, new_token(), asked.small, suspects, idle, self.alone, self.serves,
                    asked.large, asked.passing, asked.passing_large,
                )
            )  # fmt: skip
        except StoreError:
            if self.store.lost is not None:
                raise
            await asyncio.sleep(self.poll_s)  # the store is away; the flusher has been patient already
            return True
        finally:
            self.shares.reserve(asked, -1)
            self._suspects_reserved -= suspects
        was_idle, self._idle = self._idle, len(found) < asked.total + suspects
        more = self.shares.answered(asked, [one.job for one in found if not one.job.suspect])
        await self._start_all(found, asked_ms)
        # once more right after falling idle: what was added before we were marked idle woke nobody
        return more or (self._idle and not was_idle)

    async def turn(self) -> int:
        """One claim, run to its end, for whoever drives a worker by hand; how many jobs that were."""
        await self.refresh()
        before = self.claimed
        await self.claim()
        while self._tasks:
            await asyncio.wait(self._tasks)
        return self.claimed - before

    @property
    def busy(self) -> int:
        """How many jobs are in hand."""
        return len(self._tasks)

    async def _start_all(self, found: Sequence[Claimed], asked_ms: int) -> None:
        for claimed in found:
            self._count(claimed.job, 1)
        self._unstarted += len(found)
        for number, claimed in enumerate(found, 1):
            if monotonic_ms() - asked_ms > claimed.job.lease_ms * 2 // 3:
                await self._give_back([one.job for one in found[number - 1 :]])
                break
            self._start(claimed, asked_ms)
            if number % START_MAX == 0:
                await asyncio.sleep(0)

    async def _give_back(self, jobs: Sequence[Job]) -> None:
        """The answer took so long that their leases may be over: whoever is quicker may have them, uncharged."""
        for job in jobs:
            self._count(job, -1)
        self._unstarted -= len(jobs)
        late = [(job, Orphaned(job.stage, "heard of too late", blame=False)) for job in jobs]
        with suppress(StoreError):
            await recover(self.store, self.runner.events, late, "heard of too late")

    def _start(self, claimed: Claimed, asked_ms: int) -> None:
        job = claimed.job
        self.claimed += 1
        self._unstarted -= 1
        slot = self.slate.take(job.id, job.token, job.lease_ms, asked_ms)
        journey = self.runner.begin(claimed, slot, self._leave, asked_ms)
        journey.stopping = self.stopping.is_set()
        task = asyncio.create_task(self.runner.run(journey, claimed), name=job.key)
        self._tasks[task] = journey
        task.add_done_callback(self._ended)

    def _count(self, job: Job, number: int) -> None:
        if job.suspect:
            self._suspects += number
        elif number > 0:
            self.shares.take(job, monotonic_ms())
        else:
            self.shares.leave(job, monotonic_ms())

    def _leave(self, journey: Journey) -> None:
        """Its stages are through: the slot is free."""
        if not journey.left:
            journey.left = True
            self._count(journey.job, -1)
            if self._claims and not self.stopping.is_set():
                self._ask()  # at once, to ride in the commit of this very end

    def _ended(self, task: asyncio.Task[None]) -> None:
        journey = self._tasks.pop(task)
        self._leave(journey)
        if not self.slate.room:
            self._turn.set()  # for want of a line, free slots were not asked for
        self.slate.free(journey.slot)
        if not task.cancelled():
            task.exception()  # the store refused to settle; the lease will run out and the sweeper decides

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._turn.wait(), self.poll_s)

    async def _listen(self) -> Callable[[], Awaitable[None]] | None:
        try:
            return await self.store.listen(self._turn.set)
        except StoreError:
            return None  # polling serves

    async def _look(self) -> None:
        """Drop what the keeper gave up; asks nobody, so that a store that does not answer cannot delay it."""
        while True:
            for task, journey in list(self._tasks.items()):
                if not journey.revoked and self._lost(journey.slot):
                    journey.revoked = True
                    task.cancel()
            await asyncio.sleep(LOOK_S)

    async def _tend(self) -> None:
        """Keep connections up; know which dependencies are down."""
        while True:
            with suppress(PerdureError):
                await self.store.tend()
                await self.refresh()
            await asyncio.sleep(DOWN_S)

    def _lost(self, slot: int) -> bool:
        """Whether the keeper gave the job up, or would have, were it not frozen itself."""
        now_ms = monotonic_ms()
        return self.slate.revoked(slot) or (
            self.slate.unkept_ms(now_ms) > UNKEPT_MS and self.slate.lapsing(slot, now_ms)
        )

    async def refresh(self) -> None:
        """Read which dependencies are down."""
        await self.runner.availability.look()

    async def _drain(self) -> None:
        """Wait for what is in hand; after the grace, interrupt it, which gives attempts back."""
        hurry = asyncio.create_task(self._hurry.wait())
        if self._tasks:
            all_ended = asyncio.ensure_future(asyncio.wait(self._tasks))
            await asyncio.wait({hurry, all_ended}, timeout=self.grace_s, return_when=asyncio.FIRST_COMPLETED)
            all_ended.cancel()
        hurry.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=5.0)
