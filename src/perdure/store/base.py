"""The Store protocol: everything the engine asks of whatever remembers.

Writes that belong to a job go through the flusher (group commit) and answer after COMMIT. Reads see committed state.
`SqlStore` implements it once over a `Driver`; `sqlite.py` and `postgres.py` are the two drivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from perdure.core.chunk import Chunk, Completeness, Connection
from perdure.core.frozen import frozen
from perdure.core.gathered import Gathered
from perdure.core.model import Job
from perdure.errors import StoreError
from perdure.store import records
from perdure.store.operations import (
    Added,
    Beat,
    Cancel,
    Claim,
    HandOver,
    NewDocument,
    Promote,
    Raise,
    Report,
    Requeue,
    Save,
    Settle,
)

if TYPE_CHECKING:
    from perdure.store.auditing import Balance
    from perdure.store.background import Background, Worker
    from perdure.store.counting import Counts
    from perdure.store.stuck import Page, Run, StuckJob


class DataRefused(Exception):
    """The database refused a value of this batch (not its neighbours' fault); the flusher finds out whose."""

    def __init__(self, message: str, foreign_key: bool = False) -> None:
        super().__init__(message)
        self.foreign_key = foreign_key


T = TypeVar("T")
#: Who holds a dependency of itself: such a hold is probed and ends by itself.
BREAKER = "breaker"
Row = tuple[Any, ...]


@frozen
class Query:
    """One statement: run once with `params`, or for each row of `rows` (in one round trip where possible)."""

    sql: str
    params: Sequence[Any] = ()
    rows: Sequence[Sequence[Any]] | None = None


#: Statements as a conversation, free of input and output: yields queries, is sent their rows, returns its answer.
#: The SQLite driver runs it in its writer thread, the PostgreSQL driver in the event loop.
Steps = Generator[Query, list[Row], T]


@frozen
class OldestWriter:
    """An open transaction, of ours or of any other program, in any database of the server."""

    pid: int | None  # None: it is prepared and belongs to no session
    name: str  # of the program, or of the prepared transaction
    database: str
    since_ms: int  # how long it has been open


class Driver(Protocol):
    """A database: runs Steps in a transaction, holds locks that die with the process, carries wake-ups."""

    dialect: Any
    #: Why no transaction can run until every process has opened the store again.
    lost: StoreError | None

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        """Run the steps in one write transaction; StoreBusy / StoreUnavailable / DataRefused, or after COMMIT T."""

    async def write_aside(self, steps: Callable[[], Steps[T]]) -> T:
        """The same beside other writes of this process, where the database can: for what takes seconds."""

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        """Run reading steps on their own connection."""

    async def snapshot(self, steps: Callable[[], Steps[T]]) -> T:
        """The same, all of them at one moment."""

    async def script(self, text: str) -> None:
        """Run a migration script in one transaction."""

    async def lock(self, name: str, number: int) -> bool:
        """Try to take a lock that the operating system frees when this process dies."""

    async def unlock(self, name: str, number: int) -> None: ...
    async def locked(self, name: str, numbers: Sequence[int]) -> set[int]:
        """Which of these locks somebody holds; those not in the set are free."""

    async def tend(self) -> None:
        """Take locks and listening up again where a lost connection took them away."""

    async def location(self) -> str:
        """Where the database is; another one for a copy of it."""

    async def oldest_writer(self) -> OldestWriter | None:
        """The oldest transaction on the server that has written and is still open; readers of the feed wait for it."""

    def exposed(self) -> str | None:
        """Return the command that keeps other users out of its files; None if they are kept out."""

    async def durability(self) -> dict[str, str]:
        """What the database itself has set for what a commit survives."""

    async def up_for_s(self) -> float:
        """How long the database has been up and our link to it unbroken: before, a free lock does not mean death."""

    async def wake(self) -> None:
        """Tell idle workers that there may be work."""

    async def listen(self, heard: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        """Call `heard` on each wake-up, until the returned function is awaited."""


class Store(Protocol):
    """About twenty verbs; every one is atomic, and everything that answered survives a crash."""

    async def open(self, create: bool = True) -> None:
        """Connect and check the schema: SchemaOutdated, SchemaNewer, StoreUnavailable.

        An empty store is set up; with `create=False` a file that is not there is not made.
        """

    async def close(self) -> None: ...

    @property
    def background(self) -> Background:
        """Turns of long work, and whether documents of several organisations are in work."""

    def give_way(self, worker: Worker) -> None:
        """Let long work of one document rest much while this worker, or another one, has others."""

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that ran."""

    # workers
    async def register(self, kind: str, name: str, queues: Sequence[str]) -> int:
        """A new worker id, its lock held by this process from before the first claim on."""

    async def retire(self, worker: int) -> None:
        """Forget a worker that stopped in good order."""

    async def workers(self) -> list[records.WorkerRecord]: ...
    async def missing(self, workers: Sequence[int]) -> set[int]:
        """Which of these workers' locks are free (their process is gone)."""

    async def forget_clients(self, older_than_ms: int) -> int:
        """Remove the rows of doors and tools that are gone without saying so."""

    async def tend(self) -> None:
        """Take locks and listening up again where a lost connection took them away."""

    @property
    def lost(self) -> StoreError | None:
        """Why this process writes nothing more: a file was deleted under it, or a newer release migrated the store."""

    async def peers(self) -> list[tuple[int, int]]:
        """Every worker with the time of its last sign of life."""

    @property
    def needs_sign_of_life(self) -> bool:
        """Whether a worker's lock can be lost while it lives (a connection may drop, a file lock may not)."""

    async def lead(self) -> bool:
        """Become, or stay, the one sweeping leader."""

    async def gather(self, limit: int) -> int:
        """Make jobs due that waited for what they spawned, where all of that has ended; how many."""

    async def gathered(self, job: Job, since: int) -> Gathered | None:
        """What became of all that the job's document spawned, of each follow-up job the last since that generation;
        None while some of it has not ended."""

    async def jobs_failed(self, job: Job, since: int) -> dict[str, tuple[str, bytes | None]]:
        """Follow-up jobs of generations from `since` to before the job's that did not end well, or whose repair did
        not, and were not tried since; as far as they are known. By name, their pipeline and input."""

    async def counted(self, name: str) -> int:
        """How often something happened since the store was made: `degraded`, `repaired`."""

    async def neglected_ms(self) -> int:
        """For how long the oldest expired lease, due job or due probe has been waiting for a sweep; 0 if none has."""

    async def up_for_s(self) -> float:
        """How long the database has been up and our link to it unbroken."""

    def wake_soon(self) -> None:
        """Tell idle workers that there may be work."""

    async def listen(self, heard: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        """Call `heard` on each wake-up, until the returned function is awaited."""

    # the path of a document
    async def add(self, documents: Sequence[NewDocument]) -> list[Added]: ...
    async def claim(self, claim: Claim) -> list[records.Claimed]: ...
    async def save(self, save: Save) -> bool: ...
    async def settle(self, settle: Settle) -> bool: ...
    async def beat(self, beat: Beat) -> set[tuple[int, int]]: ...
    async def promote(self, promote: Promote) -> int: ...

    # other services
    async def hand_over(self, handing: HandOver) -> bool: ...
    async def job_at(self, org: str, document_id: str, key: str) -> Job | None:
        """The job of this key as it stands, whoever has it; its token is None unless it runs."""

    async def ended_under(
        self, org: str, document_id: str, key: str, token: int
    ) -> tuple[str, str | None] | None:
        """How the claim that had this token ended: outcome and error code."""

    async def beat_remote(self, org: str, job_id: int, token: int, lease_ms: int) -> bool:
        """Renew the lease of a job that another service works on; False when it has passed on."""

    async def lead_relay(self) -> bool:
        """Become, or stay, the one who publishes what is in the outbox."""

    async def leave_relay(self) -> None: ...
    async def outbox(self, limit: int) -> list[records.OutboxEvent]:
        """Events that are due, the oldest first, of each document only its first."""

    async def outbox_late_ms(self) -> int:
        """For how long the oldest event has been due."""

    async def outbox_state(self) -> records.OutboxRecord: ...
    async def outbox_sent(self, events: Sequence[records.OutboxEvent]) -> None:
        """Forget published events, and begin the leases of those whom they concern."""

    async def outbox_failed(self, events: Sequence[tuple[records.OutboxEvent, int, str]]) -> None:
        """Try these again after so many milliseconds, and remember why."""

    async def outbox_away(self, reason: str) -> None:
        """Remember why nothing can be published at all."""

    # recovery
    async def expired(self, limit: int, bad: list[tuple[int, Exception]] | None = None) -> list[Job]:
        """Running jobs whose lease is over; of those that cannot be read `bad` gets id and reason."""

    async def expired_since(self, limit: int) -> dict[tuple[int, int], tuple[int, int]]:
        """Of the first expired leases, by job and token: when each ended, and how many milliseconds ago that was."""

    async def in_hand(self, worker: int) -> list[Job]:
        """Running jobs of a worker."""

    async def attend(self) -> tuple[int, int]:
        """Keep since when queues are served and lanes are open, and close flows whose pipeline no worker has; to be
        called at least every minute. The store's time, and when the last stuck sweep ended (0: there was none)."""

    async def lead_stuck(self) -> bool:
        """Become, or stay, the one who looks for what is stuck."""

    async def leave_stuck(self) -> None: ...

    async def stuck(self, after: tuple[str, int], size: int, cutoff_ms: int, now_ms: int) -> Page:
        """Of the next jobs, as many as `size`, those that do not get on since before `cutoff_ms`."""

    async def requeue_stuck(self, stuck: Sequence[StuckJob], skipped: Counter[str]) -> list[StuckJob]:
        """Make those due at once that are as they were, and count them and what was skipped; the former."""

    async def record_run(self, run: Run) -> None:
        """Count a stuck sweep and keep what it found."""

    async def retry_job(self) -> records.RetryJob:
        """What the stuck sweeps counted, and how many documents are dead now."""

    async def refill(self) -> None:
        """Let in what waits for room under a limit."""

    async def prune(self, age_ms: int, count: int, limit: int) -> int:
        """Delete queue rows (and items) of finished jobs beyond age or count; dead ones stay."""

    # operators
    async def requeue(self, requeue: Requeue) -> str: ...
    async def cancel(self, cancel: Cancel) -> str: ...
    async def raise_(self, raise_: Raise) -> str: ...
    async def pause(self, queue: str, paused: bool, by: str = "", reason: str = "") -> None: ...
    async def hold(self, dependency: str, reason: str, by: str) -> None:
        """Take a dependency's lanes down: O(1), however many documents wait in them.

        By BREAKER nothing changes if it is down already; by an operator the hold becomes the operator's.
        """

    async def release(self, dependency: str, by: str, reason: str = "") -> None: ...
    async def probed(self, dependency: str, ok: bool, guessed: bool = False) -> None:
        """What came of a call that was let through to a dependency that is down.

        If it went well, its documents are given back little by little; if not, the next probe is put off. `guessed`:
        only from how a stage ended, which made no call that anybody counted.
        """

    async def lend(self) -> int:
        """Lend documents of dependencies that the breaker holds, as many as may go now; how many, those included whose
        dependency is up again."""

    async def exchange(self, name: str, report: Report) -> records.Shared:
        """Tell the fleet what this worker saw of a service, and hear what all of them know."""

    async def record_calls(self, calls: Sequence[Row]) -> None:
        """Keep operations: (api_name, retry_count, success, latency_ms, timestamp_ms, added_ms)."""

    async def forget_calls(self, age_ms: int, limit: int) -> int:
        """Delete operations that are older; how many."""

    async def forget_onces(self, age_ms: int, limit: int) -> int:
        """Delete keys that were used once longer ago; how many."""

    async def forget_staged(self, age_ms: int, limit: int) -> int:
        """Delete words that were indexed ahead for a save that never came; how many chunks."""

    async def forget_deliveries(self, age_ms: int, limit: int) -> int:
        """Delete deliveries to webhooks that were sent longer ago; how many."""

    async def forget_feed(self, age_ms: int, limit: int) -> int:
        """Delete what the feed tells of longer ago; how many entries."""

    async def limit(
        self, key: str, concurrency: int | None, rate_per_s: float | None, by: str = "", reason: str = ""
    ) -> None:
        """Bound how many jobs with this key run at once, and how many start per second."""

    async def declare(self, queues: Sequence[str], lanes: Sequence[str]) -> None:
        """Make queues and lanes known; known ones keep their state."""

    # reading
    async def status(self, org: str, document_id: str) -> records.Status | None: ...
    async def documents(
        self, org: str | None, state: str | Sequence[str] | None, after: str | None, limit: int,
        stage: str | None = None, collection: str | None = None,
    ) -> list[records.Status]:  # fmt: skip
        """The next documents after this place, those that came last first."""

    async def document(self, org: str, document_id: str) -> records.DocumentRecord | None: ...
    async def attempts(
        self, org: str, document_id: str, before: records.AttemptPlace | None = None, most: int = 1_000
    ) -> list[records.Attempt]: ...
    async def saves(
        self, org: str, document_id: str, pipeline: str, generation: int | None = None
    ) -> list[records.SavedStage]: ...
    async def items(
        self, org: str, document_id: str, pipeline: str, stage: str, fingerprint: str, generation: int
    ) -> list[records.SavedItem]: ...
    async def rows(
        self, org: str, document_id: str, name: str, page: records.Part = records.ALL
    ) -> list[tuple[str, bytes]]: ...
    async def blob_named(self, hash_: str) -> bool:
        """Whether any row names this blob."""

    async def lanes(self) -> list[records.LaneRecord]: ...
    @property
    def limited(self) -> frozenset[str]:
        """The dependencies that had a limit when this client last wrote."""

    async def down(self) -> frozenset[str]:
        """The dependencies that are down."""

    async def dependencies(self) -> list[records.DependencyRecord]:
        """Every dependency that anybody knows of, by name."""

    async def kpis(self, since_ms: int) -> list[records.Kpi]:
        """How calls to each service went since then."""

    async def search(
        self, org: str, query: str, vector: tuple[str, bytes] | None = None, *, collection: str | None = None,
        document: str | None = None, limit: int = 10,
    ) -> list[records.Hit]:  # fmt: skip
        """Chunks of the organisation by the words of `query` (any text; "in quotes" is a phrase) and, where it is
        given, by a vector and the model that made it."""

    async def nearest(
        self, org: str, document_id: str, *, threshold: float = 0.6, each: int = 5
    ) -> list[Connection]:
        """For each chunk of the document its most similar chunks in others of the organisation; not stored yet."""

    async def connect(self, org: str, document_id: str, *, threshold: float = 0.6, each: int = 5) -> int:
        """Store which chunks are its chunks' nearest, and whose nearest its chunks are; how many the former. Done after
        each change of the chunks of each document, in any order, it leaves the `each` nearest of every chunk."""

    async def chunks(self, org: str, document_id: str, page: records.Part = records.ALL) -> list[Chunk]:
        """The document's chunks, in order."""

    async def completeness(self, org: str, document_id: str) -> Completeness: ...
    async def connections(
        self, org: str, document_id: str, chunk_id: str | None = None, page: records.Part = records.ALL
    ) -> list[Connection]:
        """What the document's chunks (or one of them) are connected with, whichever side found it."""

    async def now_ms(self) -> int:
        """The store's time."""

    async def look(self) -> Balance:
        """Whether all that was accepted is there, and remember it."""

    async def counts(self) -> Counts:
        """How many there are of everything, at one moment; it costs the same with a million documents."""

    async def tally(self, queues: Sequence[str] | None = None) -> records.Tally: ...
