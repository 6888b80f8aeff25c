"""What the store answers with: rows as frozen values."""

from __future__ import annotations

import re
from dataclasses import field
from typing import NamedTuple

from perdure.core.fleet import TOKENS_MAX, BreakerWord
from perdure.core.frozen import frozen
from perdure.core.model import Job
from perdure.core.pace import CALM, Pace


@frozen
class DocumentRecord:
    """What came in, without its progress."""

    id: str
    org: str
    collection: str
    pipeline: str
    kind: str
    name: str
    media_type: str
    content_hash: str
    size: int
    inline: bytes | None
    blob: str | None
    meta: bytes
    parent_id: str | None
    created_ms: int


@frozen
class Claimed:
    """A job under our token, with its document."""

    job: Job
    document: DocumentRecord


class Part(NamedTuple):
    """Part of a list: at most this many, from this one on."""

    first: int
    most: int


ALL = Part(0, 2**62)


class Place(NamedTuple):
    """A place in a list of documents: after the one that came in then and has this id."""

    created_ms: int
    id: str

    @classmethod
    def first(cls) -> Place:
        """The place before all documents."""
        return cls(2**53, "")

    @classmethod
    def of(cls, word: str) -> Place:
        """The place that the word stands for. Raises: ValueError."""
        found = re.fullmatch(r"(\d{1,15})_(.+)", word, re.S)
        if found is None:
            raise ValueError(f"{word!r} is not a place in a list")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.created_ms}_{self.id}"


@frozen
class Status:
    """A document as a user sees it."""

    id: str
    org: str
    collection: str
    pipeline: str
    name: str
    state: str
    stage: str | None
    generation: int
    attempts_made: int
    attempts_max: int
    claims: int
    suspect: bool
    degraded: bool
    run_at_ms: int | None
    last_heartbeat_ms: int | None
    created_ms: int
    finished_ms: int | None
    error_code: str | None
    error_message: str | None
    held_by: str | None = None
    remote: bool = False  # another service works on it

    @property
    def place(self) -> str:
        """Where a list continues after this document, also when it is deleted meanwhile."""
        return str(Place(self.created_ms, self.id))


class AttemptPlace(NamedTuple):
    """A place in the history of a document: before the attempt of which these are the facts."""

    generation: int
    started_ms: int
    claim: int
    job_key: str

    @classmethod
    def of(cls, word: str) -> AttemptPlace:
        """The place that the word stands for. Raises: ValueError."""
        found = re.fullmatch(r"(\d{1,9})_(\d{1,15})_(\d{1,9})_(.+)", word, re.S)
        if found is None:
            raise ValueError(f"{word!r} is not a place in a history")
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4])

    def __str__(self) -> str:
        return "_".join(map(str, tuple(self)))


@frozen
class Attempt:
    """One claim that ended, as history keeps it."""

    document_id: str
    job_key: str
    generation: int
    claim: int
    attempt: int
    charged: bool
    stage: str
    worker: int
    started_ms: int
    ended_ms: int
    outcome: str
    error_type: str | None
    error_code: str | None
    status_code: int | None
    message: str | None
    fingerprint: str | None
    delay_ms: int | None
    why: str
    requests: dict[str, int] = field(default_factory=dict)  # made to services, by dependency

    @property
    def place(self) -> AttemptPlace:
        """Where older ones go on."""
        return AttemptPlace(self.generation, self.started_ms, self.claim, self.job_key)


@frozen
class DeadRecord:
    """A dead document, or a dead follow-up job of a document (`job` is its name), with its cause."""

    id: str
    org: str
    collection: str
    pipeline: str
    queue: str
    lane: str
    stage: str
    error_type: str
    error_code: str
    status_code: int | None
    fingerprint: str
    attempts: int
    generation: int
    died_ms: int
    name: str
    size: int
    message: str
    job: str = ""


@frozen
class Cause:
    """How many documents of a collection died of one cause, and when the first and the last did. `job`: it was not
    documents but their follow-up jobs of this name."""

    fingerprint: str
    collection: str
    job: str
    count: int
    first_ms: int
    last_ms: int


@frozen
class SavedStage:
    """A checkpoint as read back."""

    stage: str
    generation: int
    version: int
    input_hash: str
    output_hash: str
    inline: bytes | None
    blob: str | None
    model: str | None
    saved_ms: int
    duration_ms: int
    size: int = 0
    degraded: bool = False


@frozen
class Checkpoint:
    """A document, and by which version and model its newest save of a stage was made; no version: there is none."""

    org: str
    document_id: str
    pipeline: str
    collection: str
    state: str  # open, done, dead or cancelled
    version: int | None
    model: str | None


@frozen
class SavedItem:
    """A saved item as read back."""

    key: str
    generation: int
    inline: bytes | None
    blob: str | None


@frozen
class WorkerRecord:
    """A process that works on, or writes to, this store."""

    id: int
    kind: str
    name: str
    queues: tuple[str, ...]
    started_ms: int
    beat_ms: int
    running: int
    fenced: int
    silent_since_ms: int | None = None  # since when its event loop has stood still; None: it runs
    about: str | None = None  # what it says of itself (`engine.about`), as JSON


@frozen
class LaneRecord:
    """A lane (a set of dependencies) and whether it is down."""

    name: str
    down_since_ms: int | None
    reason: str | None


@frozen
class DependencyRecord:
    """A service that stages need: `up`, `flickering` (it fails now and then, however little it is asked), `pressed` (it
    is asked less, because it fails when it is asked more), `paused` (it refuses all requests and said for how long),
    `down`, or `ramping` (down, and its documents come back a few at a time)."""

    name: str
    state: str = "up"
    since_ms: int | None = None
    reason: str | None = None
    held_by: str | None = None  # the breaker, or an operator
    held: int = 0  # documents that wait for it
    probe_at_ms: int | None = None
    probes: int = 0  # since it went down
    ramp_per_s: float | None = None
    nominal_per_s: float | None = None  # what is usual
    tokens: float = TOKENS_MAX  # for retries, of each worker
    tokens_max: float = TOKENS_MAX  # as many as there can be
    limit_per_s: float | None = None  # requests a second of all workers together; None: no limit
    paused_until_ms: int | None = None  # until when the service asked all for silence
    success_share: float | None = None  # of requests of late; None: nothing fails, or nobody asks
    #: `open` while it is down, `half_open` while it ramps or many requests failed of late, else `closed`
    breaker: BreakerWord = "closed"
    rate_per_s: float = 0.0  # requests that all workers make
    in_flight: int = 0  # requests of all workers that are not back


@frozen
class Reporter:
    """A worker that reported lately about a service."""

    seen_ms: int
    rate: float | None  # requests a second that it makes
    in_flight: int
    looking: bool


@frozen
class Shared:
    """What the fleet knows of a service."""

    down: bool
    reason: str | None
    tokens: float  # for retries, of each worker
    rate: float | None  # requests a second, of each worker; None: no limit
    workers: int  # that reported lately
    pace: Pace = CALM
    ramping: bool = False
    pause_ms: int = 0  # for this long the service asks all for silence
    row_lasts_ms: int = 0  # for this long no request of the fleet was answered, if some failed
    looking: bool = False  # the breaker of some worker looks


@frozen
class Kpi:
    """How calls to a service went; shares are from 0 to 1, and None where nothing was retried."""

    api_name: str
    operations: int
    retry_rate: float
    success_after_retry: float | None
    retries_per_retried: float | None
    p95_added_ms: int | None  # latency that retries added to operations that had any
    failure_rate: float


@frozen
class Hit:
    """A chunk that a search found; a higher score is better, and says nothing outside of its search."""

    document_id: str
    chunk_id: str
    score: float
    snippet: str
    anchor: str
    page: int | None
    name: str  # of the document
    heading: str = ""  # of the sections that it stands in, the outermost first
    text: str = ""  # all of the passage, as Markdown


@frozen
class QueueRecord:
    """A queue, whether it is paused, and since when its oldest ready job could have run."""

    name: str
    paused: bool
    ready_since_ms: int | None


@frozen
class Tally:
    """Counts of documents and jobs at one moment."""

    documents: dict[str, int]
    queues: dict[str, dict[str, int]]
    next_due_ms: int | None
    fenced: int


@frozen
class RetryJob:
    """What the stuck sweeps did since the store was made, and what the last one found; by collection, unless it says
    otherwise. Every collection that is always there has its number, if only 0."""

    requeued: dict[str, int]
    skipped_backoff: dict[str, int]
    max_retries_exceeded: dict[
        str, int
    ]  # documents that died because their attempts were used up, whoever buried them
    runs: dict[str, int]  # by status: success, partial, failure
    errors: dict[str, int]  # by type of error
    stuck: dict[str, int]  # when it was looked last
    starved: dict[str, int]  # then; they only wait for a free worker, or for room under a limit
    failed: dict[str, int]  # dead now
    exhausted: dict[str, int]  # of these, with their attempts used up
    stuck_since_ms: int | None  # of the one that is stuck for longest
    exhausted_since_ms: int | None  # of the one that is dead for longest with its attempts used up
    burst_ms: (
        int | None
    )  # when a collection first had too many of these within an hour, of those that are dead now
    follow_ups: dict[str, int]  # follow-up jobs that are dead now, by name
    follow_ups_since_ms: int | None
    ran_ms: int | None  # when the last run ended; None: there was none
    duration_ms: int | None  # of the last run


@frozen
class Act:
    """What an operator (or `breaker`, or a parent document) did, to which document, queue, dependency, key or
    organisation, and why."""

    id: int
    at_ms: int
    who: str
    verb: str
    org: str | None
    target: str
    reason: str


@frozen
class LimitRecord:
    """What bounds the documents of a concurrency key; None: nothing does. `used` are let in, `parked` wait for room."""

    key: str
    concurrency: int | None
    rate_per_s: float | None
    used: int
    parked: int


@frozen
class OutboxEvent:
    """An event that is to be published. With a `token` it hands its job over, and somebody must take it."""

    number: int
    id: str
    name: str
    payload: str
    org: str
    job_id: int | None
    token: int | None
    wait_ms: int | None
    created_ms: int
    tries: int


@frozen
class OutboxRecord:
    """How many events wait to be published, since when the oldest, and why it could not be published so far."""

    waiting: int = 0
    since_ms: int | None = None
    reason: str | None = None
