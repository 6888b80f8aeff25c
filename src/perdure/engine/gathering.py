"""What became of all that a document spawned, for the stage that gathers it.

Stages that an earlier generation saved are taken up, and with them the jobs that they spawned. So the outcomes of these
count, too; and what did not end well, or could not be repaired, is tried again, once in each generation, before
anything is gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perdure.core.gathered import Gathered
from perdure.engine import fallback
from perdure.engine.intake import first_job
from perdure.engine.journey import Journey
from perdure.engine.pipeline import AnyStage, Pipeline
from perdure.errors import LeaseLost
from perdure.store.base import Store
from perdure.store.operations import NewJob, Save


async def gather(
    store: Store, journey: Journey, stage: AnyStage, pipelines: Mapping[str, Pipeline]
) -> Gathered | None:
    """What there is to gather before this stage; None while some of it has not ended."""
    job = journey.job
    found = await store.gathered(job, _since(journey, stage))
    again = () if found is None else await _again(store, journey, stage, pipelines)
    if not again:
        return found
    lane = fallback.lane(stage, job)
    if not await store.save(Save(job, stage.name, lane, stage.lease_ms, suspect=job.crashes > 0, jobs=again)):
        raise LeaseLost("the lease passed on")
    return None


async def outdated(
    store: Store, journey: Journey, stage: AnyStage, pipelines: Mapping[str, Pipeline]
) -> bool:
    """Whether a saved stage gathered for an earlier generation what is something else by now, or will be."""
    job = journey.job
    if not stage.gathers or journey.saved[stage.name].generation == job.generation:
        return False
    ours = await store.gathered(job, job.generation)
    return ours is None or bool(ours.jobs or await _again(store, journey, stage, pipelines))


async def _again(
    store: Store, journey: Journey, stage: AnyStage, pipelines: Mapping[str, Pipeline]
) -> tuple[NewJob, ...]:
    """The jobs that are to be tried again, once in a generation."""
    since = _since(journey, stage)
    if since == journey.job.generation:
        return ()
    failed = await store.jobs_failed(journey.job, since)
    known = [
        (name, pipelines[pipeline], input)
        for name, (pipeline, input) in failed.items()
        if pipeline in pipelines
    ]
    # one that spawns others comes before them: it gathers only what came after it
    ordered = sorted(known, key=lambda one: not one[1].then)
    return tuple(replace(first_job(pipeline), name=name, input=input) for name, pipeline, input in ordered)


def _since(journey: Journey, stage: AnyStage) -> int:
    """The oldest generation of which a stage before this one was taken up."""
    stages = stage.pipeline.stages
    before = {one.name for one in stages[: stages.index(stage)]}
    taken = before - {made.stage for made in journey.outputs}
    generations = (journey.saved[name].generation for name in taken if name in journey.saved)
    return min(generations, default=journey.job.generation)
