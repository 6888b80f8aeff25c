"""One claimed job, from its first unsaved stage to its outcome: skip what is saved, run the next stage, save, go on.

Stages never touch the store; the runner saves what they produced in one guarded transaction. Whatever happens, the job
is settled exactly once, or another worker owns it and we stop quietly.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from perdure.core.events import AttemptStarted, Events, StageHandedOver, StageSaved, StageSkipped, WriteFenced
from perdure.core.gathered import Gathered
from perdure.core.lane import is_large, sized, uses_of
from perdure.core.model import repairs
from perdure.core.naming import NAME, NAME_RULE
from perdure.core.outcome import (
    Crashed,
    Dead,
    Done,
    Failure,
    Finished,
    LaneDown,
    Orphaned,
    Outcome,
    Outgrown,
    Overdue,
    Raised,
    Result,
    Spawning,
    Stopped,
    Unserved,
    outcome,
    telling,
)
from perdure.engine import fallback, memory, rooms, saving
from perdure.engine.availability import Availability
from perdure.engine.content import bring_fetched, open_content, source_of
from perdure.engine.document import Document
from perdure.engine.execution import Execution, Ran
from perdure.engine.fetched import (
    attached,
    conditional,
    saved_raw,
)
from perdure.engine.gathering import gather, outdated
from perdure.engine.handing import hand_over
from perdure.engine.isolate import CellCrashed, CellDoubtful, CellOverdue, Nursery, NurseryLost, PreloadFailed
from perdure.engine.journey import Journey
from perdure.engine.keeper import monotonic_ms
from perdure.engine.notice import death_at
from perdure.engine.pipeline import AnyStage, Pipeline
from perdure.engine.recovery import publish_end
from perdure.engine.remote import RemoteStage
from perdure.engine.result import Spawn
from perdure.engine.slate import Slate
from perdure.engine.stage import Limits
from perdure.engine.stage_cell import LocalFile, SavedUnreadable
from perdure.engine.threads import Threads
from perdure.engine.wiring import GATHERED, PREVIOUS
from perdure.errors import (
    DependencyDown,
    InputInvalid,
    LeaseLost,
    PipelineInvalid,
    StoreError,
    Transient,
    Unstorable,
)
from perdure.settings import current, using
from perdure.store.base import Store
from perdure.store.blobs import BlobCorrupt, BlobMissing, Blobs
from perdure.store.indexing import has_many_chunks
from perdure.store.metering import traceparent_in
from perdure.store.operations import NewDocument, NewJob, Save, Settle, StageOutput
from perdure.store.records import Claimed, SavedStage


class Unreadable(Exception):
    """A saved output cannot be read; its stage runs again."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


class Runner:
    """Runs claimed jobs; knows the pipelines, the store and where user code may run."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        pipelines: Mapping[str, Pipeline],
        events: Events,
        nursery: Nursery,
        slate: Slate,
        limits: Limits = (None, None),
    ) -> None:
        """`limits`: of stages that have none of their own."""
        self.limits = limits
        self.store = store
        self.blobs = blobs
        self.pipelines = pipelines
        self.events = events
        self.slate = slate
        self.nursery = nursery
        self.threads = Threads()
        self.availability = Availability(store)
        self.slots = 1  # that its worker has; each may be a cell
        self.cells = True  # tests may want every stage in this process

    def begin(
        self, claimed: Claimed, slot: int, leave: Callable[[Journey], None], asked_ms: int = 0
    ) -> Journey:
        """A journey that has not set out yet; `leave` is told when its stages are through."""
        job = claimed.job
        document = Document(claimed.document, LocalFile(None))
        return Journey(
            job, document, slot, {}, monotonic_ms(), job.stage, job.lane, leave, asked_ms=asked_ms, probe=job.probe,
            passed=uses_of(job.lane), small=not is_large(job.lane),
        )  # fmt: skip

    async def run(self, journey: Journey, claimed: Claimed) -> None:
        """Until the job is settled, or not ours any more."""
        job = journey.job
        try:
            with using(current()):  # to ask the environment each time takes longer than most stages
                result = await self._travel(journey, claimed)
            if result is not None:
                await self._settle(journey, result)
        except LeaseLost:
            self.events.publish(
                WriteFenced(job.key, job.document_id, job.org, job.pipeline, job.attempts, journey.stage)
            )
        finally:
            journey.document.close()
            if journey.folder is not None:
                rooms.remove(journey.folder)
            if any(output.size >= memory.LARGE_BYTES for output in journey.outputs):
                journey.raws.clear()
                journey.loaded.clear()
            memory.give_back_if_grown()

    async def _travel(self, journey: Journey, claimed: Claimed) -> Result | None:
        """The result to be settled; None when the last save settled the job already."""
        job = journey.job
        pipeline = self.pipelines.get(job.pipeline)
        if pipeline is None:
            known = ", ".join(sorted(self.pipelines)) or "none"
            return Unserved(job.stage, f"no pipeline {job.pipeline!r} in this worker (it has {known})")
        where = (job.key, job.document_id, job.org, job.pipeline, job.attempts, job.stage)
        traceparent = traceparent_in(claimed.document.meta)
        self.events.publish(AttemptStarted(*where, job.generation, job.claims, job.resumed, traceparent))
        try:
            if job.resumed:
                saves = await self.store.saves(job.org, job.document_id, job.pipeline, job.generation)
                journey.saved = saving.usable(saves, job, pipeline)
                journey.earlier = saving.earlier(saves, job, pipeline)
                journey.degraded = saving.degraded(saves, job)
            if repairs(job.key) and await self.store.gathered(job, job.generation) is None:
                return Spawning(
                    job.stage
                )  # what was made from the fallback must not come after what it makes
            await open_content(journey, claimed.document, self.store, self.blobs, self.pipelines)
            while True:
                try:
                    return await self._stages(journey, pipeline)
                except Unreadable as unreadable:
                    self._disregard(journey, unreadable.stage)
        except asyncio.CancelledError:
            if journey.revoked:
                raise LeaseLost("the lease ran out") from None
            return self._stopped(journey)
        except LeaseLost:
            raise
        except Exception as error:
            return await self._failed(journey, pipeline, error)

    def _disregard(self, journey: Journey, stage: str) -> None:
        """Begin again without what is saved of this stage."""
        for output in journey.outputs:
            journey.saved[output.stage] = saving.as_saved(output, journey.job)
            journey.ignored.discard(output.stage)
        journey.ignored.add(stage)
        journey.raws.pop(stage, None)
        journey.hashes.clear()

    async def _bring(self, journey: Journey, stage: AnyStage, raws: Mapping[str, bytes]) -> None:
        """Bring what was fetched within reach of a stage that reads it."""
        if (source := source_of(stage)) is not None:
            try:
                await bring_fetched(journey, source, raws[source.name], self.blobs)
            except (BlobMissing, BlobCorrupt, InputInvalid):
                raise self._unreadable(journey, source.name) from None

    async def _stages(self, journey: Journey, pipeline: Pipeline) -> Result | None:
        job = journey.job
        for number, stage in enumerate(pipeline.stages):
            away: DependencyDown | None = None
            journey.stage, journey.lane = stage.name, fallback.lane(stage, job)
            input_hash = saving.input_hash(journey.document, job, stage, journey.hashes)
            found = journey.saved.get(stage.name)
            if (
                found
                and stage.name not in journey.ignored
                and saving.matches(found, stage, input_hash)
                and not await self._outdated(journey, stage)
            ):
                journey.hashes[stage.name] = found.output_hash
                self.events.publish(
                    StageSkipped(job.key, job.document_id, job.org, job.pipeline, job.attempts, stage.name)
                )
                continue
            if stage.needs or journey.outgrown:
                reached = await self.availability.out_of_reach(journey, stage)
                if isinstance(reached, LaneDown | Outgrown):
                    return reached
                away = reached
            if journey.stopping:
                return self._stopped(journey)
            if isinstance(stage, RemoteStage):
                await self._hand_over(journey, stage, input_hash)
                return None
            if stage.gathers:
                journey.gathered = await self._gather(journey, stage)
                if journey.gathered is None:
                    return Spawning(stage.name)
            following = pipeline.stages[number + 1] if number + 1 < len(pipeline.stages) else None
            await self._step(journey, stage, input_hash, following, away)
            if journey.outputs[-1].size >= memory.LARGE_BYTES:
                after = pipeline.stages[number + 1 :]
                wanted = {name for later in after for name in (*later.reads, *(later.gathers_if or ())[:1])}
                for name in journey.raws.keys() - wanted:
                    del journey.raws[name]
                memory.give_back()
        if journey.settled:
            return None
        await self._check_kept(journey, journey.outputs)
        return Finished()

    async def _outdated(self, journey: Journey, stage: AnyStage) -> bool:
        if not stage.gathers or not await self._gathers(journey, stage):
            return False
        return await outdated(self.store, journey, stage, self.pipelines)

    async def _gather(self, journey: Journey, stage: AnyStage) -> Gathered | None:
        if not await self._gathers(journey, stage):
            return Gathered({}, {})
        return await gather(self.store, journey, stage, self.pipelines)

    async def _gathers(self, journey: Journey, stage: AnyStage) -> bool:
        """Whether the stage has to wait for what the document spawned."""
        if stage.gathers_if is None:
            return True
        name, holds = stage.gathers_if
        earlier = stage.pipeline.at(name)
        if journey.document.kind != "url" or earlier is None:
            return False
        try:
            return holds(earlier.codec.decode(await self._raw(journey, name)))
        except InputInvalid:
            raise self._unreadable(journey, name) from None

    async def _hand_over(self, journey: Journey, stage: RemoteStage, input_hash: str) -> None:
        """From here on another service has the job; its answer brings it back."""
        raws = {name: await self._raw(journey, name) for name in stage.sources}
        handing = hand_over(journey, stage, input_hash, raws)
        journey.leave(journey)
        if not await self.store.hand_over(handing):
            raise LeaseLost("the lease passed on")
        job = journey.job
        where = (job.key, job.document_id, job.org, job.pipeline, job.attempts, stage.name)
        self.events.publish(StageHandedOver(*where, stage.event))

    async def _inputs(self, journey: Journey, stage: AnyStage) -> dict[str, bytes]:
        """The saved outputs that the stage reads, its own of an earlier generation, and the ends of spawned jobs."""
        raws = {name: journey.raws.get(name) or await self._raw(journey, name) for name in stage.reads}
        before = journey.earlier.get(stage.name) if stage.wants_previous else None
        if before is not None and await conditional(before, stage, self.blobs):
            with suppress(Unreadable):
                raws[PREVIOUS] = await self._load(before, stage.name)
        if stage.gathers:
            raws[GATHERED] = json.dumps(asdict(journey.gathered)).encode() if journey.gathered else b"null"
        return raws

    async def _step(
        self,
        journey: Journey,
        stage: AnyStage,
        input_hash: str,
        following: AnyStage | None,
        away: DependencyDown | None = None,
    ) -> None:
        """Run one stage, or its fallback if what it needs is `away`, and save it; the last one is saved and settled
        in one."""
        journey.stage_started_ms = monotonic_ms()
        raws = await self._inputs(journey, stage)
        await self._bring(journey, stage, raws)
        ran, fell_back = await self._ran(journey, stage, input_hash, raws, away)
        duration_ms = monotonic_ms() - journey.stage_started_ms
        save, output = await self._save(journey, stage, input_hash, following, ran, fell_back, duration_ms)
        if not await self._write(journey, save, output, following):
            raise LeaseLost("the lease passed on")
        journey.moved(save)
        await self.availability.probed(journey, saved=True)
        journey.progressed, journey.settled = True, following is None
        journey.hashes[stage.name] = output.output_hash
        journey.raws[stage.name] = ran.produced.output
        if ran.loaded is not None:
            journey.loaded = {stage.name: ran.loaded[0]}
        journey.outputs.append(output)
        job = save.job
        where = (job.key, job.document_id, job.org, job.pipeline, job.attempts, stage.name)
        size, rerun = journey.document.size, journey.rerun(stage.name)
        self.events.publish(StageSaved(*where, duration_ms, size, rerun))
        if following is None:
            duration_ms = monotonic_ms() - journey.started_ms
            publish_end(self.events, job, Done(), stage.name, duration_ms, journey.document.collection)

    async def _save(
        self, journey: Journey, stage: AnyStage, input_hash: str, following: AnyStage | None, ran: Ran, fell_back: bool,
        duration_ms: int,
    ) -> tuple[Save, StageOutput]:  # fmt: skip
        """All that the stage produced, ready to be written in one transaction."""
        job, made = journey.job, ran.produced
        content = attached(stage, made.output)
        output = await saving.stage_output(
            stage, made.output, input_hash, duration_ms, self.blobs, fell_back or made.degraded, content
        )
        if 0 < current().large_bytes <= output.size:
            job = journey.job = replace(job, lane=sized(job.lane, True))
            journey.outgrown = content is not None and journey.small and not job.suspect
        rows, spawned = saving.told_apart(ran.emitted)
        rows += made.rows
        documents, jobs = await self.spawn(journey, spawned + made.spawn)
        if fell_back:
            jobs += (saving.repair(job, stage),)
        next_stage = following or stage
        # it marks the rows, or tells apart those that an earlier claim left
        marked = rows or job.resumed
        return Save(
            job, next_stage.name, fallback.lane(next_stage, job), next_stage.lease_ms, suspect=job.crashes > 0,
            ran=stage.name, fingerprint=saving.item_fingerprint(stage, input_hash) if marked else "", output=output,
            repairs=repairs(job.key) and stage.name in journey.degraded, rows=rows, documents=documents, jobs=jobs,
            sql=made.sql, chunks=made.chunks, connections=made.connections,
            frees=job.limit_key is not None and not stage.pipeline.limited(next_stage),
        ), output  # fmt: skip

    async def _write(
        self, journey: Journey, save: Save, output: StageOutput, following: AnyStage | None
    ) -> bool:
        """Save the stage, and settle the job if it was the last one; whether the job is still ours."""
        if following is None:
            await self._check_kept(journey, [*journey.outputs, output])
            if not has_many_chunks(save):  # else the slot is taken until the chunks are written
                journey.leave(journey)
            return await self.store.settle(journey.settle(Done(), save))
        asked_ms = monotonic_ms()
        try:
            kept = await self.store.save(save)
        except asyncio.CancelledError:
            # it is on its way, and written before whatever ends the claim
            journey.stage, journey.lane = save.stage, save.lane
            raise
        self.slate.renewed(journey.slot, asked_ms)
        return kept

    async def _check_kept(self, journey: Journey, made: Sequence[StageOutput]) -> None:
        """No document is done with an output that cannot be read: what is gone is made again, once in a claim."""
        saved = {name: save for name, save in journey.saved.items() if name not in journey.ignored}
        for name in await saving.lost(made, saved, self.blobs):
            if any(one.stage == name for one in made) or self._answered(journey, name):
                raise _lost(name)
            raise Unreadable(name)

    def _unreadable(self, journey: Journey, name: str) -> Exception:
        """The error for a saved output that cannot be read: its stage runs again, unless this very claim saved it."""
        return _lost(name) if any(made.stage == name for made in journey.outputs) else Unreadable(name)

    async def _ran(
        self,
        journey: Journey,
        stage: AnyStage,
        input_hash: str,
        raws: Mapping[str, bytes],
        away: DependencyDown | None,
    ) -> tuple[Ran, bool]:
        """What the stage gave, or its fallback, and whether it was that."""
        try:
            if away is not None:
                raise away
            return await Execution(self, journey, stage, input_hash, raws).run(), False
        except SavedUnreadable as unreadable:
            if any(made.stage == unreadable.stage for made in journey.outputs):
                raise  # saved by this very claim: to run it again would change nothing
            if self._answered(journey, unreadable.stage):
                raise  # nor would to ask a service again, and it is asked at no one's cost
            raise Unreadable(unreadable.stage) from None
        except Exception as error:
            if not fallback.degrades(stage, journey.job, error):
                raise
            if isinstance(told := telling(error), DependencyDown) and NAME.fullmatch(told.name):
                # or nobody would know that the service is away
                await self.availability.held(journey, stage, told)
                journey.lane = stage.lane
            self.slate.start(journey.slot, 0, stage.lease_ms)
            try:
                return await fallback.stand_in(
                    self.threads, journey, stage, raws, error, stage.limits(self.limits)[0]
                ), True
            finally:
                self.slate.pause(journey.slot)

    def _answered(self, journey: Journey, name: str) -> bool:
        """Whether a service gave this output to the present generation."""
        stage = self.pipelines[journey.job.pipeline].at(name)
        return isinstance(stage, RemoteStage) and journey.saved[name].generation == journey.job.generation

    async def spawn(
        self, journey: Journey, spawned: Sequence[Spawn]
    ) -> tuple[tuple[NewDocument, ...], tuple[NewJob, ...]]:
        """What a stage spawned, ready to be written with a save."""
        if not spawned:
            return (), ()
        collection = journey.document.collection
        return await saving.children(spawned, journey.job, collection, self.pipelines, self.blobs)

    async def _raw(self, journey: Journey, name: str) -> bytes:
        """The saved output of an earlier stage."""
        if name in journey.raws:
            return journey.raws[name]
        raw = journey.raws[name] = await self._load(journey.saved[name], name)
        return raw

    async def _load(self, save: SavedStage, name: str) -> bytes:
        try:
            raw = await saved_raw(save, self.blobs)
        except (BlobMissing, BlobCorrupt):
            raise Unreadable(name) from None
        if raw is None:
            raise Unreadable(name)
        return raw

    # --- endings ---------------------------------------------------------------------------------

    def _stopped(self, journey: Journey) -> Stopped:
        age_ms = monotonic_ms() - (journey.stage_started_ms or journey.started_ms)
        return Stopped(journey.stage, journey.progressed, age_ms)

    async def _failed(self, journey: Journey, pipeline: Pipeline, error: Exception) -> Result:
        """The result that an exception stands for."""
        stage = pipeline.at(journey.stage)
        policy = stage.policy(journey.job) if stage is not None else None
        match error:
            case CellCrashed():
                return Crashed(journey.stage, error.reason, str(error), policy)
            case CellOverdue() if journey.probe is not None:  # it waited for what is still away
                await self.availability.probed(journey, saved=False, down=journey.probe)
                return LaneDown(journey.stage, journey.lane)
            case CellOverdue():
                return Overdue(journey.stage, str(error.code), str(error), policy, alone=journey.alone)
            case CellDoubtful():
                return Orphaned(journey.stage, str(error))
            case NurseryLost():
                return Orphaned(journey.stage, str(error), blame=False)
            case PreloadFailed():  # a broken installation is nobody's attempt; another worker may do better
                return Unserved(journey.stage, str(error))
        told, held = telling(error), False
        if isinstance(told, DependencyDown) and not NAME.fullmatch(told.name):
            words = f"DependencyDown names {told.name!r}: the name of a dependency must be {NAME_RULE}"
            error = told = PipelineInvalid(words)
        await self.availability.probed(
            journey, saved=False, down=told.name if isinstance(told, DependencyDown) else None
        )
        if isinstance(told, DependencyDown):
            held = await self.availability.held(journey, stage, told)
        return Raised(journey.stage, error, held, policy, journey.progressed)

    async def _settle(self, journey: Journey, result: Result) -> None:
        ending = outcome(journey.job, result)
        journey.leave(journey)
        try:
            kept = await self.store.settle(self._ended(journey, ending))
        except Unstorable as error:
            ending = _unstorable(journey, error)
            kept = await self.store.settle(self._ended(journey, ending))
        if not kept:
            raise LeaseLost("the lease passed on")
        duration_ms = monotonic_ms() - journey.started_ms
        collection = journey.document.collection
        publish_end(self.events, journey.job, ending, journey.stage, duration_ms, collection)

    def _ended(self, journey: Journey, ending: Outcome) -> Settle:
        """The end of the claim; a death at a remote stage is told to other services, too."""
        settle, pipeline = journey.settle(ending), self.pipelines.get(journey.job.pipeline)
        stage = None if pipeline is None else pipeline.at(journey.stage)
        if not isinstance(stage, RemoteStage):
            return settle
        collection = journey.document.collection
        return replace(settle, events=death_at(journey.job, ending, stage.name, stage.failed, collection))


def _unstorable(journey: Journey, error: StoreError) -> Outcome:
    failure = Failure(journey.stage, "Unstorable", "unstorable", str(error)[:500])
    return Dead(failure, "what it ended with cannot be stored", crashes=journey.job.crashes)


def _lost(name: str) -> Transient:
    message = f"the output of {name} is not where it was put; check the place of the blobs"
    return Transient(message, code="output_lost")
