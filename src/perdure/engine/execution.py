"""One run of one stage: in the event loop, a thread, or a cell of its own; within its time, while the job is ours.

A stage in a cell can be killed. One in the loop or a thread that is overdue or not ours any more is abandoned: it may
go on, but nothing it does is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core.chunk import Connection
from perdure.core.frozen import frozen
from perdure.core.scope import MESSENGERS, WORK
from perdure.engine import cell_messages, rooms, wire
from perdure.engine.cell_env import passes, settings_for_cell
from perdure.engine.cell_messages import Checker
from perdure.engine.context import Context
from perdure.engine.crossing import BODY_MAX, RemoteError
from perdure.engine.intake import OUTPUT_INLINE_BYTES_MAX, keep
from perdure.engine.isolate import Box, CellOverdue, Limits
from perdure.engine.keeper import monotonic_ms
from perdure.engine.pipeline import AnyStage
from perdure.engine.result import Emitted, Produced
from perdure.engine.saving import item_fingerprint, items_since, told_apart
from perdure.engine.slate import HERE, IN_CELL
from perdure.engine.stage_cell import TARGET, Assignment, SavedUnreadable, StageAbsent, conclude, load
from perdure.engine.wire import Malformed
from perdure.errors import DependencyDown, LeaseLost, PerdureError
from perdure.settings import current, given
from perdure.store.blobs import BlobCorrupt, BlobMissing
from perdure.store.operations import ItemOutput, Save

if TYPE_CHECKING:
    from perdure.core.model import Job
    from perdure.engine.journey import Journey
    from perdure.engine.runner import Runner

#: How much later than the stage's own timeout the keeper ends a worker whose loop stands still.
FORCE_MS = 2_000
LOOK_S = 0.25
LATE_MS = 750  # a look this late says that the loop stood still, not that the stage did
PAUSES_MAX = 3
ABANDON_S = 1.0
TOLD_FREELY, TOLD_PAUSE_S = 100, 0.002
READ_HERE = 32 << 10  # bytes of a message; to check more takes long enough for a thread
CROSSING_MAX = BODY_MAX // 2
HEAVY_BYTES = 256 << 10  # of a document and what a stage reads of earlier ones: others go before its process

T = TypeVar("T")


@frozen
class Ran:
    """What a run gave: the produced output, what was emitted on the way, and the output as the next stage is to see
    it, where that is at hand and nobody else's."""

    produced: Produced
    emitted: list[Emitted]
    loaded: tuple[Any] | None = None


def in_cell(runner: Runner, job: Job, stage: AnyStage, raws: Mapping[str, bytes]) -> bool:
    """Whether the stage is to run in a cell: always, for a suspect, or because it reads much of earlier stages.

    No other process can find a pipeline that was typed at a prompt: even a suspect of that runs here. So does a stage
    that need not be in a cell and reads so much that what it makes of it might be too long for a message.
    """
    bound = stage.isolate_from
    large = bound is not None and bound <= sum(map(len, raws.values())) <= CROSSING_MAX
    return runner.cells and (stage.isolate or large or (job.suspect and stage.pipeline.module is not None))


class Execution:
    """The run, and the context's port to the engine."""

    def __init__(
        self, runner: Runner, journey: Journey, stage: AnyStage, input_hash: str, raws: Mapping[str, bytes]
    ) -> None:
        self.runner = runner
        self.journey = journey
        self.job = journey.job
        self.stage = stage
        self.input_hash = input_hash
        self.raws = raws
        self.work = journey.begins(stage, runner.availability.looked_ms)
        self.work.saved()
        self.items: dict[str, bytes] = {}
        self.over = False
        self.loop: asyncio.AbstractEventLoop  # of a stage that runs in a thread
        self.progress_ms = monotonic_ms()
        self.deadline_ms = 0  # after which the supervisor acts; 0: never
        self.pauses = 0
        # a stage that could as well run here is trusted as the worker is
        self.checker = Checker(self.job.document_id, stage.statements if stage.isolate else None)
        self.begun = stage.isolate
        self.told = 0  # messages of its cell that are no items
        self.timeout, self.stall = stage.limits(runner.limits)
        if self.job.suspect and stage.timeout is None and stage.stall is None:
            self.stall = current().suspect_stall_s  # nobody else would ever end it

    @property
    def heavy(self) -> bool:
        """Whether the stage reads so much that documents of others are to go before it."""
        journey = self.journey
        content = max(journey.document.size, journey.fetched_bytes)
        return content + sum(map(len, self.raws.values())) >= HEAVY_BYTES

    async def run(self) -> Ran:
        """What the stage produced, or whatever it raised; CellOverdue, CellCrashed."""
        job, stage = self.job, self.stage
        if job.resumed:
            self.items = await self._load_items()
        WORK.set(self.work)
        try:
            if in_cell(self.runner, job, stage, self.raws):
                try:
                    async with AsyncExitStack() as stack:
                        if self.heavy and self.runner.store.background.others:
                            await self._turn(stack, self.runner.nursery.heavy(job.org))
                        await self._turn(
                            stack, self.runner.nursery.gate.enter(job.org, stage.memory_mb << 20)
                        )
                        self.runner.slate.start(self.journey.slot, 0, stage.lease_ms, IN_CELL)
                        return await self._in_cell()
                except StageAbsent:
                    if not job.suspect or stage.isolate:
                        raise  # a suspect, though, must not die of how its pipeline was defined
                    self.runner.slate.pause(self.journey.slot)
            if not job.suspect:
                return await self._within_time()
            async with AsyncExitStack() as stack:
                # else nobody could tell which of them held the worker
                await self._turn(stack, self.runner.nursery.lone_suspect)
                return await self._within_time()
        finally:
            self.over = True
            WORK.set(None)
            self.runner.slate.pause(self.journey.slot)

    async def _turn(self, stack: AsyncExitStack, place: AbstractAsyncContextManager[None]) -> None:
        """Wait for a place. The wait takes nothing of the stage's time and charges nobody, also if it is cut short."""
        try:
            await stack.enter_async_context(place)
        finally:
            self.progress_ms = self.journey.stage_started_ms = monotonic_ms()
            self.work.deadline_s = self.journey.calls_until_s(self.stage)

    async def _within_time(self) -> Ran:
        """Run it here: in the event loop or in a thread."""
        if self.timeout is not None:
            self.deadline_ms = monotonic_ms() + int(self.timeout * 1000) + FORCE_MS
        self.runner.slate.start(self.journey.slot, self.deadline_ms, self.stage.lease_ms, HERE)
        if self.timeout is None and self.stall is None:
            return await self._here()
        return await self._in_time(self._here())

    async def _in_time(self, work: Coroutine[Any, Any, Ran]) -> Ran:
        """Await the work within the stage's time; what is overdue is cancelled, and abandoned if it will not go."""
        task = asyncio.create_task(work)
        began_ms = looked_ms = monotonic_ms()
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                gap_ms, looked_ms = monotonic_ms() - looked_ms, monotonic_ms()
                if gap_ms > LATE_MS:
                    began_ms += self._forgive(gap_ms)
                if not task.done():
                    self._check_time(began_ms)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=ABANDON_S)
            if task.done() and not task.cancelled():
                task.exception()

    def _forgive(self, gap_ms: int) -> int:
        """While the loop stood still nobody could get on: that time does not count, but not for ever."""
        self.pauses += 1
        if self.pauses > PAUSES_MAX:
            return 0
        self.progress_ms += gap_ms
        if self.deadline_ms:
            self.deadline_ms += gap_ms
            self.runner.slate.start(self.journey.slot, self.deadline_ms, self.stage.lease_ms)
        return gap_ms

    def _check_time(self, began_ms: int) -> None:
        now_ms = monotonic_ms()
        timeout, stall = self.timeout, self.stall
        if timeout is not None and now_ms - began_ms > timeout * 1000:
            raise CellOverdue("stage_timeout", f"stage {self.stage.name} ran longer than {timeout:g} s")
        if stall is not None and now_ms - self.progress_ms > stall * 1000:
            raise CellOverdue("no_progress", f"stage {self.stage.name} showed no progress for {stall:g} s")

    # --- where the code runs ---------------------------------------------------------------------

    async def _here(self) -> Ran:
        stage, document = self.stage, self.journey.document
        context = self._context() if stage.wants_context else None
        values = load(stage, self.raws, self.journey.loaded)
        arguments = stage.arguments(document, context, values, self.job.input)

        def finish(returned: Any) -> Ran:
            produced, emitted, value = conclude(stage, document, context, values, returned)
            # a reader of what has no type may want it as another one, a contract may have changed it
            own = stage.codec.type is not Any and not stage.contracts
            return Ran(produced, emitted, (value,) if own else None)

        try:
            if stage.is_async:
                return finish(await stage.fn(**arguments))
            self.loop = asyncio.get_running_loop()
            ran: Ran = await self.runner.threads.run(lambda: finish(stage.fn(**arguments)))
            return ran
        except Exception:
            raise
        except BaseException as left:
            # an exit or a cancellation of its own making is the stage's failure, not the end of this worker
            asked = asyncio.current_task()
            if isinstance(left, asyncio.CancelledError) and asked is not None and asked.cancelling():
                raise
            raise RemoteError(type(left).__name__, str(left)) from None

    async def _in_cell(self) -> Ran:
        stage, journey, nursery = self.stage, self.journey, self.runner.nursery
        box = Box(journey.file) if stage.sandbox and nursery.boxes else None
        room = rooms.new_room() if box is None else None
        # a stage that could as well run here has the environment that it would have here
        trusted = not stage.isolate
        settings, passed = given(), passes("*") if trusted else nursery.passes
        known = {name: messenger.pack(self.runner.slots) for name, messenger in MESSENGERS.items()}
        assignment = Assignment(
            stage.target, journey.document.to_payload(), str(journey.file) if journey.file else None, dict(self.raws),
            self.job.input, self.items, self.job.attempts, self.job.generation, self.input_hash, self.work,
            known, str(room) if room else None, None if settings is None else settings_for_cell(settings, passed),
            trusted, list(self.runner.pipelines) if trusted else [],
        )  # fmt: skip
        limits = Limits(stage.memory_mb << 20, stage.cpu_s, self.timeout, self.stall, behind=self.heavy)
        # one in a sandbox cannot import another stage's module
        whose = self.job.org if box is None else f"{self.job.org} {stage.target}"
        try:
            # what may be to blame for a crash runs alone
            reuse = 1 if self.job.suspect or self.job.crashes else stage.reuse
            produced, emitted = await nursery.run(
                TARGET, assignment.packed(), self._asked, limits, reuse=reuse, whose=whose, accept=self._accept,
                box=box, trusted=trusted,
            )  # fmt: skip
        except PerdureError as error:
            raise self._believed(error) from None
        finally:
            for name in known:
                MESSENGERS[name].over()
            if room is not None:
                await rooms.remove_soon(room)
        return Ran(produced, emitted)

    async def _checked(self, check: Callable[[bytes], T], body: bytes) -> T:
        """What a message says. Raises: Malformed."""
        return check(body) if len(body) <= READ_HERE else await asyncio.to_thread(check, body)

    async def _accept(self, body: bytes) -> tuple[Produced, list[Emitted]]:
        return await self._checked(self.checker.answer, body)

    async def _asked(self, message: bytes) -> bytes:
        """A cell saves an item, looks for what is near, tells of progress, or of the requests it made."""
        asked = await self._checked(self.checker.asked, message)
        match asked.verb:
            case "item":
                await self.save_item(*asked.parts)
            case "calls":
                self._learn(*asked.parts)
            case "nearest":
                return wire.encode(
                    [cell_messages.connection(one) for one in await self.nearest(*asked.parts)]
                )
            case "connect":
                return str(await self.connect(*asked.parts)).encode()
            case "begun":
                self.begun = True
            case _:
                self.progress_ms = monotonic_ms()
        self.told += asked.verb != "item"  # which waits for its commit
        if self.told > TOLD_FREELY:
            await asyncio.sleep(TOLD_PAUSE_S)  # one that talks without end must not take the loop from others
        return b""

    def _learn(self, requests: Mapping[str, int], probed: bool | None, reports: Mapping[str, Any]) -> None:
        """What the calls in the cell met. One in a sandbox can reach no service, and knows nothing of any."""
        if self.stage.sandbox:
            return
        try:
            for name in reports.keys() & MESSENGERS.keys():
                MESSENGERS[name].learn(reports[name], self.work)
        except (ValueError, TypeError) as error:
            raise Malformed(f"a report of calls that cannot be: {error}") from error
        made = self.work.requests  # it was handed those made before, and counted on
        made |= {name: max(count, made.get(name, 0)) for name, count in requests.items()}
        if len(made) > cell_messages.REQUESTS_MAX:
            raise Malformed(f"requests to more than {cell_messages.REQUESTS_MAX} services")
        self.work.probed = probed

    def _believed(self, error: PerdureError) -> PerdureError:
        """The error of a cell as far as it can know: not more of a service than its stage has to do with, not that an
        output is unreadable which it was not given, and not that the stage was never found when it has begun."""
        stage = self.stage
        if isinstance(error, DependencyDown) and not (error.name and error.name.isprintable()):
            return RemoteError(type(error).__name__, str(error))  # no name of a lane can be made of this
        strange = stage.sandbox or (isinstance(error, DependencyDown) and error.name not in stage.needs)
        if isinstance(error, DependencyDown) and stage.isolate and strange:
            error.confirmed = error.heard = error.unnamed = False
        unknown = isinstance(error, SavedUnreadable) and error.stage not in stage.reads
        if unknown or (isinstance(error, StageAbsent) and self.begun and not stage.isolate):
            return RemoteError(type(error).__name__, str(error))
        return error

    def _context(self) -> Context:
        stage, job = self.stage, self.job
        return Context(
            self, self.journey.document, stage.name, version=stage.version, attempt=job.attempts,
            generation=job.generation, input_hash=self.input_hash, is_async=stage.is_async,
            serves=self.runner.pipelines,
        )  # fmt: skip

    # --- the context's port ----------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """Of the items that this run may take up and saves."""
        return item_fingerprint(self.stage, self.input_hash)

    @property
    def revoked(self) -> bool:
        return self.over or self.journey.revoked

    def saved_items(self) -> Mapping[str, bytes]:
        return self.items

    async def keep(self, path: Path) -> str:
        digest, _ = await self.runner.blobs.put_file(path)
        return digest

    def progress(self, done: float, total: float | None) -> None:
        self.progress_ms = monotonic_ms()

    def save_item_sync(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        asyncio.run_coroutine_threadsafe(self.save_item(key, value, emitted), self.loop).result()

    async def save_item(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        """Durable when it returns; LeaseLost when the job is not ours any more."""
        if self.revoked:
            raise LeaseLost("the stage was given up")
        inline, blob = await keep(value, self.runner.blobs, OUTPUT_INLINE_BYTES_MAX)
        fingerprint = self.fingerprint
        item = ItemOutput(self.stage.name, key, fingerprint, len(value), inline, blob)
        stage = self.stage
        rows, spawned = told_apart(emitted)
        documents, jobs = await self.runner.spawn(self.journey, spawned)
        save = Save(
            self.job,
            stage.name,
            self.journey.lane,
            stage.lease_ms,
            suspect=self.job.suspect,
            ran=stage.name,
            fingerprint=fingerprint,
            items=(item,),
            rows=rows,
            documents=documents,
            jobs=jobs,
        )
        asked_ms = monotonic_ms()
        if not await self.runner.store.save(save):
            raise LeaseLost("the lease passed on")
        self.journey.progressed = True
        self.work.saved()
        self.progress_ms = monotonic_ms()
        self.runner.slate.renewed(self.journey.slot, asked_ms)

    def nearest_sync(self, threshold: float, each: int) -> list[Connection]:
        return asyncio.run_coroutine_threadsafe(self.nearest(threshold, each), self.loop).result()

    async def nearest(self, threshold: float, each: int) -> list[Connection]:
        job = self.job
        return await self.runner.store.nearest(job.org, job.document_id, threshold=threshold, each=each)

    def connect_sync(self, threshold: float, each: int) -> int:
        return asyncio.run_coroutine_threadsafe(self.connect(threshold, each), self.loop).result()

    async def connect(self, threshold: float, each: int) -> int:
        job = self.job
        return await self.runner.store.connect(job.org, job.document_id, threshold=threshold, each=each)

    async def _load_items(self) -> dict[str, bytes]:
        """What earlier claims saved of this stage; what cannot be read is simply not there."""
        job, stage = self.job, self.stage
        since = items_since(job, stage, stage.pipeline)
        names = (stage.name,) if stage.was is None else (stage.was, stage.name)
        loaded: dict[str, bytes] = {}
        for name in names:
            for item in await self.runner.store.items(
                job.org, job.document_id, job.pipeline, name, self.fingerprint, since
            ):
                if item.blob is None:
                    loaded[item.key] = item.inline or b""
                    continue
                try:
                    loaded[item.key] = await self.runner.blobs.get(item.blob)
                except (BlobMissing, BlobCorrupt):
                    loaded.pop(item.key, None)
        return loaded
