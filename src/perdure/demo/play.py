"""What happens in the demo: documents in, two workers, one killed in the middle, the other goes on to the end.

`Play` looks at the ledger and the store again and again, tells what changed since the last look, and knows at every
moment which stage of which document ran where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from perdure.app import AsyncPerdure
from perdure.demo.fleet import DemoWorker, Fleet
from perdure.demo.ledger import BEGAN, ENDED, Entry, Ledger, now_ms
from perdure.demo.library import library
from perdure.demo.shelf import Book
from perdure.demo.words import attempt_line
from perdure.errors import PerdureError
from perdure.store.records import Attempt, Status

STAGES = tuple(stage.name for stage in library.stages)
LOOK_S = 0.08
#: A commit that the killed worker had sent may still arrive; nobody takes its documents back before 0.7 s.
SETTLE_S = 0.1
FINISHED = ("done", "dead", "cancelled")

START_LIMIT_S = 25.0
MOMENT_LIMIT_S = 20.0
END_LIMIT_S = 60.0


class DemoStuck(PerdureError):
    """The demo did not get on in time; the message says what it waited for."""

    code = "demo_stuck"


@dataclass(frozen=True, slots=True)
class InHand:
    """A document that the killed worker was busy with: what it had saved, and the stage it was at."""

    saved: tuple[str, ...]
    stage: str
    items: int

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        return f"{self.stage}, {self.items} paragraphs saved" if self.items else self.stage


@dataclass(frozen=True, slots=True)
class Kill:
    """The killing: when, whom, and what was in hand."""

    at_ms: int
    worker: int
    in_hand: dict[str, InHand]


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
    ledger: Ledger
    org: str
    books: list[Book]
    audience: Audience
    ids: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, Status] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    worker_ids: dict[int, int] = field(default_factory=dict)  # number in the demo → id in the store
    kill: Kill | None = None
    resumed_ms: dict[str, int] = field(
        default_factory=dict
    )  # document → milliseconds from the kill to its next stage

    # --- what happens ----------------------------------------------------------------------------

    async def add(self) -> None:
        """Hand everything in; durable when this returns."""
        added = await self.app.add_many(
            [
                {"data": b.data, "name": b.name, "org": self.org, "meta": {"trouble": b.trouble},
                 "collection": "shelf", "media_type": "text/plain"}
                for b in self.books
            ],
            pipeline=library,
        )  # fmt: skip
        self.ids = {book.name: answer.id for book, answer in zip(self.books, added, strict=True)}

    async def start_workers(self) -> None:
        """Two workers, ready to claim."""
        for worker in (self.fleet.start(), self.fleet.start()):
            await self.until(partial(self._registered, worker), START_LIMIT_S, "a worker to start")

    async def _registered(self, worker: DemoWorker) -> bool:
        for record in await self.app.store.workers():
            if record.kind == "worker" and record.name.endswith(f":{worker.pid}"):
                self.worker_ids[worker.number] = record.id
                return True
        return False

    async def kill_first(self) -> None:
        """Kill worker 1 when some of its documents are half-way."""
        await self.until(self._half_way, MOMENT_LIMIT_S, "worker 1 to be half-way through some documents")
        victim = self.fleet.workers[0]
        at_ms = now_ms()
        self.audience.tell(f"kill -9 {victim.pid}: worker 1 is gone, in the middle of its work", loud=True)
        await asyncio.to_thread(self.fleet.kill, victim)
        await asyncio.sleep(SETTLE_S)
        self.kill = Kill(at_ms, victim.number, await self._in_hand(self.worker_ids[victim.number]))
        for name, held in self.kill.in_hand.items():
            self.audience.tell(f"{name}: was at {held.place}; {', '.join(held.saved) or 'nothing'} saved")

    async def _in_hand(self, worker: int) -> dict[str, InHand]:
        """What the store knows of the killed worker's documents, before anybody takes them back."""
        store, names = self.app.store, {id_: name for name, id_ in self.ids.items()}
        found: dict[str, InHand] = {}
        for job in await store.in_hand(worker):
            saved = {save.stage for save in await store.saves(self.org, job.document_id, library.name)}
            rows = await store.rows(self.org, job.document_id, "paragraphs") if job.stage == "count" else []
            found[names[job.document_id]] = InHand(
                tuple(s for s in STAGES if s in saved), job.stage, len(rows)
            )
        if not found:
            raise DemoStuck(
                "the killed worker's documents were taken back before they could be looked at; try again"
            )
        return found

    async def _half_way(self) -> bool:
        """Two of its documents have saved something and one of those is among its paragraphs; others are done."""
        mine = {name: stage for name, stage in self.at_work(1).items() if stage != STAGES[0]}
        counting = any(stage == "count" and self.counted(name) >= 2 for name, stage in mine.items())
        return len(mine) >= 2 and counting and self.count_in("done") >= 2

    async def finish(self) -> None:
        """Look on until every document is done or dead."""
        await self.until(self._ended, END_LIMIT_S, "every document to end")

    async def _ended(self) -> bool:
        return len(self.statuses) == len(self.books) and all(
            status.state in FINISHED for status in self.statuses.values()
        )

    # --- looking ---------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], Awaitable[bool]], limit_s: float, what: str) -> None:
        """Look until it holds; DemoStuck says what did not come."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_s
        while True:
            self.fleet.check()
            await self.look()
            if await condition():
                return
            if loop.time() > end_s:
                open_ = ", ".join(
                    f"{s.name} {s.state}" for s in self.statuses.values() if s.state not in FINISHED
                )
                raise DemoStuck(f"waited {limit_s:.0f} s for {what}; not finished: {open_ or 'nothing'}")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Read what is new and tell it."""
        self.ledger.look()
        before, found = self.statuses, await self.app.documents(org=self.org, limit=100)
        self.statuses = {status.name: status for status in found}
        for name in self.ids:
            if (status := self.statuses.get(name)) != before.get(name) and status is not None:
                await self._tell_attempts(status)
        self._tell_resumes()
        self.audience.show(self)

    async def _tell_attempts(self, status: Status) -> None:
        told = len(self.attempts.get(status.name, ()))
        self.attempts[status.name] = await self.app.attempts(status.id, self.org)
        for attempt in self.attempts[status.name][told:]:
            self.audience.tell(attempt_line(status, attempt))

    def _tell_resumes(self) -> None:
        kill = self.kill
        if kill is None:
            return
        for name, held in kill.in_hand.items():
            again = next(
                (e for e in self.runs(name) if e.worker != kill.worker and e.at_ms >= kill.at_ms), None
            )
            if again is not None and name not in self.resumed_ms:
                self.resumed_ms[name] = again.at_ms - kill.at_ms
                taken = f"; {', '.join(held.saved)} taken up from the save" if held.saved else ""
                self.audience.tell(
                    f"{name}: worker {again.worker} goes on at {again.stage}, {self.resumed_ms[name] / 1000:.1f} s "
                    f"after the kill{taken}"
                )

    # --- knowing ---------------------------------------------------------------------------------

    def runs(self, name: str, stage: str | None = None, *, items: bool = False) -> list[Entry]:
        """The beginnings in the ledger: of a document's stages, or of the items of a stage."""
        return [
            e
            for e in self.ledger.entries
            if e.document == name
            and e.what == BEGAN
            and (stage in (None, e.stage))
            and (e.item is not None) == items
        ]

    def at_work(self, worker: int) -> dict[str, str]:
        """Document → stage that this worker is running now, by the ledger."""
        now: dict[str, str] = {}
        for entry in self.ledger.entries:
            if entry.item is None and entry.worker == worker:
                if entry.what == BEGAN:
                    now[entry.document] = entry.stage
                else:
                    now.pop(entry.document, None)
        return now

    def counted(self, name: str) -> int:
        """How many paragraphs of a document were counted."""
        return len(
            {
                e.item
                for e in self.ledger.entries
                if e.document == name and e.item is not None and e.what == ENDED
            }
        )

    def count_in(self, state: str) -> int:
        """How many documents are in this state."""
        return sum(status.state == state for status in self.statuses.values())
