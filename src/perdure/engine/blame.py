"""Who is to blame when a worker's process ends: pure, from what its slate says of the stages that had begun.

A stage that holds the event loop runs in the worker's own process. So if the loop stood still, documents whose stages
run in cells are innocent, unless no other stage had begun.
"""

from __future__ import annotations

from perdure.core.frozen import frozen
from perdure.core.model import Job
from perdure.core.outcome import Orphaned, Overdue, Result, Stopped
from perdure.engine.slate import Slate

#: A job's id and token.
Key = tuple[int, int]


@frozen
class Standstill:
    """Why a worker was ended whose event loop stood still; `overdue`: a stage in it was past its timeout."""

    reason: str
    overdue: bool = False


@frozen
class Begun:
    """The jobs whose stages had begun: in the worker's own process, and in cells."""

    here: frozenset[Key]
    in_cells: frozenset[Key] = frozenset()

    @classmethod
    def on(cls, slate: Slate) -> Begun:
        """As the slate has them."""
        begun = [one for one in slate.held() if one.started]
        here = frozenset((one.job_id, one.token) for one in begun if one.here)
        return cls(here, frozenset((one.job_id, one.token) for one in begun) - here)


def result_of(job: Job, begun: Begun, still: Standstill | None, reason: str, stopping: bool) -> Result:
    """What the end of its worker means for a job that was in hand."""
    key = (job.id, job.token or 0)  # one that never got onto the slate had not begun
    blamed = key in begun.here or (key in begun.in_cells and (still is None or not begun.here))
    if still is not None and key in begun.here and _proven(job, begun, still):
        message = f"stage {job.stage} held its worker: {still.reason}"
        return Overdue(job.stage, "stage_timeout", message, alone=job.suspect)
    if stopping and not (still is not None and blamed):
        return Stopped(job.stage, progressed=True, stage_age_ms=0)
    return Orphaned(job.stage, reason, blame=blamed)


def _proven(job: Job, begun: Begun, still: Standstill) -> bool:
    """Whether this stage is to blame: it was the only one, and past its time or a suspect's. Suspects run in the
    worker's own process if no cell can find their pipeline, and then one at a time."""
    return len(begun.here) == 1 and (job.suspect or still.overdue)
