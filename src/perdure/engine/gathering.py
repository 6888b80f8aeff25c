"""What became of all that a document spawned, for the stage that gathers it.

Stages that an earlier generation saved are taken up, and with them the jobs that they spawned. So the outcomes of these
count, too; and what did not end well is tried again, once in each generation, before anything is gathered.
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
from perdure.store.operations import Save


async def gather(
    store: Store, journey: Journey, stage: AnyStage, pipelines: Mapping[str, Pipeline]
) -> Gathered | None:
    """What there is to gather before this stage; None while some of it has not ended."""
    job, since = journey.job, _since(journey, pipelines[journey.job.pipeline], stage)
    found = await store.gathered(job, since)
    if found is None or since == job.generation:
        return found
    failed = await store.jobs_failed(job, since)
    ours = await store.gathered(job, job.generation)
    tried = ours.jobs if ours is not None else {}
    again = tuple(
        replace(first_job(pipelines[pipeline]), name=name, input=input)
        for name, (pipeline, input) in failed.items()
        if name not in tried and found.jobs.get(name) != "done" and pipeline in pipelines
    )
    if not again:
        return found
    lane = fallback.lane(stage, job)
    if not await store.save(Save(job, stage.name, lane, stage.lease_ms, suspect=job.crashes > 0, jobs=again)):
        raise LeaseLost("the lease passed on")
    return None


def _since(journey: Journey, pipeline: Pipeline, stage: AnyStage) -> int:
    """The oldest generation of which a stage before this one was taken up."""
    before = {one.name for one in pipeline.stages[: pipeline.stages.index(stage)]}
    taken = before - {made.stage for made in journey.outputs}
    generations = (journey.saved[name].generation for name in taken if name in journey.saved)
    return min(generations, default=journey.job.generation)
