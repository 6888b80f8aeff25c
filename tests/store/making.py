"""What the store's tests are made of: a clock to turn, documents to add, a worker that claims, outcomes to settle."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

from perdure.core.model import Job
from perdure.core.outcome import Dead, Done, Failure, Hold, Later, Outcome, Retry
from perdure.core.token import new_token
from perdure.store.base import Driver, Query, Row, Steps
from perdure.store.counting import miscounted
from perdure.store.open import open_store
from perdure.store.operations import Claim, NewDocument, NewJob, Promote, Save, Settle, StageOutput
from perdure.store.records import Claimed, Status
from perdure.store.sql_store import SqlStore

START_MS = 1_700_000_000_000
LEASE_MS = 30_000
QUEUE = "documents"
ORG = "acme"
BOOM = Failure("extract", "ValueError", "unexpected", "boom")

_numbers = itertools.count(1)


class HandClock:
    """A clock that stands still until it is turned."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000

    def turn(self, ms: int) -> None:
        self.ms += ms


class World:
    """A store under test, its clock and one registered worker; `another` opens the same store once more."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = HandClock()
        self.store = open_store(url, self.clock)
        self.worker = 0
        self._stack = AsyncExitStack()
        self.tampered = False  # the test changed rows itself

    async def __aenter__(self) -> World:
        await self.store.open()
        self._stack.push_async_callback(self.store.close)
        self.worker = await self.store.register("worker", "w", [QUEUE])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self.tampered:
                assert await self.miscounted() == {}, "whatever changes a state must count it"
        finally:
            await self._stack.aclose()

    @property
    def sqlite(self) -> bool:
        return self.store.dialect_name == "sqlite"

    async def another(self) -> SqlStore:
        """A second process's view of the same store, closed with this one."""
        store = open_store(self.url, self.clock)
        await store.open()
        self._stack.push_async_callback(store.close)
        return store

    # --- steps of a document's life ----------------------------------------------------------------

    async def add(self, *documents: NewDocument) -> list[str]:
        """Add them; their ids."""
        return [added.id for added in await self.store.add(documents)]

    async def claim(
        self,
        limit: int = 1,
        suspects: int = 0,
        *,
        queues: Sequence[str] = (QUEUE,),
        store: SqlStore | None = None,
    ) -> list[Claimed]:
        """One claim under a new token, in the order the jobs were made: a store tells a batch in any order."""
        claim = Claim(self.worker, tuple(queues), new_token(), limit, suspects)
        found = await (store or self.store).claim(claim)
        return sorted(found, key=lambda c: c.job.id)

    async def take(self, suspects: int = 0) -> Job:
        """Claim exactly one job (of any kind if `suspects`)."""
        found = await self.claim(0 if suspects else 1, suspects)
        assert len(found) == 1, "nothing to claim"
        return found[0].job

    async def settle(self, job: Job, outcome: Outcome, lane: str | None = None, **more: Any) -> bool:
        """Settle where the job stands."""
        return await self.store.settle(
            Settle(job, outcome, job.stage, job.lane if lane is None else lane, **more)
        )

    async def promoted(self, count: int) -> None:
        """Move what is due on to its queue; exactly this many."""
        assert await self.store.promote(Promote()) == count

    async def names_in_turn(self, count: int) -> list[str]:
        """Claim one by one: the names of the documents in the order in which they are handed out."""
        return [c.document.name for _ in range(count) for c in await self.claim()]

    async def status(self, document_id: str) -> Status:
        found = await self.store.status(ORG, document_id)
        assert found is not None
        return found

    # --- looking underneath ------------------------------------------------------------------------

    async def query(self, sql: str, *params: Any) -> list[Row]:
        """Rows of a statement of the test's own, on the store's reading connection."""
        return await self.store.driver.read(one(Query(sql, params)))

    async def execute(self, sql: str, *params: Any) -> list[Row]:
        """A change of the test's own, past the flusher."""
        self.tampered = True
        return await self.store.driver.write(one(Query(sql, params)))

    async def miscounted(self) -> dict[Any, tuple[int, int]]:
        """Where the counters are wrong."""
        return await self.store.driver.snapshot(lambda: miscounted(self.store.sql))

    async def job(self, document_id: str, name: str = "") -> dict[str, Any]:
        """The row of a document's job."""
        return (await self.table("job", f"WHERE key = 'doc-{document_id}{name and '/' + name}'"))[0]

    async def table(self, name: str, where: str = "") -> list[dict[str, Any]]:
        """The rows of a table, by column."""
        columns = await self.columns(name)
        found = await self.query(f"SELECT {', '.join(columns)} FROM {name} {where}")
        return [dict(zip(columns, row, strict=True)) for row in found]

    async def columns(self, table: str) -> list[str]:
        if self.sqlite:
            return [row[0] for row in await self.query(f"SELECT name FROM pragma_table_info('{table}')")]
        sql = (
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' "
            "AND table_name = $1 ORDER BY ordinal_position"
        )
        return [row[0] for row in await self.query(sql, table)]


def one(query: Query) -> Callable[[], Steps[list[Row]]]:
    """Steps of a single statement."""

    def steps() -> Steps[list[Row]]:
        return (yield query)

    return steps


def document(name: str = "", *, org: str = ORG, dedupe: str | None = None, **job: Any) -> NewDocument:
    """A small document; keyword arguments that it does not know go to its job."""
    number = next(_numbers)
    asked = NewJob(**{"pipeline": "books", "queue": QUEUE, "stage": "extract", "lease_ms": LEASE_MS, **job})
    content = f"content of {name or number}".encode()
    return NewDocument(
        id=f"d{number:07}", org=org, job=asked, name=name or f"n{number}", content_hash=f"h{number}",
        size=len(content), inline=content, dedupe=dedupe,
    )  # fmt: skip


def output(stage: str = "extract", data: bytes = b'"text"', **more: Any) -> StageOutput:
    return StageOutput(stage, 1, "in", f"out-{data.decode()}", len(data), data, **more)


def save(job: Job, stage: str = "chunk", lane: str = "", **more: Any) -> Save:
    """A checkpoint that moves the job on to `stage`."""
    return Save(job, stage, lane, LEASE_MS, **more)


DONE = Done()


def retry(delay_ms: int = 0, crashes: int = 0, suspect: bool = False) -> Retry:
    return Retry(delay_ms, "try again", BOOM, crashes, suspect)


def later(delay_ms: int = 0, **more: Any) -> Later:
    return Later(delay_ms, "not now", BOOM, **more)


def hold() -> Hold:
    return Hold("the lane is down", BOOM)


def dead(code: str = "unexpected", **more: Any) -> Dead:
    return Dead(Failure("extract", "ValueError", code, "boom"), "the last attempt failed", **more)


Write = Callable[[Callable[[], Steps[Any]]], Awaitable[Any]]
#: What becomes of a write instead: given the real one and its steps.
Fault = Callable[[Write, Callable[[], Steps[Any]]], Awaitable[Any]]


class Faulty:
    """A driver whose next writes go wrong: its faults are met one by one, after them it is as good as before."""

    def __init__(self, driver: Driver, faults: Sequence[Fault]) -> None:
        self._driver = driver
        self._faults = list(faults)
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def write(self, steps: Callable[[], Steps[Any]]) -> Any:
        self.writes += 1
        if self._faults:
            return await self._faults.pop(0)(self._driver.write, steps)
        return await self._driver.write(steps)
