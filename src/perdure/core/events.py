"""Facts the engine publishes; `watch` turns them into log lines, metrics and streams."""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.frozen import frozen


@frozen
class Event:
    """Something that happened to a job."""

    job_id: str  # its key, `doc-{id}`
    document_id: str
    org: str
    pipeline: str
    attempt: int
    stage: str


@frozen
class AttemptStarted(Event):
    """A worker took the job in hand."""

    generation: int = 1
    claims: int = 1
    resumed: bool = False
    traceparent: str | None = None  # that the document came with


@frozen
class StageSaved(Event):
    """A stage ran and its output is durable; `rerun`: an earlier attempt had begun or saved it."""

    duration_ms: int = 0
    size: int = 0  # of the document
    rerun: bool = False


@frozen
class StageSkipped(Event):
    """A stage was saved by an earlier attempt and did not run again."""


@frozen
class StageHandedOver(Event):
    """Another service is to do the stage; the event that tells it so is in the outbox."""

    event: str = ""


@frozen
class AttemptEnded(Event):
    """The attempt is over; `outcome` is done, answered, retry, rescheduled, later, hold, gather or dead."""

    outcome: str = ""
    duration_ms: int = 0
    delay_ms: int | None = None
    why: str = ""
    error_type: str | None = None
    error_code: str | None = None
    error: str | None = None
    place: str | None = None
    recovered: bool = False  # by another, which JobRecovered has told


@frozen
class DocumentDead(Event):
    """The document was set aside."""

    collection: str = ""
    attempts: int = 0
    last_attempt_ms: int = 0
    error: str = ""
    exhausted: bool = False  # of its attempts
    follow_up: str = ""  # the name of the job that followed from it, where only that ended so


@frozen
class WriteFenced(Event):
    """A late write of a worker whose lease had passed on was refused."""


@frozen
class JobRecovered(Event):
    """A job was taken back from a worker that died or lost its lease."""

    reason: str = ""
    suspect: bool = False
    generation: int = 1
    claims: int = 0
    started_ms: int = 0


@frozen
class WorkerStarted:
    """A worker claims from its queues from now on."""

    worker: int
    queues: tuple[str, ...]
    concurrency: int


@frozen
class WorkerStopped:
    """A worker stopped in good order."""

    worker: int


@frozen
class WorkerLost:
    """A worker's death was noticed."""

    worker: int
    jobs: int
    reason: str


@frozen
class WorkerStalled:
    """A worker's event loop has stood still for longer than it may. With a supervisor, the worker is ended for that."""

    worker: int
    silent_ms: int
    begun: tuple[
        tuple[str, str], ...
    ]  # documents whose stages ran in the worker's own process, with the stage
    stack: str  # of its threads; empty: it could not be had


@frozen
class SweepPartial:
    """Parts of a sweep or of the keeper's other rounds failed; the others were done, the next round tries again."""

    failed: tuple[str, ...]


@frozen
class ForeignKeyRefused:
    """The database refused a write for a foreign key."""

    message: str


@frozen
class ChunksDeleted:
    """Chunks are gone as they should be: a new revision `superseded` them, or they were `purged`."""

    count: int
    kind: str = "superseded"


@frozen
class StuckSwept:
    """Jobs that do not get on were looked for: how many there are, by collection, and what was done about them."""

    status: str  # success, partial or failure
    stuck: dict[str, int]
    starved: dict[str, int]
    requeued: dict[str, int]
    skipped: dict[str, int]
    buried: dict[str, int]
    errors: dict[str, int]  # by type
    since_ms: int | None
    problems: tuple[str, ...] = ()
    duration_ms: int = 0


AnyEvent = (
    Event
    | WorkerStarted
    | WorkerStopped
    | WorkerLost
    | WorkerStalled
    | SweepPartial
    | ForeignKeyRefused
    | ChunksDeleted
    | StuckSwept
)
Listener = Callable[[AnyEvent], None]


class Events:
    """Hands each event to every listener; a listener that raises never harms the work."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` at each event from now on, until what this returns is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, event: AnyEvent) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                continue
