"""What can be asked of the store in one group commit: plain frozen values, no behaviour.

Each operation goes to the flusher and gets its own answer after COMMIT; many share one transaction. Those that change a
job carry the job as it was claimed: its token fences the write, and because nobody else may change a fenced job its
counters can be written as absolute values.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from perdure.core.chunk import Chunk, Connection
from perdure.core.frozen import frozen
from perdure.core.model import Job, Policy
from perdure.core.outcome import Outcome


@frozen
class NewJob:
    """A job to be written: for a new document, or (with `document_id`) a follow-up of an existing one."""

    pipeline: str
    queue: str
    stage: str
    lane: str = ""
    name: str | None = None  # None: the document's main job, else the follow-up's name in its key
    priority: int = 0
    run_at_ms: int | None = None  # not before; None: now
    delay_ms: int = 0  # relative to the store's time, where run_at_ms is None
    policy: Policy = field(default_factory=Policy)
    limit_key: str | None = None
    limit_each: int | None = None  # the concurrency of a key that has no limit of its own
    input: bytes | None = None
    lease_ms: int = 30_000


@frozen
class NewDocument:
    """A document and its main job, written in one transaction. `dedupe` makes a second one answer `exists`."""

    id: str
    org: str
    job: NewJob
    collection: str = "documents"
    kind: str = "text"  # text | bytes | json
    name: str = ""
    media_type: str = ""
    content_hash: str = ""
    size: int = 0
    inline: bytes | None = None
    blob: str | None = None
    meta: bytes = b"{}"
    dedupe: str | None = None
    parent_id: str | None = None
    refresh: bool = False  # a child that is there with other content starts again with this

    @property
    def may_change(self) -> bool:
        """Whether one that is there already is more than that: a URL is fetched again, a key may have other content."""
        return self.kind == "url" or (self.dedupe is not None and self.dedupe.startswith("key"))


@frozen
class Added:
    """The answer to an add: the document's id, and `added` or `exists`; of what may have changed since it was added,
    `requeued` (a URL is fetched again, a dead document starts again), `unchanged` or `refreshed`. `state` is the one
    in which a document was found that was there already."""

    id: str
    answer: str
    state: str | None = None


@frozen
class StageOutput:
    """A saved stage: inline bytes or the name of a blob, and what it was made from."""

    stage: str
    version: int
    input_hash: str
    output_hash: str
    size: int
    inline: bytes | None = None
    blob: str | None = None
    model: str | None = None
    duration_ms: int = 0
    degraded: bool = False  # by the stage's fallback


@frozen
class ItemOutput:
    """One saved item of a stage. `fingerprint` is the stage's, so items of older code are not taken up."""

    stage: str
    key: str
    fingerprint: str
    size: int
    inline: bytes | None = None
    blob: str | None = None


@frozen
class EmittedRow:
    """A row a stage produced, under a natural key: written again it overwrites, never duplicates."""

    name: str
    key: str  # canonical JSON of the key fields
    data: bytes


@frozen
class NewChunk:
    """A chunk with the words under which it is found."""

    chunk: Chunk
    words: str


@frozen
class ChunkSet:
    """All the chunks that a document shall have. Those of the same revision are there already."""

    revision: str
    chunks: tuple[NewChunk, ...]


@frozen
class Once:
    """A key under which something is asked for, and a hash of what that is."""

    org: str
    key: str
    request: str


@frozen
class Add:
    """Write documents with their jobs. Answer: a list of `Added`; under a key an `once.Answer`."""

    documents: tuple[NewDocument, ...]
    once: Once | None = None


@frozen
class Passing:
    """Organisations that have their share of a worker already: jobs of others are taken first, or (`fill` is False)
    alone."""

    orgs: tuple[str, ...]
    fill: bool


class Kind(NamedTuple):
    """Jobs of which a claim takes up to `most`."""

    most: int
    suspect: bool = False
    large: bool | None = None  # None: of any size
    passing: Passing | None = None


@frozen
class Claim:
    """Take up to `limit` ready jobs (and `suspects` suspect ones) under `token`. Answer: a list of `Claimed`."""

    worker: int
    queues: tuple[str, ...]
    token: int
    limit: int
    suspects: int = 0
    idle: bool | None = False  # whether the worker is marked as one that waits for work; None: nobody knows
    alone: bool = True  # False: others claim under its id, so that it is always worth waking
    pipelines: tuple[str, ...] | None = None  # that the worker has; None: it takes jobs of any
    large: int | None = None  # up to so many large ones besides; None: they are among those of `limit`
    passing: Passing | None = None
    passing_large: Passing | None = None

    @property
    def kinds(self) -> list[Kind]:
        """What it asks for."""
        small = None if self.large is None else False
        asked = (
            Kind(self.suspects, suspect=True),
            Kind(self.limit, large=small, passing=self.passing),
            Kind(self.large or 0, large=True, passing=self.passing_large),
        )
        return [kind for kind in asked if kind.most]

    @property
    def most(self) -> int:
        """The number of jobs that it takes at most."""
        return self.limit + self.suspects + (self.large or 0)


@frozen
class Save:
    """A checkpoint: what the stage made, and the advance. Answer: True, or False when the lease has passed on."""

    job: Job
    stage: str  # where the job stands after this save
    lane: str
    lease_ms: int
    suspect: bool = False
    ran: str = ""  # the stage that this comes from
    fingerprint: str = ""  # of its version, model and input: rows that it emitted under another one are stale
    output: StageOutput | None = None
    repairs: bool = False  # the output is what a fallback stood in for
    items: tuple[ItemOutput, ...] = ()
    rows: tuple[EmittedRow, ...] = ()
    documents: tuple[NewDocument, ...] = ()
    jobs: tuple[NewJob, ...] = ()
    sql: tuple[tuple[str, tuple[object, ...]], ...] = ()
    chunks: ChunkSet | None = None  # instead of those that the document has
    connections: tuple[Connection, ...] | None = None  # from its chunks, instead of those that they have
    frees: bool = False  # from here on it does not count under its limit


@frozen
class NewEvent:
    """An event to be published; the same id is the same event."""

    id: str
    org: str
    document_id: str
    name: str
    payload: str  # a JSON object


@frozen
class HandOver:
    """Let another service work on the job under `token`; its lease begins when `event` is published, with `wait_ms`.
    Answer: as Save."""

    job: Job
    token: int
    stage: str
    lane: str
    remote: str  # a Handover as text
    wait_ms: int
    event: NewEvent


@frozen
class Settle:
    """End a claim with its outcome and history, together with the last save. Answer: as Save."""

    job: Job
    outcome: Outcome
    stage: str
    lane: str
    save: Save | None = None
    expired_only: bool = False  # refuse if the lease was renewed meanwhile
    ours: bool = True  # False: taken back from another; if that is refused, no late write was
    requests: str | None = None  # made during the claim: a JSON object, dependency → number
    events: tuple[NewEvent, ...] = ()  # to be published if it is accepted
    seized: bool = (
        False  # nobody has the job: it is claimed under its token for this, if it still stands as it did
    )
    requeued: str | None = None  # counted as requeued by the stuck sweep, for this collection


@frozen
class Beat:
    """Renew the leases of (job id, token) pairs. Answer: the pairs that are lost."""

    worker: int
    held: tuple[tuple[int, int], ...]
    name: str = ""  # what to register again, should the worker have been forgotten
    queues: str = ""
    silent_ms: int | None = None  # for how long its event loop has stood still; None: it runs


@frozen
class Promote:
    """Move due waiting jobs to ready. Answer: how many."""

    limit: int = 500


@frozen
class Requeue:
    """Start a new generation of a finished document. Answer: `requeued` or `refused: why`."""

    org: str
    document_id: str
    job: NewJob
    fresh_from: str | None = (
        None  # stages from here on ignore what earlier generations saved; see `model.ONLY`
    )
    by: str = ""
    reason: str = ""
    content: NewDocument | None = None  # instead of what the document has; then it may be in progress, too
    dead_only: bool = False  # whoever chose it from a list of dead ones may come late
    name: str | None = None  # what it is called from now on, also if it is refused


@frozen
class Cancel:
    """End a document at once; a worker that runs it is fenced. Answer: `cancelled` or `refused: why`."""

    org: str
    document_id: str
    by: str = ""
    reason: str = ""


@frozen
class Raise:
    """Put a document's job before all others, or give it another priority. Answer: `raised`, `changed` or
    `refused: why`."""

    org: str
    document_id: str
    by: str = ""
    reason: str = ""
    priority: int | None = None  # None: before all others

    @property
    def verb(self) -> str:
        """As the trail has it."""
        return "raise" if self.priority is None else "priority"


@frozen
class Report:
    """What one worker saw of a service since its last report."""

    worker: int
    requests: int
    successes: int
    failures: int
    throttled: int
    spent: float  # tokens, by retries
    earned: float  # tokens, by successes
    rate: float | None  # requests a second that it makes; None: none
    runs: int | None = None  # stage runs that made their first request; if told, these are what is usual
    epoch: int = 0  # of the fleet's finding that it follows
    stale: tuple[int, int, int] = (
        0,
        0,
        0,
    )  # successes, failures, throttled of requests that were sent before it
    row: int = 0  # failures since its last success
    pause_ms: int = 0  # for this long the service asks for silence
    in_flight: int = 0  # requests that are not back
    looking: bool = False  # its breaker looks: many requests failed of late
    standing: bool = False  # the last two are news, or are to be remembered

    @property
    def idle(self) -> bool:
        """Whether there is nothing to tell."""
        counted = self.requests or self.spent or self.earned or self.runs
        return not (counted or self.epoch or self.pause_ms or self.standing)


Operation = Add | Claim | Save | HandOver | Settle | Beat | Promote | Requeue | Cancel | Raise
