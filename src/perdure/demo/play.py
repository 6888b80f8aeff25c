"""What happens in the demo: documents in, a worker killed in the middle of a book, another one that goes on.

`Play` looks at the store and at the turnstile again and again, tells what changed since the last look, and knows at
every moment how far each document is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from perdure.core.fingerprint import digest
from perdure.demo.fleet import DemoWorker, Fleet
from perdure.demo.server import Server
from perdure.demo.shelf import BOOK, Book
from perdure.demo.turnstile import Read, reads
from perdure.demo.words import attempt_line, pages_named
from perdure.engine.saving import item_fingerprint
from perdure.errors import PerdureError
from perdure.pipelines.document import documents, extract
from perdure.service import AsyncPerdure
from perdure.store.records import Attempt, Status

STAGES = tuple(stage.name for stage in documents.stages)
FINISHED = ("done", "dead", "cancelled")
LOOK_S = 0.06
#: A commit that the killed worker had sent may still arrive.
SETTLE_S = 0.1
#: The kill comes when so much of the book is saved.
SAVED_SHARE = 0.4

START_LIMIT_S = 30.0
MOMENT_LIMIT_S = 40.0
END_LIMIT_S = 90.0
FOLLOW_UP_LIMIT_S = 20.0


class DemoStuck(PerdureError):
    """The demo did not get on in time; the message says what it waited for."""

    code = "demo_stuck"


@dataclass(frozen=True, slots=True)
class Kill:
    """The killing: when, whom, what was in hand, and which pages of the book were saved."""

    at_s: float
    worker: DemoWorker
    in_hand: tuple[str, ...]
    saved: frozenset[int]


class Audience(Protocol):
    """Who looks on; see `screen`."""

    def tell(self, line: str, *, loud: bool = False) -> None:
        """Something happened."""

    def show(self, play: Play) -> None:
        """This is how it stands."""


@dataclass(slots=True)
class Play:
    """The demo as it stands."""

    app: AsyncPerdure
    fleet: Fleet
    server: Server
    org: str
    books: tuple[Book, ...]
    audience: Audience
    ids: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, Status] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    pages: frozenset[int] = frozenset()  # of the book, that are saved
    reads: list[Read] = field(default_factory=list)  # of the book
    worker_ids: dict[int, int] = field(default_factory=dict)  # number in the demo → id in the store
    kill: Kill | None = None
    resumed_s: float | None = None  # from the kill to the first page that is read after it
    _fingerprint: str | None = None

    # --- what happens ----------------------------------------------------------------------------

    async def add(self) -> None:
        """Hand everything in; durable when this returns."""
        for book in self.books:
            name, org = book.name, self.org
            if book.online:
                added = await self.app.add(pipeline=documents, url=self.server.url(book), name=name, org=org)
            else:
                added = await self.app.add(pipeline=documents, data=book.data, name=name, org=org)
            self.ids[name] = added.id

    async def start_worker(self) -> None:
        """One more worker, ready to claim."""
        worker = self.fleet.start()
        await self.until(partial(self._registered, worker), START_LIMIT_S, "a worker to start")
        self.audience.tell(f"worker {worker.number} is at work, pid {worker.pid}")

    async def _registered(self, worker: DemoWorker) -> bool:
        for record in await self.app.store.workers():
            if record.kind == "worker" and record.name.endswith(f":{worker.pid}"):
                self.worker_ids[worker.number] = record.id
                return True
        return False

    async def kill_worker(self) -> None:
        """Kill the worker when a good part of the book is saved."""
        await self.until(self._half_way, MOMENT_LIMIT_S, f"a good part of {BOOK} to be saved")
        victim = self.fleet.workers[-1]
        at_s = time.monotonic()
        await asyncio.to_thread(self.fleet.kill, victim)
        self.audience.tell(f"kill -9 {victim.pid}: worker {victim.number} is gone", loud=True)
        await asyncio.sleep(SETTLE_S)
        held = {job.document_id for job in await self.app.store.in_hand(self.worker_ids[victim.number])}
        names = tuple(name for name, id_ in self.ids.items() if id_ in held)
        if BOOK not in names:
            raise DemoStuck(f"{BOOK} was through before its worker could be killed; try again")
        self.pages = await self._saved_pages()
        self.kill = Kill(at_s, victim, names, self.pages)
        self.audience.tell(f"in its hands: {', '.join(names)}")
        self.audience.tell(f"{BOOK}: {pages_named(self.pages)} of {self.book.parts} are saved")

    async def _half_way(self) -> bool:
        return len(self.pages) >= SAVED_SHARE * self.book.parts

    async def finish(self) -> None:
        """Look on until every document is done or dead, and what follows is through."""
        await self.until(self._ended, END_LIMIT_S, "every document to end")
        await self.until(self._followed_up, FOLLOW_UP_LIMIT_S, "connections to be found")

    async def _ended(self) -> bool:
        ended = [status.state in FINISHED for status in self.statuses.values()]
        return len(ended) == len(self.books) and all(ended)

    async def _followed_up(self) -> bool:
        return not (await self.app.store.tally([self.org])).queues

    # --- looking ---------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], Awaitable[bool]], limit_s: float, what: str) -> None:
        """Look until it holds; DemoStuck says what did not come."""
        end_s = time.monotonic() + limit_s
        while True:
            self.fleet.check()
            await self.look()
            if await condition():
                return
            if time.monotonic() > end_s:
                left = [f"{s.name} {s.state}" for s in self.statuses.values() if s.state not in FINISHED]
                raise DemoStuck(
                    f"waited {limit_s:.0f} s for {what}; not finished: {', '.join(left) or 'nothing'}"
                )
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Read what is new and tell it."""
        before, found = self.statuses, await self.app.documents(org=self.org, limit=100)
        self.statuses = {status.name: status for status in found if status.name in self.ids}
        for name in self.ids:
            status = self.statuses.get(name)
            if status is not None and status != before.get(name):
                await self._tell_attempts(status)
        await self._look_at_the_book()
        self.audience.show(self)

    async def _tell_attempts(self, status: Status) -> None:
        told = len(self.attempts.get(status.name, ()))
        found = await self.app.attempts(status.id, self.org)
        own = [
            attempt for attempt in found if attempt.job_key == f"doc-{status.id}"
        ]  # not those of follow-up jobs
        self.attempts[status.name] = own
        for attempt in own[told:]:
            self.audience.tell(attempt_line(status, attempt))

    async def _look_at_the_book(self) -> None:
        status = self.statuses.get(BOOK)
        if status is None:
            return
        self.reads = [read for read in reads(self.fleet.turnstile) if read.document == status.id]
        before, total = len(self.pages), self.book.parts
        if status.stage == "extract":
            self.pages = await self._saved_pages()
        elif status.stage in STAGES[2:]:
            self.pages = frozenset(range(1, total + 1))
        if before * 4 // total < len(self.pages) * 4 // total:
            self.audience.tell(f"{BOOK}: {len(self.pages)} of {total} pages saved")
        if self.kill is not None and self.resumed_s is None:
            self._tell_resume(self.kill)

    def _tell_resume(self, kill: Kill) -> None:
        again = [read for read in self.reads if read.worker != kill.worker.number]
        if again:
            self.resumed_s = time.monotonic() - kill.at_s
            repeated = {read.page for read in again} & kill.saved
            so = "none is read again" if not repeated else f"and yet {pages_named(repeated)} read again"
            self.audience.tell(
                f"{BOOK}: worker {again[0].worker} goes on with page {again[0].page}, {self.resumed_s:.1f} s after "
                f"the kill: {pages_named(kill.saved)} were saved, {so}"
            )

    async def _saved_pages(self) -> frozenset[int]:
        """The pages of the book that a next attempt will take up, as the store has them."""
        store, id_ = self.app.store, self.ids[BOOK]
        if self._fingerprint is None:
            saves = {save.stage: save for save in await store.saves(self.org, id_, documents.name)}
            record = await store.document(self.org, id_)
            if record is None or "fetch" not in saves:
                return frozenset()
            read_from = digest(record.content_hash, None, saves["fetch"].output_hash)
            self._fingerprint = item_fingerprint(extract, read_from)
        found = await store.items(self.org, id_, documents.name, extract.name, self._fingerprint, 1)
        return frozenset(int(item.key) for item in found)

    # --- knowing ---------------------------------------------------------------------------------

    @property
    def book(self) -> Book:
        """The one whose pages are watched."""
        return next(book for book in self.books if book.name == BOOK)

    def count_in(self, state: str) -> int:
        """How many documents are in this state."""
        return sum(status.state == state for status in self.statuses.values())
