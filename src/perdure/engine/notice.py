"""What events say: JSON objects with `document_id`, `org`, `collection`, `pipeline`, `job`, `stage`, `attempt` and
`generation`; the relay adds `id`, `event` and `occurred_at`. See docs/remote.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from perdure.core.fingerprint import digest
from perdure.core.handover import Handover
from perdure.core.model import Job
from perdure.core.outcome import Dead, Outcome
from perdure.store.operations import NewEvent


def death_notice(job: Job, ending: Outcome) -> tuple[NewEvent, ...]:
    """The event that tells of a death at the stage for which the job was handed over, now or before."""
    given = Handover.last(job)
    if given is None or given.stage != job.stage:
        return ()
    return death_at(job, ending, given.stage, given.failed, given.collection)


def death_at(job: Job, ending: Outcome, stage: str, failed: str, collection: str) -> tuple[NewEvent, ...]:
    """The event that tells of a death at a remote stage; nothing, where the job lives."""
    if not isinstance(ending, Dead):
        return ()
    failure = ending.failure
    error = {"code": failure.code, "type": failure.error_type, "message": failure.message}
    payload = facts(job, stage, collection) | {"final": True, "why": ending.why, "error": error}
    return (new_event(job, stage, failed, payload),)


def facts(job: Job, stage: str, collection: str) -> dict[str, Any]:
    """What every event says."""
    return {
        "document_id": job.document_id, "org": job.org, "collection": collection, "pipeline": job.pipeline,
        "job": job.key, "stage": stage, "attempt": job.attempts, "generation": job.generation,
    }  # fmt: skip


def new_event(job: Job, stage: str, name: str, payload: Mapping[str, Any]) -> NewEvent:
    """An event of its own for every claim, the same whoever makes it."""
    id_ = digest(job.org, job.key, job.generation, job.claims, stage, name)
    return NewEvent(id_, job.org, job.document_id, name, json.dumps(payload))
