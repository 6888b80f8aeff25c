"""What stands in for a stage whose service is away, and the lane of one that may not fall back.

A stage with a fallback never holds its document. The job that repairs what it gave is held as any other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.core.lane import lane_of
from perdure.core.model import Job, repairs
from perdure.core.outcome import CRASHES_MAX, describe, telling
from perdure.engine.execution import Ran
from perdure.engine.isolate import CellCrashed, CellDoubtful, CellOverdue, NurseryLost, PreloadFailed
from perdure.engine.stage_cell import conclude, load
from perdure.errors import (
    CallRefused,
    DependencyDown,
    LeaseLost,
    Permanent,
    RateLimited,
    Rescheduled,
    RetryLater,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.engine.journey import Journey
    from perdure.engine.pipeline import AnyStage
    from perdure.engine.threads import Threads

#: Nothing that a fallback could help with.
_OTHERS = (CellCrashed, CellDoubtful, NurseryLost, PreloadFailed, LeaseLost, StoreError, Permanent)


def lane(stage: AnyStage, job: Job) -> str:
    """Where the job waits for the stage."""
    return lane_of(stage.needs) if repairs(job.key) else stage.lane


def falls_back(stage: AnyStage, job: Job) -> bool:
    """Whether the stage has a fallback that this job may use."""
    return stage.substitute is not None and not repairs(job.key)


def degrades(stage: AnyStage, job: Job, error: Exception) -> bool:
    """Whether the fallback is to stand in: the service is down, refused or gave up on, or this was the last attempt."""
    if not falls_back(stage, job):
        return False
    told = telling(error)
    if isinstance(told, DependencyDown | Rescheduled | CallRefused):
        return True
    if isinstance(error, _OTHERS) or isinstance(told, RateLimited | RetryLater | Permanent):
        return False
    if isinstance(told, CellOverdue) and job.suspect and job.crashes + 1 >= CRASHES_MAX:
        return True  # it would be quarantined
    attempts_max = min(stage.policy(job).attempts, job.attempts_max)
    return job.attempts >= attempts_max


async def stand_in(
    threads: Threads,
    journey: Journey,
    stage: AnyStage,
    raws: Mapping[str, bytes],
    error: Exception,
    timeout: float | None,
) -> Ran:
    """What the fallback gives within `timeout` seconds; whatever it raises is the stage's failure."""
    assert stage.substitute is not None
    document, failure = journey.document, describe(stage.name, telling(error))
    values = load(stage, raws, {})
    call = stage.stand_in(document, values, journey.job.input, failure)
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            returned = await call() if stage.substitute.is_async else await threads.run(call)
    except TimeoutError:
        if not limit.expired():
            raise
        message = f"the fallback of stage {stage.name} ran longer than {timeout:g} s"
        raise CellOverdue("stage_timeout", message) from None
    produced, emitted, _ = conclude(stage, document, None, values, returned)
    return Ran(produced, emitted)
