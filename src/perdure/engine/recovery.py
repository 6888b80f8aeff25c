"""Taking jobs back from workers that died, froze or lost the store. The same outcome and the same guarded settle as the
worker's own path, so a document that dies with its worker ends exactly like one whose stage raised."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.events import AttemptEnded, DocumentDead, Events, JobRecovered
from perdure.core.model import Job
from perdure.core.outcome import Dead, Done, Hold, Later, Outcome, Result, Retry, outcome
from perdure.store.base import Store
from perdure.store.operations import Settle


async def recover(
    store: Store, events: Events, jobs: Iterable[tuple[Job, Result]], reason: str, expired_only: bool = False
) -> int:
    """Settle each job by its result; those that somebody else settled or renewed meanwhile are left alone."""
    taken = 0
    for job, result in jobs:
        ending = outcome(job, result)
        if await store.settle(Settle(job, ending, job.stage, job.lane, expired_only=expired_only)):
            taken += 1
            suspect = isinstance(ending, Later) and ending.suspect
            events.publish(
                JobRecovered(
                    job.id, job.document_id, job.org, job.pipeline, job.attempts, job.stage, reason, suspect
                )
            )
            publish_end(events, job, ending, job.stage, 0)
    return taken


def publish_end(events: Events, job: Job, ending: Outcome, stage: str, duration_ms: int) -> None:
    """Tell what became of an attempt."""
    delay_ms = ending.delay_ms if isinstance(ending, Retry | Later) else None
    failure = None if isinstance(ending, Done) else ending.failure
    why = "" if isinstance(ending, Done) else ending.why
    name = {Done: "done", Retry: "retry", Later: "later", Hold: "hold", Dead: "dead"}[type(ending)]
    where = (
        job.id,
        job.document_id,
        job.org,
        job.pipeline,
        job.attempts,
        failure.stage if failure else stage,
    )
    error = (failure.error_type, failure.code, failure.message) if failure else (None, None, None)
    events.publish(AttemptEnded(*where, name, duration_ms, delay_ms, why, *error))
    if isinstance(ending, Dead):
        events.publish(
            DocumentDead(
                *where,
                job.queue,
                job.attempts,
                job.claimed_ms,
                f"{ending.failure.code}: {ending.failure.message}",
            )
        )
