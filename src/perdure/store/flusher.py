"""Group commit: every operation waits on a queue with a future, and one transaction applies all that is pending.

What arrives during a commit rides the next one: no timer, no added delay when there is little to do, one fsync for
hundreds of jobs when there is much. Futures resolve after COMMIT. A job has at most one operation per flush; a value
the database refuses fails only its own operation; a lost COMMIT reply is resolved by the flush number.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

from perdure.core.events import AnyEvent, ChunksDeleted, ForeignKeyRefused
from perdure.core.limit_key import DEPENDENCY
from perdure.errors import (
    PerdureError,
    SchemaNewer,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    Transient,
    Unstorable,
)
from perdure.store.apply import Flush, flush_name
from perdure.store.base import DataRefused, Driver, Query, Steps
from perdure.store.fairness import Flow
from perdure.store.operations import Add, Cancel, Claim, HandOver, Operation, Raise, Requeue, Save, Settle
from perdure.store.resolving import AGAIN, resolve
from perdure.store.rewound import let_go

BATCH_MAX = (
    1_000  # operations of a transaction, and documents of operations that add several, unless one adds more
)
SLICE = 50  # answers that are given at a go
CLOSE_S = 5.0
RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
NEEDS = "SELECT max(needs) FROM migration"
T = TypeVar("T")


class Forgotten(Exception):
    """This client's row is missing or has another number: nothing was written, and a new registration is needed."""

    def __init__(self, behind: bool) -> None:
        super().__init__("the client is not registered any more")
        self.behind = behind  # the store's history ends before the number: no try under it was applied


@dataclass(slots=True)
class Pending:
    """An operation and who waits for it."""

    op: Operation
    future: asyncio.Future[Any]
    applied: bool = False  # it was committed, and its answer is on its way


def subject(op: Operation) -> str | None:
    """What an operation changes: at most one per subject and flush, in the order they came."""
    if isinstance(op, Save | HandOver | Settle):
        return op.job.document_id
    return op.document_id if isinstance(op, Cancel | Requeue | Raise) else None


class Writes(Protocol):
    """A driver, as far as a flusher needs it."""

    @property
    def dialect(self) -> Any: ...
    async def write(self, steps: Callable[[], Steps[T]]) -> T: ...


class Aside:
    """For a second flusher: its transactions take seconds, and others are written meanwhile."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.dialect = driver.dialect

    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._driver.write_aside(steps)


class Flusher:
    """Owns the writing connection; `submit` returns after COMMIT."""

    def __init__(
        self,
        driver: Writes,
        register: Callable[[], Any],
        now_ms: Callable[[], int | None],
        patience_s: float = 60.0,
        tell: Callable[[AnyEvent], None] = lambda _: None,
    ) -> None:
        self._driver = driver
        self._register = register
        self._now_ms = now_ms
        self._patience_s = patience_s
        self._tell = tell
        self._pending: deque[Pending] = deque()
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop  # asking for it at each operation costs a system call
        self._task: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._closing = False
        self._close_by_s = math.inf
        self._known: set[Flow] = set()
        self._written: dict[Any, Any] = {}
        self.limited: frozenset[str] = frozenset()  # dependencies that had a limit at the last flush
        self.large_bytes = 0  # from which size on a document is large; 0: none is
        self._last = (0, 0)  # client and number of the last flush that the store answered
        self._workers: set[int] = set()  # under whose numbers it has claimed
        self.knows: float = math.inf  # how many migrations
        self.lost: StoreError | None = None  # why nothing is written any more
        self.client = 0
        self.number = 0
        self._guarded = False  # the last try found its number free: no try before it was applied
        self.flushes = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="perdure-flusher")
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Write what is pending, then stop."""
        self._closing = True
        self._close_by_s = asyncio.get_running_loop().time() + CLOSE_S
        self._arrived.set()
        if self._task is not None:
            await asyncio.wait({self._task})
            if self._answering:  # those of the last flush too
                await asyncio.wait(self._answering)
            self._task = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whatever ended the loop: nobody waits for an answer that cannot come."""
        error = None if task.cancelled() else task.exception()
        self._closing = True
        while self._pending:
            _fail(self._pending.popleft(), _stopped(error))

    async def submit(self, op: Operation) -> Any:
        """Queue the operation; its answer, once it is durable. StoreError where nobody is left to write it."""
        if self._closing or self._task is None:
            raise StoreError("the store is closed; open it first", code="store_closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending.append(Pending(op, future))
        self._arrived.set()
        return await future

    # --- the loop --------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self._pending:
                if self._closing:
                    return
                self._arrived.clear()
                await self._arrived.wait()
                # one turn of the loop, so that what was made ready by the last commit rides together
                await asyncio.sleep(0)
                continue
            batch = self._take()
            try:
                await self._write(batch)
            except BaseException as error:
                # of a batch that was halved, one half may be committed
                for pending in (p for p in batch if not p.applied):
                    _fail(pending, error if isinstance(error, Exception) else _unknown(error))
                if not isinstance(error, Exception):
                    raise

    def _take(self) -> list[Pending]:
        """The next batch: in order, one operation per subject, user SQL alone. Of operations that add several documents
        the first is taken, and others as far as they fit: nobody waits for a transaction of 20,000 documents."""
        batch: list[Pending] = []
        later: deque[Pending] = deque()
        subjects: set[str] = set()
        documents = 0
        while self._pending and len(batch) < BATCH_MAX:
            pending = self._pending.popleft()
            if pending.future.cancelled() and not isinstance(pending.op, Settle | Save):
                continue  # nobody waits for it, and a claim that nobody hears of would lie until its lease is over
            about, alone = subject(pending.op), _alone(pending.op)
            added = len(pending.op.documents) if isinstance(pending.op, Add) else 0
            full = added > 1 and documents > 0 and documents + added > BATCH_MAX
            if (about is not None and about in subjects) or (alone and batch) or full:
                later.append(pending)
                subjects |= {about} if about is not None else set()
                continue
            batch.append(pending)
            documents += added if added > 1 else 0
            if about is not None:
                subjects.add(about)
            if alone:
                break
        self._pending.extendleft(reversed(later))
        return batch

    async def _write(self, batch: list[Pending]) -> None:
        """Apply the batch; when the store refuses it for what is in it, find the guilty operation by halving."""
        try:
            answers = await self._commit([p.op for p in batch])
        except (StoreBusy, StoreUnavailable):
            raise  # of the store, not of an operation
        except Exception as error:
            if self.lost is not None:
                raise
            if len(batch) == 1:
                self._refuse(batch[0], error)
                return
            middle = len(batch) // 2
            await self._write(batch[:middle])
            await self._write(batch[middle:])
            return
        if AGAIN in answers:
            _tell(batch, answers)  # the others have their answers, whatever becomes of these
            await self._write([p for p, answer in zip(batch, answers, strict=True) if answer is AGAIN])
            return
        if len(batch) <= SLICE:
            _tell(batch, answers)
            return
        for pending in batch:
            pending.applied = True
        answering = self._loop.create_task(self._answer(batch, answers))
        self._answering.add(answering)
        answering.add_done_callback(partial(self._answered, batch, answers))

    def _refuse(self, pending: Pending, error: Exception) -> None:
        """Fail the one operation that the store does not take."""
        if not isinstance(error, DataRefused):
            _fail(pending, error)
            return
        if error.foreign_key:
            self._tell(ForeignKeyRefused(str(error)))
        _fail(pending, Unstorable(f"the store refused this value: {error}"))

    async def _answer(self, batch: Sequence[Pending], answers: Sequence[Any]) -> None:
        """Tell those who wait, a slice at a time: the next flush is under way and wants to be served in between."""
        for n in range(0, len(batch), SLICE):
            _tell(batch[n : n + SLICE], answers[n : n + SLICE])
            await asyncio.sleep(0)

    def _answered(self, batch: Sequence[Pending], answers: Sequence[Any], task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if task.cancelled():  # by the end of the loop, perhaps before it began
            _tell(batch, answers)

    async def _commit(self, ops: Sequence[Operation]) -> list[Any]:
        """One transaction, tried again whole while the store is busy or away, for as long as our patience lasts.

        The answer of an operation is AGAIN if it was applied and its answer is gone. StoreUnavailable if nobody can
        tell whether the operations were applied; any other error means that they were not.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._patience_s
        in_doubt, tries = False, 0
        while True:
            try:
                if not self.client:
                    await self._enrol()
                number, self._guarded = self.number + 1, False
                answers, flush = await self._driver.write(partial(self._steps, ops, number, in_doubt))
            except Forgotten as error:
                if in_doubt and not error.behind:
                    self._give_up(error, in_doubt)
                in_doubt, self.client = False, 0
            except Exception as error:
                # busy was rolled back for certain; a lost connection leaves its COMMIT in doubt
                lost = isinstance(error, StoreUnavailable) and self.client > 0
                in_doubt = lost or (in_doubt and not self._guarded)
                tries += 1
                if not in_doubt and _alone(ops[0]) and _waited(error):
                    # a stage's own statement waits for somebody's lock: that must not hold up everybody else
                    raise Transient(
                        f"the statement of a stage was refused: {error}", code="sql_busy"
                    ) from error
                if _alone(ops[0]) and isinstance(error, StoreError) and error.code == "schema_outdated":
                    # the table that is missing is not ours
                    raise StoreError(f"the statement of a stage was refused: {error.__cause__}") from error
                late = loop.time() >= min(give_up_s, self._close_by_s)
                if late or not isinstance(error, StoreBusy | StoreUnavailable):
                    self._give_up(error, in_doubt)
                await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S)) - 1])
            else:
                self.number = number
                self._last = (self.client, number)
                self._workers |= {op.worker for op in ops if isinstance(op, Claim)}
                self.flushes += 1
                if flush is not None:
                    self._known |= flush.declared
                    self._written |= flush.noted
                    if flush.superseded:
                        self._tell(ChunksDeleted(flush.superseded))
                return answers

    async def _enrol(self) -> None:
        """Register; if the store lost flushes that it had answered, nothing from before them is taken as written."""
        client = await self._register()
        if self._last[0]:
            await self._driver.write(
                partial(let_go, self._driver.dialect, *self._last, self._workers, self._now_ms())
            )
        self._known, self._written = set(), {}
        self.client, self.number = client, 0

    def _give_up(self, error: Exception, in_doubt: bool) -> NoReturn:
        """Raise the error; in doubt StoreUnavailable, for it must not pass for an error of what was to be written."""
        if in_doubt:
            self.client = 0  # the number may be taken; the next flush must not pass for the one that took it
            if not isinstance(error, StoreUnavailable):
                raise _unknown(error) from error
        raise error

    def _steps(
        self, ops: Sequence[Operation], number: int, in_doubt: bool
    ) -> Steps[tuple[list[Any], Flush | None]]:
        """The answers, and what was applied for them; None where that was done before."""
        sql = self._driver.dialect
        guarded = yield Query(sql.GUARD, (self.client, number, self._now_ms()))
        if not guarded:
            found = yield Query(sql.FLUSH_NUMBER, (self.client,))
            if found and found[0][0] == number and in_doubt:
                # a write, so that its COMMIT waits for a synchronous standby to have what we read
                yield Query(sql.FLUSH_SEEN, (self.client,))
                return (yield from resolve(sql, ops, flush_name(self.client, number))), None
            raise Forgotten(behind=bool(found) and found[0][0] < number)
        self._guarded = True
        now_ms, needs, orgs, dependencies = guarded[0]
        self._check_needs(needs)
        names = dependencies.split(",") if dependencies else ()
        self.limited = frozenset(key.removeprefix(DEPENDENCY) for key in names)
        gated = bool(orgs or names)
        flush = Flush(sql, self.client, number, now_ms, self._known, self._written, self.large_bytes, gated)
        return (yield from flush.run(ops)), flush

    def checked(self, steps: Callable[[], Steps[T]]) -> Callable[[], Steps[T]]:
        """The same steps, for a transaction past the flusher. Raises: SchemaNewer instead of running them."""

        def checked() -> Steps[T]:
            self._check_needs((yield Query(NEEDS))[0][0])
            return (yield from steps())

        return checked

    def _check_needs(self, needs: int) -> None:
        """Refuse to write where a newer release has migrated the store. Raises: SchemaNewer."""
        if needs > self.knows:
            self.lost = SchemaNewer(
                "the store was migrated by a newer release and this program writes nothing more; upgrade this program"
            )
            raise self.lost


def _tell(batch: Sequence[Pending], answers: Sequence[Any]) -> None:
    for pending, answer in zip(batch, answers, strict=True):
        if answer is not AGAIN and not pending.future.done():
            pending.future.set_result(answer)


def _alone(op: Operation) -> bool:
    save = op.save if isinstance(op, Settle) else op
    return isinstance(save, Save) and bool(save.sql)


def _waited(error: Exception) -> bool:
    return isinstance(error, StoreBusy) and error.code == "lock_timeout"


def _unknown(error: BaseException) -> StoreUnavailable:
    """For those whose write was under way when the error came."""
    why = f" ({error})" if str(error) else ""
    return StoreUnavailable(f"the outcome of the last write is unknown{why}; read before writing again")


def _stopped(error: BaseException | None) -> StoreError:
    """For those whose operation was not written because the flusher ended."""
    why = f" after {error!r}" if error is not None else ""
    return StoreError(f"the store stopped writing{why}; open it again", code="store_closed")


def _fail(pending: Pending, error: Exception) -> None:
    if not pending.future.done():
        pending.future.set_exception(
            error if isinstance(error, PerdureError) else StoreError(f"{type(error).__name__}: {error}")
        )
