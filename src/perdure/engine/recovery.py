"""Taking jobs back from workers that died, froze or lost the store. The same outcome and the same guarded settle as the
worker's own path, so a document that dies with its worker ends exactly like one whose stage raised."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from perdure.core.events import AttemptEnded, DocumentDead, Events, JobRecovered
from perdure.core.handover import UNANSWERED, Handover
from perdure.core.model import Job, job_name
from perdure.core.outcome import Dead, Done, Gather, Hold, Later, Outcome, Overdue, Result, Retry, outcome
from perdure.engine.notice import death_notice
from perdure.store.base import Store
from perdure.store.operations import Settle


async def recover(
    store: Store, events: Events, jobs: Iterable[tuple[Job, Result]], reason: str, expired_only: bool = False
) -> int:
    """Settle each job by its result; those that somebody else settled or renewed meanwhile are left alone."""
    endings = [(job, outcome(job, result)) for job, result in jobs]
    settles = [taking_back(job, ending, expired_only) for job, ending in endings]
    answers = await take_back(store, events, settles, reason)
    if failed := [answer for answer in answers if isinstance(answer, BaseException)]:
        raise failed[0]
    return answers.count(True)


def taking_back(job: Job, ending: Outcome, expired_only: bool = False) -> Settle:
    """The settle of a job that another had in hand, or nobody."""
    return Settle(
        job, ending, job.stage, job.lane, expired_only=expired_only, ours=False, events=death_notice(job, ending)
    )  # fmt: skip


async def take_back(
    store: Store, events: Events, settles: Sequence[Settle], reason: str
) -> list[bool | BaseException]:
    """The answer to each. All ride one commit, so that a worker's whole hand is back at once; one that cannot be
    settled stops no other."""
    answers = await asyncio.gather(*map(store.settle, settles), return_exceptions=True)
    for settle, kept in zip(settles, answers, strict=True):
        if kept is True:
            job, ending = settle.job, settle.outcome
            suspect = isinstance(ending, Later) and ending.suspect
            where = (job.key, job.document_id, job.org, job.pipeline, job.attempts, job.stage)
            events.publish(JobRecovered(*where, reason, suspect, job.generation, job.claims, job.claimed_ms))
            collection = await _collection(store, job) if isinstance(ending, Dead) else ""
            publish_end(events, job, ending, job.stage, 0, collection, recovered=True)
    return answers


def unanswered(job: Job) -> Overdue | None:
    """What a lease that ended means for a job that was handed over: the service had its chance, and is charged."""
    given = Handover.of(job)
    if given is None:
        return None
    message = f"{given.event} of attempt {job.attempts} was not answered by {given.done} within its lease"
    return Overdue(job.stage, UNANSWERED, message, given.policy(job.policy))


async def _collection(store: Store, job: Job) -> str:
    found = await store.document(job.org, job.document_id)
    return found.collection if found is not None else ""


def publish_end(
    events: Events,
    job: Job,
    ending: Outcome,
    stage: str,
    duration_ms: int,
    collection: str,
    recovered: bool = False,
) -> None:
    """Tell what became of an attempt."""
    delay_ms = ending.delay_ms if isinstance(ending, Retry | Later) else None
    failure = None if isinstance(ending, Done) else ending.failure
    why = "" if isinstance(ending, Done) else ending.why
    names = {Done: "done", Later: "later", Hold: "hold", Gather: "gather", Dead: "dead"}
    name = ending.word if isinstance(ending, Retry | Later) else names[type(ending)]
    where = (
        job.key,
        job.document_id,
        job.org,
        job.pipeline,
        job.attempts,
        failure.stage if failure else stage,
    )
    error: tuple[str | None, str | None, str | None, str | None] = (
        (failure.error_type, failure.code, failure.message, failure.place)
        if failure
        else (None, None, None, None)
    )
    events.publish(AttemptEnded(*where, name, duration_ms, delay_ms, why, *error, recovered=recovered))
    if isinstance(ending, Dead):
        events.publish(
            DocumentDead(
                *where,
                collection,
                job.attempts - (not ending.charged),
                job.claimed_ms,
                f"{ending.failure.code}: {ending.failure.message}",
                ending.exhausted,
                job_name(job.key, job.generation),
            )
        )
