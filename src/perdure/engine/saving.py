"""What is saved and when it counts: a saved stage is taken up if version, model and input are the same.

input hash = content of the document, input of the job, outputs of the stages it reads
fingerprint of items = stage, version, model, input hash
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perdure.core.fingerprint import digest
from perdure.core.lane import lane_of
from perdure.core.model import ONLY, REPAIR, Job, repairs
from perdure.engine.address import find_pipeline
from perdure.engine.document import Document
from perdure.engine.fetched import Attached
from perdure.engine.intake import OUTPUT_INLINE_BYTES_MAX, first_job, keep, with_limit
from perdure.engine.pipeline import AnyStage, Pipeline
from perdure.engine.result import Emitted, Spawn, SpawnDocument
from perdure.errors import Permanent
from perdure.store.blobs import Blobs
from perdure.store.operations import EmittedRow, NewDocument, NewJob, StageOutput
from perdure.store.records import SavedStage
from perdure.store.text import checked

#: A repair is more patient than the document it repairs.
REPAIR_ATTEMPTS, REPAIR_CAP_MS, REPAIR_DELAY_MS = 10, 3_600_000, 1_000


def usable(saves: Iterable[SavedStage], job: Job, pipeline: Pipeline) -> dict[str, SavedStage]:
    """The newest save of each of the pipeline's stages that this generation may take up, under its present name."""
    # a follow-up starts again in each generation of its document; a repair goes on from its document's saves
    fresh = "/" in job.key and not repairs(job.key)
    newest: dict[str, SavedStage] = {}
    for save in saves:
        if save.generation > job.generation:
            continue  # a follow-up may be the last that is left of its generation
        if save.stage not in newest or save.generation >= newest[save.stage].generation:
            newest[save.stage] = save
    found: dict[str, SavedStage] = {}
    for stage in pipeline.stages:
        begins, only = begins_fresh(job, stage)
        named = _named(newest, stage)
        latest = max((save.generation for save in named), default=0)
        known = _newest(s for s in named if s.generation == latest and not _to_be_repaired(s, job))
        if known is not None and (not (fresh or begins) or known.generation == job.generation):
            found[stage.name] = known
        fresh = fresh or (begins and not only)
    return found


def _to_be_repaired(save: SavedStage, job: Job) -> bool:
    """Whether a fallback made it, and this job is to do without."""
    return save.degraded and (repairs(job.key) or save.generation < job.generation)


def earlier(saves: Iterable[SavedStage], job: Job, pipeline: Pipeline) -> dict[str, SavedStage]:
    """The newest save that an earlier generation left of each stage, whatever it was made from."""
    before = [save for save in saves if save.generation < job.generation]
    newest = {save.stage: save for save in sorted(before, key=lambda save: save.generation)}
    found = {stage.name: _newest(_named(newest, stage)) for stage in pipeline.stages}
    return {name: save for name, save in found.items() if save is not None}


def _named(saves: Mapping[str, SavedStage], stage: AnyStage) -> list[SavedStage]:
    """The saves of a stage: under its name, then under its former one."""
    return [saves[name] for name in (stage.name, stage.was or "") if name in saves]


def _newest(saves: Iterable[SavedStage]) -> SavedStage | None:
    """The save of the latest generation: a worker of the older release may have made it, under the former name."""
    return max(saves, key=lambda save: save.generation, default=None)


def degraded(saves: Iterable[SavedStage], job: Job) -> frozenset[str]:
    """Stages that fell back in this generation."""
    return frozenset(save.stage for save in saves if save.degraded and save.generation == job.generation)


def begins_fresh(job: Job, stage: AnyStage) -> tuple[bool, bool]:
    """Whether this generation is to run the stage anew, and whether only this one."""
    named, only = (job.fresh_from or "").removesuffix(ONLY), (job.fresh_from or "").endswith(ONLY)
    return bool(named) and named in (stage.name, stage.was), only


def items_since(job: Job, stage: AnyStage, pipeline: Pipeline) -> int:
    """The oldest generation whose items this run of the stage may take up."""
    for other in pipeline.stages:
        begins, only = begins_fresh(job, other)
        if "/" in job.key or (begins and (other is stage or not only)):
            return job.generation
        if other is stage:
            break
    return 1


def matches(save: SavedStage, stage: AnyStage, input_hash: str) -> bool:
    """Whether the save was made by this code, this model and from this input."""
    return (save.version, save.input_hash, save.model) == (stage.version, input_hash, stage.model_name())


def input_hash(document: Document, job: Job, stage: AnyStage, hashes: Mapping[str, str]) -> str:
    """What the stage works on."""
    return digest(document.content_hash, job.input, *[hashes[name] for name in stage.sources])


def item_fingerprint(stage: AnyStage, input_hash: str) -> str:
    """Items are taken up only by the same code, model and input."""
    return digest(stage.version, stage.model_name(), input_hash)


async def stage_output(
    stage: AnyStage, output: bytes, input_hash: str, duration_ms: int, blobs: Blobs, degraded: bool = False,
    attached: Attached | None = None,
) -> StageOutput:  # fmt: skip
    """The output as the store takes it; a large one is a blob by the time this returns. One that names a blob is in its
    row, however long it is, with the name of the blob."""
    size = len(output)
    inline, blob = await keep(output, blobs, OUTPUT_INLINE_BYTES_MAX if attached is None else size)
    digest = blob or hashlib.sha256(output).hexdigest()  # to hash a large one again would hold the loop
    if attached is not None:
        blob, size = attached.blob, size + attached.size
    return StageOutput(
        stage.name,
        stage.version,
        input_hash,
        digest,
        size,
        inline,
        blob,
        stage.model_name(),
        duration_ms,
        degraded,
    )


async def lost(outputs: Sequence[StageOutput], saved: Mapping[str, SavedStage], blobs: Blobs) -> list[str]:
    """Of what a document ends with, the stages whose output is a blob that readers would not find."""
    named = {save_of: save.blob for save_of, save in saved.items()} | {one.stage: one.blob for one in outputs}
    return [stage for stage, blob in named.items() if blob is not None and not await blobs.exists(blob)]


def as_saved(output: StageOutput, job: Job) -> SavedStage:
    """What was just saved, as it would be read back."""
    o = output
    return SavedStage(
        o.stage, job.generation, o.version, o.input_hash, o.output_hash, o.inline, o.blob, o.model, 0, o.duration_ms,
        o.size, o.degraded,
    )  # fmt: skip


def told_apart(emitted: Sequence[Emitted]) -> tuple[tuple[EmittedRow, ...], tuple[Spawn, ...]]:
    """Rows, and what is spawned."""
    rows = tuple(one for one in emitted if isinstance(one, EmittedRow))
    return rows, tuple(one for one in emitted if not isinstance(one, EmittedRow))


def repair(job: Job, stage: AnyStage) -> NewJob:
    """A follow-up that runs the stage, and what depends on it, again; held while a service that it needs is down."""
    policy = replace(stage.policy(job), attempts=REPAIR_ATTEMPTS, cap_ms=REPAIR_CAP_MS, pinned=True, hooks=())
    return NewJob(
        job.pipeline, job.queue, stage.name, lane_of(stage.needs), name=f"{REPAIR}{job.pipeline}",
        delay_ms=REPAIR_DELAY_MS, policy=policy, input=job.input, lease_ms=stage.lease_ms,
    )  # fmt: skip


async def children(
    spawned: Sequence[Spawn], job: Job, collection: str, pipelines: Mapping[str, Pipeline], blobs: Blobs
) -> tuple[tuple[NewDocument, ...], tuple[NewJob, ...]]:
    """What a stage spawned, ready to be written with its save."""
    documents: list[NewDocument] = []
    jobs: list[NewJob] = []
    for spawn in spawned:
        pipeline = pipelines.get(spawn.pipeline) or find_pipeline(spawn.pipeline, spawn.module)
        whose = (spawn.collection or collection) if isinstance(spawn, SpawnDocument) else ""
        new = first_job(pipeline, pipeline.policy_of(whose))
        if not isinstance(spawn, SpawnDocument):
            if any(other.name == spawn.name for other in jobs):
                raise Permanent("spawn_repeated", f"a stage spawned two {spawn.name} jobs of one document")
            jobs.append(replace(new, name=spawn.name, input=spawn.input))
            continue
        inline, blob = await keep(spawn.content, blobs)
        document = NewDocument(
            id=spawn.document_id(job.document_id), org=job.org, job=new, collection=spawn.collection or collection,
            kind=spawn.kind, name=checked(spawn.name, "the name of a child document"),
            content_hash=hashlib.sha256(spawn.content).hexdigest(), size=len(spawn.content), inline=inline, blob=blob,
            meta=spawn.meta, parent_id=job.document_id, refresh=spawn.refresh,
        )  # fmt: skip
        documents.append(with_limit(document, pipeline))
    return tuple(documents), tuple(jobs)
