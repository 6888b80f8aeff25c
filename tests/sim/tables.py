"""Rows of the store, as far as they are judged, and how they are read."""

from __future__ import annotations

from typing import Any, NamedTuple

from perdure.core.limit_key import is_gate

Key = tuple[Any, ...]
ENDED = {"done", "dead", "cancelled"}


class DocumentRow(NamedTuple):
    """A document, without what only its reader needs."""

    id: str
    org: str
    name: str
    pipeline: str
    content_hash: str
    meta: bytes
    parent_id: str | None
    state: str
    generation: int
    error_code: str | None
    error_message: str | None
    degraded: int
    size: int

    @property
    def identity(self) -> Key:
        """What stays, whatever content comes under its key."""
        return self.id, self.org, self.pipeline, self.parent_id


class JobRow(NamedTuple):
    """A job, as far as it is judged."""

    id: int
    org: str
    key: str
    document_id: str
    pipeline: str
    queue: str
    lane: str
    stage: str
    state: str
    suspect: int
    priority: int
    vt: float
    run_at_ms: int
    token: int | None
    worker: int | None
    lease_until_ms: int | None
    generation: int
    attempts: int
    attempts_max: int
    claims: int
    limit_key: str | None
    probe: str | None
    home: str | None
    requeues: int
    fresh_from: str | None
    limit_own: str | None = None

    @property
    def own_key(self) -> str | None:
        """What its pipeline gave it, also while it waits for its organisation or a dependency."""
        return self.limit_own if self.limit_key is not None and is_gate(self.limit_key) else self.limit_key

    @property
    def ending(self) -> str | None:
        """The state in which it ended, if it has."""
        return self.state if self.state in ENDED else None


Move = tuple[JobRow | None, JobRow | None]

JOB = f"SELECT {', '.join(JobRow._fields)} FROM job WHERE id = ?"
DOCUMENT = f"SELECT {', '.join(DocumentRow._fields)} FROM document WHERE rowid = ?"
SAVED = (
    "SELECT document_id, pipeline, stage, generation, output_hash, degraded, token FROM saved WHERE rowid = ?"
)
ITEM = "SELECT document_id, pipeline, stage, generation, key, inline, token FROM item WHERE rowid = ?"
EFFECT = "SELECT document_id, stage, generation FROM effect WHERE rowid = ?"
ACT = "SELECT verb, target, who, reason FROM act WHERE rowid = ?"
ONCE = "SELECT org, key, request FROM once WHERE rowid = ?"
LISTED = "SELECT generation FROM dead WHERE document_id = ? AND org = ?"
FENCED = (
    "SELECT coalesce((SELECT sum(fenced) FROM worker), 0) + "
    "coalesce((SELECT value FROM tally WHERE name = 'fenced'), 0)"
)
#: Nobody works on these, and nobody will be told to.
FORGOTTEN = (
    "SELECT key FROM job j WHERE state = 'running' AND worker = 0 AND lease_until_ms IS NULL "
    "AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.token = j.token)"
)
#: Queue and pipeline of the flows that stand still because no worker serves them; all others need a dependency.
CLOSED = "SELECT queue, pipeline FROM flow WHERE unserved AND lane = ''"
HISTORY = (
    "SELECT outcome, charged, token, error_code, why FROM attempt "
    "WHERE org = ? AND document_id = ? AND job_key = ? AND generation = ? AND claim = ?"
)
