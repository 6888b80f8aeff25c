"""The Store, written once over a driver: job-changing verbs go through the flusher, reads straight to the database."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from perdure.core.clock import Clock, SystemClock
from perdure.core.events import Events
from perdure.core.limit_key import is_gate
from perdure.core.model import Job
from perdure.errors import InputInvalid, SchemaNewer, StoreBusy, StoreError, StoreUnavailable, Unstorable
from perdure.store import entering, exchange, holding, indexing, migrate, rows, staging
from perdure.store.archive import Archive
from perdure.store.auditing import Auditing
from perdure.store.base import BREAKER, DataRefused, Driver, Query, Row, Steps
from perdure.store.counting import Counting, counted, folded
from perdure.store.dead import DeadLetters
from perdure.store.feed import Feed
from perdure.store.flusher import RETRY_S, Aside, Flusher, Writes
from perdure.store.identity import Identities
from perdure.store.inspecting import Inspecting
from perdure.store.keys import Keys
from perdure.store.lacking import LACKED_READY
from perdure.store.listing import Listing
from perdure.store.metering import Metering
from perdure.store.once import Onces
from perdure.store.operations import (
    Add,
    Added,
    Beat,
    Cancel,
    Claim,
    NewDocument,
    Promote,
    Raise,
    Report,
    Requeue,
    Save,
    Settle,
)
from perdure.store.outbox import Outbox
from perdure.store.reading import one
from perdure.store.records import (
    Claimed,
    Shared,
    WorkerRecord,
)
from perdure.store.retained import Ended
from perdure.store.serving import Serving
from perdure.store.standing import Standings
from perdure.store.stuck import StuckJobs
from perdure.store.webhooks import Webhooks

T = TypeVar("T")
WAKE_S = 0.005


class SqlStore(
    Inspecting,
    Auditing,
    Listing,
    Serving,
    DeadLetters,
    Archive,
    Metering,
    Outbox,
    Feed,
    StuckJobs,
    Ended,
    Onces,
    Keys,
    Standings,
    Webhooks,
    Identities,
):
    """See `perdure.store.base.Store` for what each verb promises."""

    def __init__(self, driver: Driver, dialect_name: str, clock: Clock | None = None) -> None:
        self.driver = driver
        self.dialect_name = dialect_name
        self.clock: Clock = clock or SystemClock()
        self.sql = driver.dialect
        self.events = Events()  # of whoever wants to know what only the store sees
        self.flusher = self._new_flusher(driver)
        self._aside: Flusher | None = (
            None  # for saves of large documents, where the database writes two at a time
        )
        self.created = False  # whether opening it made its tables
        self._registered: dict[int, tuple[str, str]] = {}
        self._waking: asyncio.TimerHandle | None = None
        self._woken_s = -math.inf
        self._tasks: set[asyncio.Task[None]] = set()

    def _new_flusher(self, driver: Writes) -> Flusher:
        return Flusher(
            driver, self._register_client, self.clock.now_ms, tell=lambda event: self.events.publish(event)
        )

    async def _submit(self, op: Save | Settle, save: Save | None) -> bool:
        """Write it, so that nobody else waits for the chunks of a large document."""
        if save is None or not indexing.has_many_chunks(save):
            return bool(await self.flusher.submit(op))
        return bool(await (await self._flusher_for(save)).submit(op))

    async def _flusher_for(self, save: Save) -> Flusher:
        """Who writes the save of a large document, whose words are indexed by then."""
        writes = self.flusher if self.sql.one_writer else self._second_flusher()
        await staging.stage(self, save)
        return writes

    def _second_flusher(self) -> Flusher:
        if self._aside is None:
            self._aside = self._new_flusher(Aside(self.driver))
            self._aside.knows, self._aside.large_bytes = self.flusher.knows, self.flusher.large_bytes
            self._aside.start()
        return self._aside

    @property
    def only_looks(self) -> bool:
        """Whether this user can read the store and not change it."""
        return bool(getattr(self.driver, "only_looks", False))

    def must_write(self) -> None:
        """Raises: StoreReadOnly if this user can only look."""
        if self.only_looks:
            self.driver.refuse_if_only_looking()  # type: ignore[attr-defined]

    async def open(self, create: bool = True) -> None:
        path = getattr(self.driver, "path", None)
        if not create and path is not None and not path.exists():
            raise StoreUnavailable(f"there is no store at {path}; name yours with --store or PERDURE_STORE")
        try:
            await self.driver.open()
            self.created = await migrate.check(self.driver, self.dialect_name)
            await self.open_vectors()
        except BaseException:
            await self.driver.close()
            raise
        self.flusher.knows = len(migrate.known(self.dialect_name))
        self.flusher.start()

    async def close(self) -> None:
        await self.close_vectors()
        aside, self._aside = self._aside, None
        for flusher in filter(None, (aside, self.flusher)):
            await flusher.close()
        if self._waking is not None:  # what was just added must not wait for the next poll
            self._waking.cancel()
            self._wake()
        for task in list(self._tasks):
            await asyncio.gather(task, return_exceptions=True)
        clients = [
            flusher.client for flusher in (aside, self.flusher) if flusher is not None and flusher.client
        ]
        self.flusher.client = 0
        try:
            with suppress(SchemaNewer):  # those who may still write forget the rows after a day
                for client in clients:
                    await self.retire(client)
        finally:
            await self.driver.close()

    async def schema_fits(self) -> bool:
        """Whether this program can work on the schema as it is now: others may have migrated it since we opened it."""
        return await migrate.fits(self.driver, self.dialect_name)

    async def migrate(self) -> list[str]:
        """Open the driver only, bring the schema up to date, close again."""
        await self.driver.open()
        try:
            ran = await migrate.migrate(self.driver, self.dialect_name)
            await self.open_vectors()
            if self._server is not None:  # others may not be allowed to
                await self._server.filled()
            return ran
        finally:
            await self.close_vectors()
            await self.driver.close()

    async def create_tables(self, statements: str) -> None:
        """Run statements of a user's own that create tables. Raises: StoreError."""
        await migrate.create_tables(self.driver, statements)

    # --- workers ---------------------------------------------------------------------------------

    async def register(self, kind: str, name: str, queues: Sequence[str]) -> int:
        adding = Query(self.sql.WORKER_ADD, (kind, name, ",".join(queues), self.clock.now_ms()))
        while not (added := await self._change(adding)):
            pass  # the number was taken
        worker = int(added[0][0])
        if not await self.driver.lock("worker", worker):
            raise StoreError(f"the lock of the new worker {worker} is taken; start again")
        if kind == "worker":
            self._registered[worker] = (name, ",".join(queues))
        return worker

    async def _register_client(self) -> int:
        return await self.register("client", f"{socket.gethostname()}:{os.getpid()}", ())

    async def retire(self, worker: int) -> None:
        def steps() -> Steps[None]:
            gone = yield Query(self.sql.WORKER_DROP, (worker,))
            if gone and gone[0][0]:
                yield Query(self.sql.TALLY_ADD, ("fenced", gone[0][0]))
            yield from folded(self.sql, worker)

        try:
            await self._write(steps)
        finally:
            await self.driver.unlock("worker", worker)

    async def workers(self) -> list[WorkerRecord]:
        found = await self._rows(self.sql.WORKERS)
        return [WorkerRecord(r[0], r[1], r[2], tuple(filter(None, r[3].split(","))), *r[4:]) for r in found]

    async def tell_about(self, worker: int, about: str) -> None:
        """Write down what a worker says of itself; nothing is written where that is there already."""
        await self._change(Query(self.sql.WORKER_ABOUT, (worker, about)))

    async def in_hand_of(self) -> dict[int, list[tuple[str, int, int]]]:
        """By worker, what each organisation has of it: its documents in hand, and the large ones of them."""
        found: dict[int, list[tuple[str, int, int]]] = {}
        for worker, org, number, large in await self._rows(self.sql.IN_HAND_OF):
            found.setdefault(worker, []).append((org, number, int(large)))
        return found

    async def missing(self, workers: Sequence[int]) -> set[int]:
        return set(workers) - await self.driver.locked("worker", workers)

    async def forget_clients(self, older_than_ms: int = 86_400_000) -> int:
        before_ms = await self.now_ms() - older_than_ms
        old = [row[0] for row in await self._rows(self.sql.CLIENTS, before_ms)]
        gone = sorted(await self.missing(old)) if old else []
        for client in gone:
            await self.retire(client)
        return len(gone)

    async def tend(self) -> None:
        await self.driver.tend()

    @property
    def lost(self) -> StoreError | None:
        """Why this process writes nothing more: a file was deleted under it, or a newer release migrated the store."""
        aside = self._aside.lost if self._aside is not None else None
        return self.driver.lost or self.flusher.lost or aside

    async def peers(self) -> list[tuple[int, int]]:
        return [(row[0], row[1]) for row in await self._rows(self.sql.PEERS)]

    @property
    def needs_sign_of_life(self) -> bool:
        return self.dialect_name == "postgres"

    async def up_for_s(self) -> float:
        return await self.driver.up_for_s()

    async def lead(self) -> bool:
        return await self.driver.lock("leader", 0)

    async def neglected_ms(self) -> int:
        found = await self._rows(self.sql.NEGLECTED, self.clock.now_ms())
        return max([0, *(int(late_ms) for late_ms in found[0] if late_ms is not None)])

    # --- the path of a document ------------------------------------------------------------------

    async def add(self, documents: Sequence[NewDocument]) -> list[Added]:
        answers: list[Added] = await self.flusher.submit(Add(tuple(documents)))
        if any(a.answer == "added" for a in answers):
            self.wake_soon()
        return answers

    async def claim(self, claim: Claim) -> list[Claimed]:
        found: list[Claimed] = await self.flusher.submit(claim)
        return found

    async def save(self, save: Save) -> bool:
        kept = await self._submit(save, save)
        if save.documents or save.jobs:
            self.wake_soon()
        return kept

    async def settle(self, settle: Settle) -> bool:
        return await self._submit(settle, settle.save)

    async def beat(self, beat: Beat) -> set[tuple[int, int]]:
        name, queues = self._registered.get(beat.worker, ("", ""))
        lost: set[tuple[int, int]] = await self.flusher.submit(replace(beat, name=name, queues=queues))
        return lost

    async def promote(self, promote: Promote) -> int:
        moved: int = await self.flusher.submit(promote)
        if moved:
            self.wake_soon()
        return moved

    async def gather(self, limit: int) -> int:
        found = await self._rows(self.sql.GATHERED, limit)
        if not found:
            return 0

        def steps() -> Steps[None]:
            now = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            for org, _, _, id_ in sorted(found):
                yield Query(self.sql.GATHER, (now, org, id_))

        await self._write(steps)
        return len(found)

    async def listen(self, heard: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        return await self.driver.listen(heard)

    def wake_soon(self) -> None:
        """Wake idle workers: at once, and again after what follows in the next few milliseconds, once for all of it.

        Where a commit wakes them itself, only afterwards: for one that fell asleep while it was under way.
        """
        loop = asyncio.get_running_loop()
        if self._waking is None:
            quiet = self.sql.NOTIFY is None and loop.time() >= self._woken_s + WAKE_S
            self._waking = loop.call_later(0 if quiet else WAKE_S, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._woken_s = asyncio.get_running_loop().time()
        task = asyncio.create_task(self._wake_quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wake_quietly(self) -> None:
        try:
            await self.driver.wake()
        except (StoreError, OSError):
            return  # a lost wake-up costs a poll interval, nothing more

    # --- recovery --------------------------------------------------------------------------------

    async def expired(self, limit: int, bad: list[tuple[int, Exception]] | None = None) -> list[Job]:
        return rows.jobs(await self._rows(self.sql.EXPIRED, self.clock.now_ms(), limit), bad)

    async def expired_since(self, limit: int) -> dict[tuple[int, int], tuple[int, int]]:
        found = await self._rows(self.sql.EXPIRED_SINCE, self.clock.now_ms(), limit)
        return {(row[0], row[1]): (row[2], row[3]) for row in found}

    async def in_hand(self, worker: int) -> list[Job]:
        return rows.jobs(await self._rows(self.sql.IN_HAND, worker))

    async def refill(self) -> None:
        """Let in what waits for room under a limit; heals whatever a crash left behind. Ready jobs of pipelines that
        no worker has give up their room first."""

        now_ms = await self.now_ms()

        def park(counting: Counting) -> Steps[None]:
            counting.parked((yield Query(self.sql.PARK_LACKED, (now_ms,))))

        def steps(counting: Counting) -> Steps[int]:
            keys = [row[0] for row in (yield Query(self.sql.PARKED_KEYS))]
            if keys:
                now = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
                yield from entering.fill(self.sql, keys, now, counting)
            return len(keys)

        if await self._rows(LACKED_READY, now_ms):
            await self._count(park)
        if await self._count(steps):
            self.wake_soon()

    async def prune(self, age_ms: int, count: int, limit: int = 500) -> int:
        def steps() -> Steps[int]:
            now = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            pruned = 0
            for queue, _ in (yield Query(self.sql.QUEUES)):
                aged = yield Query(self.sql.PRUNE_AGED, (queue, now - age_ms, limit))
                beyond = yield Query(self.sql.PRUNE_BEYOND, (queue, count, limit))
                found = list(dict.fromkeys([*aged, *beyond]))[:limit]
                gone = yield Query(self.sql.PRUNE_JOB, rows=found)
                yield Query(self.sql.PRUNE_ITEM, rows=gone)
                pruned += len(gone)
            return pruned

        return await self._write(steps)

    # --- operators -------------------------------------------------------------------------------

    async def requeue(self, requeue: Requeue) -> str:
        answer: str = await self.flusher.submit(requeue)
        self.wake_soon()
        return answer

    async def cancel(self, cancel: Cancel) -> str:
        answer: str = await self.flusher.submit(cancel)
        return answer

    async def raise_(self, raise_: Raise) -> str:
        answer: str = await self.flusher.submit(raise_)
        return answer

    async def pause(self, queue: str, paused: bool, by: str = "", reason: str = "") -> None:
        def steps(counting: Counting) -> Steps[None]:
            now = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            yield Query(self.sql.QUEUE_PAUSE, (queue, paused))
            if not paused:
                counting.parked((yield Query(self.sql.PARK_QUEUE, (queue,))))
            yield Query(self.sql.ACT_ADD, (now, by, "pause" if paused else "resume", None, queue, reason))

        await self._count(steps)
        if not paused:
            await self.refill()
            self.wake_soon()

    # --- dependencies ----------------------------------------------------------------------------

    async def hold(self, dependency: str, reason: str, by: str = "") -> None:
        now_ms = self.clock.now_ms()
        await self._count(lambda counting: holding.hold(self.sql, now_ms, counting, dependency, reason, by))

    async def release(self, dependency: str, by: str = "", reason: str = "") -> None:
        now_ms = self.clock.now_ms()
        await self._count(
            lambda counting: holding.release(self.sql, now_ms, counting, dependency, by, reason)
        )
        await self.refill()
        self.wake_soon()

    async def probed(self, dependency: str, ok: bool, guessed: bool = False) -> None:
        now_ms = self.clock.now_ms()
        await self._count(
            lambda counting: holding.probed(self.sql, now_ms, counting, dependency, ok, guessed)
        )

    async def lend(self) -> int:
        now_ms, lent = self.clock.now_ms(), 0
        held = await self._rows(self.sql.DEPENDENCIES_HELD)
        for name in (name for name, _, held_by, *_ in held if held_by == BREAKER):
            number, up = await self._count(partial(holding.lend, self.sql, now_ms, name=name))
            if up:
                await self._count(partial(holding.ramped, self.sql, now_ms, name=name))
            lent += number
        if lent:
            self.wake_soon()
        return lent

    async def exchange(self, name: str, report: Report) -> Shared:
        now_ms = self.clock.now_ms()
        if report.idle:
            return await self._read(lambda: exchange.shared(self.sql, now_ms, name))
        return await self._write(lambda: exchange.exchange(self.sql, now_ms, name, report))

    async def record_calls(self, calls: Sequence[Row]) -> None:
        if calls:
            await self._change(Query(self.sql.CALL_ADD, rows=calls))

    async def forget_calls(self, age_ms: int, limit: int) -> int:
        now_ms = self.clock.now_ms()
        return await self._write(lambda: exchange.forget(self.sql, now_ms, age_ms, limit))

    async def forget_staged(self, age_ms: int, limit: int) -> int:
        """Delete words that were indexed ahead for a save that never came; how many chunks."""
        return await self._forget(self.sql.STAGED_FORGET, age_ms, limit)

    # --- settings of the whole store -------------------------------------------------------------

    @property
    def limited(self) -> frozenset[str]:
        return self.flusher.limited

    async def limit(
        self, key: str, concurrency: int | None, rate_per_s: float | None, by: str = "", reason: str = ""
    ) -> None:
        _check_positive("the concurrency of a limit", concurrency)
        _check_positive("the rate of a limit", rate_per_s)

        def steps(counting: Counting) -> Steps[None]:
            now = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            # what is ready has not been let in by this limit
            if not is_gate(key) and (concurrency or rate_per_s):
                counting.parked((yield Query(self.sql.PARK_KEY, (key, concurrency, rate_per_s))))
            yield Query(self.sql.SLOT_SET, (key, concurrency, rate_per_s, now))
            yield from entering.fill(self.sql, [key], now, counting)
            bounds = f"concurrency {concurrency or 'any'}, rate {rate_per_s or 'any'}"
            yield Query(self.sql.ACT_ADD, (now, by, "limit", None, key, _detailed(bounds, reason)))

        await self._count(steps)

    async def weigh(self, org: str, weight: float, by: str = "", reason: str = "") -> None:
        """An organisation of weight 2 gets twice the turns of one of weight 1."""
        _check_positive("the weight of an organisation", weight)

        def steps() -> Steps[None]:
            now = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            yield Query(self.sql.ORG_WEIGH, (org, weight))
            yield Query(self.sql.ACT_ADD, (now, by, "weigh", org, org, _detailed(f"{weight:g}", reason)))

        await self._write(steps)

    async def declare(self, queues: Sequence[str], lanes: Sequence[str]) -> None:
        def steps() -> Steps[None]:
            yield from entering.declare(self.sql, queues, lanes)

        await self._write(steps)

    # --- plumbing --------------------------------------------------------------------------------

    async def _write(self, steps: Callable[[], Steps[T]], aside: bool = False) -> T:
        """A transaction of its own, past the flusher; tried again while the store is busy. `aside`: part of long work,
        and others are written meanwhile where the database can do that."""
        write = self.driver.write_aside if aside else self.driver.write
        for wait_s in (*RETRY_S, None):
            try:
                return await write(self.flusher.checked(steps))
            except StoreBusy:
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
            except DataRefused as refused:
                raise Unstorable(f"the store refused this value: {refused}") from refused
        raise AssertionError("the last try has answered")

    async def _count(self, steps: Callable[[Counting], Steps[T]]) -> T:
        """As `_write`, where what is changed is counted."""
        return await self._write(counted(self.sql, steps))

    async def _forget(self, statement: str, age_ms: int, limit: int) -> int:
        """Delete what is older, so many at a time; how many that were."""
        clock_ms = self.clock.now_ms()

        def steps() -> Steps[int]:
            now_ms = (yield Query(self.sql.NOW, (clock_ms,)))[0][0]
            return len((yield Query(statement, (now_ms - age_ms, limit))))

        return await self._write(steps)

    async def _change(self, query: Query) -> list[Row]:
        return await self._write(one(query))


def _detailed(what: str, reason: str) -> str:
    """The reason of an act, after what it was about."""
    return f"{what}: {reason}" if reason else what


def _check_positive(what: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise InputInvalid(f"{what} must be a number above 0, not {value}")
