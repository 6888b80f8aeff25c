"""A store on PostgreSQL that three programs have open: two whose statements are interleaved, and one that prepares
documents and looks at what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import asyncpg

from perdure.core.handover import Handover
from perdure.core.model import Job, Policy
from perdure.core.token import new_token
from perdure.store.archive import Archived
from perdure.store.base import BREAKER, Row
from perdure.store.feed import NAMES, START, Happened
from perdure.store.operations import Claim, HandOver, NewDocument, NewEvent, Settle
from perdure.store.sql_store import SqlStore
from perdure.store.webhooks import Webhook
from tests.pairs.stepping import Side, SteppedDriver, Watch
from tests.store.making import BOOM, DONE, ORG, QUEUE, START_MS, World, dead, document, retry, save

LANE = "ocr"
EARLIER = "llm"
LIMIT = "k"
#: Documents that wait for a dependency, with room under a limit that they got before it went down.
HELD = ("held", "limited", "probing", "ramping", "lent")
#: A pipeline that a worker has all the time, and those that no worker had for a while.
SERVED, UNSERVED = "books", ("films", "songs")
#: What a run leaves behind; clients, queues and lanes stay.
_TABLES = (
    "outbox", "saved", "item", "emitted", "attempt", "dead", "job", "document", "connection", "chunk", "indexed",
    "once", "feed", "delivery", "webhook", "act", "counter", "tally", "turn", "slot", "dependency", "retry_job",
    "flow", "queue_time",
)  # fmt: skip
_RESET = ";".join(
    [
        *(f"DELETE FROM {table}" for table in _TABLES),
        "DELETE FROM lane WHERE name <> ''",
        "UPDATE queue SET paused = FALSE",
    ]
)  # fmt: skip


@dataclass
class Subject:
    """A document that the operations are about."""

    new: NewDocument
    state: str
    job: Job | None = None  # as it was claimed, or as it stands
    archived: Archived | None = None
    generation: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.new.id


class Stepped(World):
    """As `World`, with the two other programs; for PostgreSQL."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.stores: list[SqlStore] = []
        self.pids: list[int] = []
        self.drivers: list[SteppedDriver] = []
        self._more = AsyncExitStack()
        self._eye: asyncpg.Connection | None = None

    async def __aenter__(self) -> Stepped:
        await super().__aenter__()
        await self.store.declare([QUEUE], [""])
        for _ in range(2):
            driver = SteppedDriver(self.url)
            store = SqlStore(driver, "postgres", self.clock)
            await store.open()
            self._more.push_async_callback(store.close)
            self.pids.append(await driver.session())
            self.drivers.append(driver)
            self.stores.append(store)
        self._eye = await asyncpg.connect(self.url)
        self._more.push_async_callback(self._eye.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for driver in self.drivers:
            driver.side = None
        await self._more.aclose()
        await super().__aexit__(kind, error, trace)

    @property
    def watch(self) -> Watch:
        assert self._eye is not None
        return Watch(self._eye)

    async def look(self, sql: str, *params: Any) -> list[Row]:
        """What is committed now."""
        assert self._eye is not None
        return [tuple(row) for row in await self._eye.fetch(sql, *params)]

    async def reset(self) -> None:
        """An empty store, as at the beginning."""
        assert self._eye is not None
        await self._eye.execute(_RESET)
        self.clock.ms = START_MS
        for store in (self.store, *self.stores):
            store.flusher._known.clear()
            store.flusher._written.clear()
        await self.register_clients()

    async def register_clients(self) -> None:
        """A program's first write makes its own row; what is interleaved are the later ones."""
        for store in (self.store, *self.stores):
            if not store.flusher.client:
                store.flusher.client = await store._register_client()

    def sides(self, names: Sequence[str]) -> list[Side]:
        made = [Side(name) for name in names]
        for driver, side in zip(self.drivers, made, strict=True):
            driver.side = side
        return made

    def release(self) -> None:
        """From here on the two programs run freely."""
        for driver in self.drivers:
            driver.side = None

    # --- documents in every state ----------------------------------------------------------------

    async def subject(self, state: str, name: str) -> Subject:
        """A document that stands so, and how it came there by the store's own verbs."""
        if state in HELD:
            return await self._held(state, name)
        if state == "unserved":
            return await self._unserved(name)
        new = replace(
            document(name, policy=Policy(hooks=("done", "dead") if state in ("running", "expired") else ())),
            dedupe=f"key:{name}",
        )
        await self.add(new)
        subject = Subject(new, state)
        if state != "queued":
            subject.job = next(c.job for c in await self.claim(9) if c.job.document_id == new.id)
            await self._moved(subject, subject.job)
        return subject

    async def _held(self, state: str, name: str) -> Subject:
        limit: dict[str, Any] = {} if state == "held" else {"limit_key": LIMIT, "limit_each": 2}
        new = replace(document(name, lane=LANE, **limit), dedupe=f"key:{name}")
        await self.store.declare([QUEUE], [LANE])
        if state == "held":
            await self.store.hold(LANE, "away", "somebody")
        await self.add(new)
        if state in ("limited", "ramping"):
            await self.add(document(f"{name}, ready"))  # a claim beside it finds something
        if state != "held":
            await self.store.hold(LANE, "away", "somebody" if state == "limited" else BREAKER)
        if state == "ramping":
            await self.store.probed(LANE, True)
            await self._ramping_before()
        self.clock.turn(10_000)  # a probe is due
        if state == "lent":
            await self.store.lend()
        return Subject(new, state)

    async def _unserved(self, name: str) -> Subject:
        """It and another one, each in a lane that is down; their pipelines' names sort in the order that their lanes'
        do not."""
        lanes, films = (LANE, f"{EARLIER}+{LANE}"), UNSERVED[0]
        await self.store.declare([QUEUE], lanes)
        await self.store.hold(LANE, "away", "somebody")
        new = replace(document(name, lane=lanes[0], pipeline=films), dedupe=f"key:{name}")
        await self.add(new, document(lane=lanes[1], pipeline=UNSERVED[1]), document(pipeline=films))
        for _ in range(2):
            await self.add(*(document(pipeline=SERVED) for _ in range(3)))
            claim = Claim(self.worker, (QUEUE,), new_token(), 3, pipelines=(SERVED,))
            for claimed in await self.store.claim(claim):
                await self.settle(claimed.job, DONE)
            self.clock.turn(30_000)
            await self.store.attend()
        return Subject(new, "unserved")

    async def _ramping_before(self) -> None:
        """Another dependency, whose turn to be up again is before."""
        await self.store.declare([QUEUE], [EARLIER])
        await self.add(document(lane=EARLIER))
        await self.store.hold(EARLIER, "away", BREAKER)
        await self.store.probed(EARLIER, True)

    async def _moved(self, subject: Subject, job: Job) -> None:
        match subject.state:
            case "done" | "child":
                await self.store.save(save(job, output=_output()))
                await self.settle(job, DONE)
            case "dead" | "exported" | "told":
                await self.settle(job, dead())
            case "waiting":
                await self.settle(job, retry(1_000))
                self.clock.turn(2_000)
            case "expired":
                self.clock.turn(60_000)
            case "remote" | "sent":
                subject.job = await self._handed_over(job)
        if subject.state == "exported":
            (subject.archived,) = await self.store.archived([(ORG, subject.id)])
            await self.store.purge([(ORG, subject.id)])
        if subject.state == "told":
            subject.extra["delivery"] = await self._delivery(subject.id)

    async def _delivery(self, id_: str) -> str:
        """The number of a delivery about the document, which waits to be sent."""
        webhook = Webhook(f"webhook-{id_}", ORG, "http://127.0.0.1:9/", NAMES, "s", START, 0)
        await self.store.add_webhook(webhook, "ann")
        await self.store.tell_webhook(webhook, [Happened("1-1", ORG, 0, "document.dead", id_, {})])
        return (await self.store.deliveries(ORG, webhook.id))[0].id

    async def _handed_over(self, job: Job) -> Job:
        token = new_token()
        assert await self.store.hand_over(handing(job, token))
        found = await self.store.job_at(ORG, job.document_id, job.key)
        assert found is not None
        assert found.token == token
        return found

    async def standing(self, subject: Subject) -> Job | None:
        """The job that an operation brings along: as it was claimed, else as it stands under a token of nobody."""
        if subject.job is not None:
            return subject.job
        found = await self.store.job_at(ORG, subject.id, f"doc-{subject.id}")
        return None if found is None else replace(found, token=1, worker=self.worker, claimed_ms=START_MS)


def _output() -> Any:
    from tests.store.making import output

    return output()


def handing(job: Job, token: int) -> HandOver:
    given = Handover("extract", "Extract", "Extracted", "Failed", "documents", 1, "in", 30_000, 3, 1_000)
    event = NewEvent(f"e{token}", job.org, job.document_id, "Extract", "{}")
    return HandOver(job, token, "extract", "", given.to_text(), 30_000, event)


def taken_back(job: Job) -> Settle:
    """As a sweep takes a job back whose lease is over."""
    from perdure.core.outcome import Retry

    return Settle(
        job, Retry(0, "the lease is over", BOOM, 0, True), job.stage, job.lane, expired_only=True, ours=False
    )
