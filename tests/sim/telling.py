"""The feed: each transaction must tell what it did to documents, that and nothing else; and one who follows it."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.errors import StoreError
from perdure.store.feed import START
from perdure.store.sql_store import SqlStore
from tests.sim.driver import SimStore
from tests.sim.promises import Violation
from tests.sim.tables import DocumentRow

if TYPE_CHECKING:
    from tests.sim.book import Book
    from tests.sim.world import Process

Told = tuple[str, str, int]  # what, document, generation
FEED = "SELECT name, document_id, data FROM feed WHERE number = ?"
PLACES = "SELECT change || '-' || number FROM feed WHERE org = ? ORDER BY change, number"
ORGS = ("a", "b", "c")


class Telling:
    """Judges what a transaction says of itself."""

    def __init__(self, book: Book) -> None:
        self.book, self.world = book, book.world

    def check(self, numbers: Iterable[int], turned: Sequence[tuple[DocumentRow, DocumentRow]]) -> None:
        """The entries that a transaction wrote, and the documents that it changed."""
        told = [one for number in sorted(numbers) for one in self._told(number)]
        happened = [*self.book.marked_now, *(one for pair in turned for one in _happened(*pair, told))]
        if sorted(told, key=_document) != sorted(happened, key=_document):
            raise Violation("feed", f"the feed tells {told}, but it was {happened}")

    def _told(self, number: int) -> Iterable[Told]:
        row: Any = self.book.database.execute(FEED, (number,)).fetchall()[0]
        name, document_id, data = row
        what, about = name.removeprefix("document."), json.loads(data)
        self.world.happened(f"feed: {what}", document_id)
        if document_id not in self.book.documents:
            raise Violation("feed", f"the feed tells that {document_id} was {what}, and it is not there")
        if what != "held":
            yield what, document_id, about.get("generation", self.book.documents[document_id].generation)


def _happened(old: DocumentRow, new: DocumentRow, told: Sequence[Told]) -> Iterable[Told]:
    if new.generation != old.generation:
        if old.state == "open":  # it may have ended on the way, before its parent had other content for it
            yield from [one for one in told if one in _ends(old)][:1]
        yield "requeued", new.id, new.generation
    elif new.state != old.state:
        yield new.state, new.id, new.generation


def _ends(document: DocumentRow) -> list[Told]:
    return [(state, document.id, document.generation) for state in ("done", "dead")]


def _document(told: Told) -> tuple[str, bool]:
    return told[1], told[0] not in ("degraded", "repaired")


class Follower:
    """Reads the feed from place to place, and remembers what it has read when it is killed."""

    def __init__(self, book: Book) -> None:
        self.book, self.world = book, book.world
        self.read: defaultdict[str, list[str]] = defaultdict(list)  # by organisation, the places

    async def run(self, process: Process) -> None:
        store = SimStore(process, self.book)
        while True:
            await asyncio.sleep(1.0 + self.world.rng.random())
            with suppress(StoreError):
                await self.catch_up(store, self.world.rng.choice(ORGS), self.world.rng.choice((1, 5, 100)))

    async def catch_up(self, store: SqlStore, org: str, limit: int) -> None:
        """To its end, so many entries at a time."""
        read = self.read[org]
        while found := await store.feed(org, after := read[-1] if read else START, limit):
            if after == (read[-1] if read else START):  # else the one before us was not dead but late
                read += [one.place for one in found]
            self.world.happened("feed followed", org)

    def check(self) -> None:
        """Once it has read to the end: it has read all there is, each once and in order; some may be purged since."""
        for org in ORGS:
            there = [row[0] for row in self.book.database.execute(PLACES, (org,))]
            if (
                len(set(self.read[org])) < len(self.read[org])
                or [one for one in self.read[org] if one in there] != there
            ):
                raise Violation("feed", f"of {org} was read {self.read[org]}, and there is {there}")
