"""One run of one stage: in the event loop, a thread, or a cell of its own; within its time, while the job is ours.

A stage in a cell can be killed. One in the loop or a thread that is overdue or not ours any more is abandoned: it may
go on, but nothing it does is accepted.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.engine.context import Context
from perdure.engine.intake import keep
from perdure.engine.isolate import CellOverdue, Limits
from perdure.engine.keeper import monotonic_ms
from perdure.engine.pipeline import AnyStage
from perdure.engine.result import Produced
from perdure.engine.saving import item_fingerprint, items_since
from perdure.engine.stage_cell import TARGET, Assignment, conclude, load
from perdure.errors import LeaseLost, PerdureError
from perdure.store.operations import EmittedRow, ItemOutput, Save

if TYPE_CHECKING:
    from perdure.engine.runner import Journey, Runner

#: How much later than the stage's own timeout the keeper ends a worker whose loop stands still.
FORCE_MS = 2_000
LOOK_S = 0.25


class Revoked(Exception):
    """The job is not ours any more."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run gave: the produced output and the rows emitted on the way."""

    produced: Produced
    rows: list[EmittedRow]


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
        self.items: dict[str, bytes] = {}
        self.over = False
        self.loop = asyncio.get_running_loop()
        self.progress_ms = monotonic_ms()

    async def run(self) -> Ran:
        """What the stage produced, or whatever it raised; Revoked, CellOverdue, CellCrashed."""
        job, stage = self.job, self.stage
        self.items = await self._load_items() if job.resumed else {}
        # what was typed at a prompt can be found by no other process: there even a suspect runs here
        isolated = stage.isolate or (job.suspect and stage.pipeline.module is not None)
        deadline_ms = 0
        if stage.timeout is not None and not isolated:
            deadline_ms = monotonic_ms() + int(stage.timeout * 1000) + FORCE_MS
        self.runner.slate.start(self.journey.slot, deadline_ms, stage.lease_ms)
        try:
            work = self._in_cell() if isolated else self._here()
            return await self._watched(work, limited=not isolated)
        finally:
            self.over = True
            self.runner.slate.pause(self.journey.slot)

    async def _watched(self, work: Awaitable[Ran], limited: bool) -> Ran:
        """Await the work while the job is ours and, where nobody else looks after that, within its time."""
        task = asyncio.ensure_future(work)
        revoked = asyncio.ensure_future(self.journey.revoked.wait())
        began_ms = monotonic_ms()
        try:
            while not task.done():
                look_s = LOOK_S if limited and (self.stage.timeout or self.stage.stall) else None
                await asyncio.wait({task, revoked}, timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
                if revoked.done():
                    raise Revoked
                if limited and not task.done():
                    self._check_time(began_ms)
            return task.result()
        finally:
            revoked.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1.0)
            if task.done() and not task.cancelled():
                task.exception()

    def _check_time(self, began_ms: int) -> None:
        now_ms = monotonic_ms()
        timeout, stall = self.stage.timeout, self.stage.stall
        if timeout is not None and now_ms - began_ms > timeout * 1000:
            raise CellOverdue("stage_timeout", f"stage {self.stage.name} ran longer than {timeout:g} s")
        if stall is not None and now_ms - self.progress_ms > stall * 1000:
            raise CellOverdue("no_progress", f"stage {self.stage.name} showed no progress for {stall:g} s")

    # --- where the code runs ---------------------------------------------------------------------

    async def _here(self) -> Ran:
        stage, document = self.stage, self.journey.document
        context = self._context()
        values = load(stage, self.raws)
        arguments = stage.arguments(document, context, values, self.job.input)

        def finish(returned: Any) -> Ran:
            produced, rows, _ = conclude(stage, document, context, values, returned)
            return Ran(produced, rows)

        if stage.is_async:
            return finish(await stage.fn(**arguments))
        ran: Ran = await self.runner.threads.run(lambda: finish(stage.fn(**arguments)))
        return ran

    async def _in_cell(self) -> Ran:
        stage, journey = self.stage, self.journey
        work = Assignment(
            stage.target, journey.document.to_payload(), str(journey.file) if journey.file else None, dict(self.raws),
            self.job.input, self.items, self.job.attempts, self.job.generation, self.input_hash,
        )  # fmt: skip
        limits = Limits(stage.memory_mb << 20, stage.cpu_s, stage.timeout, stage.stall)
        answer = await self.runner.nursery.run(TARGET, pickle.dumps(work), self._asked, limits)
        produced, rows = pickle.loads(answer)
        return Ran(produced, rows)

    async def _asked(self, message: bytes) -> bytes:
        """A cell saves an item or tells of progress."""
        verb, key, value, rows = pickle.loads(message)
        if verb == "item":
            await self.save_item(key, value, rows)
        else:
            self.progress_ms = monotonic_ms()
        return b""

    def _context(self) -> Context:
        stage, job = self.stage, self.job
        return Context(
            self, self.journey.document, stage.name, version=stage.version, attempt=job.attempts,
            generation=job.generation, input_hash=self.input_hash, is_async=stage.is_async,
        )  # fmt: skip

    # --- the context's port ----------------------------------------------------------------------

    @property
    def revoked(self) -> bool:
        return self.over or self.journey.revoked.is_set()

    def saved_items(self) -> Mapping[str, bytes]:
        return self.items

    def progress(self, done: float, total: float | None) -> None:
        self.progress_ms = monotonic_ms()

    def save_item_sync(self, key: str, value: bytes, rows: list[EmittedRow]) -> None:
        asyncio.run_coroutine_threadsafe(self.save_item(key, value, rows), self.loop).result()

    async def save_item(self, key: str, value: bytes, rows: list[EmittedRow]) -> None:
        """Durable when it returns; LeaseLost when the job is not ours any more."""
        if self.revoked:
            raise LeaseLost("the stage was given up")
        inline, blob = await keep(value, self.runner.blobs)
        fingerprint = item_fingerprint(self.stage, self.input_hash)
        item = ItemOutput(self.stage.name, key, fingerprint, len(value), inline, blob)
        stage = self.stage
        save = Save(
            self.job,
            stage.name,
            stage.lane,
            stage.lease_ms,
            suspect=self.job.suspect,
            items=(item,),
            rows=tuple(rows),
        )
        if not await self.runner.store.save(save):
            raise LeaseLost("the lease passed on")
        self.journey.progressed = True
        self.progress_ms = monotonic_ms()
        self.runner.slate.renewed(self.journey.slot, self.progress_ms)

    async def _load_items(self) -> dict[str, bytes]:
        """What earlier claims saved of this stage; what cannot be read is simply not there."""
        job, stage = self.job, self.stage
        since = items_since(job, stage, stage.pipeline)
        fingerprint = item_fingerprint(stage, self.input_hash)
        loaded: dict[str, bytes] = {}
        for item in await self.runner.store.items(
            job.org, job.document_id, job.pipeline, stage.name, fingerprint, since
        ):
            if item.blob is None:
                loaded[item.key] = item.inline or b""
                continue
            try:
                loaded[item.key] = await self.runner.blobs.get(item.blob)
            except PerdureError:
                loaded.pop(item.key, None)
        return loaded
