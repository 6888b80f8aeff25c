"""Documents that leave the store and come back: what a purge may take and must take, and what an import may bring."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import apsw

from perdure.operate.retention import Limits
from tests.sim.promises import Violation
from tests.sim.tables import DocumentRow, Key

if TYPE_CHECKING:
    from tests.sim.book import Book
    from tests.sim.world import Process

#: What tells of documents after they are gone, and the rows of the stages themselves.
STAYS = {"delivery", "effect"}
#: What counts as a rest: not the news of its end that nobody has heard yet, nor the sign for those who keep a copy.
REAL = {"indexed": "AND expected > 0", "outbox": "AND token IS NOT NULL"}
NAMING = (
    "SELECT m.name FROM sqlite_master m JOIN pragma_table_info(m.name) c ON c.name = 'document_id' "
    "WHERE m.type = 'table'"
)
HISTORY = "SELECT job_key, generation, claim FROM attempt WHERE org = ? AND document_id = ?"
PURGED = "SELECT coalesce((SELECT value FROM tally WHERE name = 'purged'), 0)"


class Leaving:
    """Judges which documents go, and which come that were there before."""

    def __init__(self, book: Book) -> None:
        self.book, self.world, self.database = book, book.world, book.database
        self.gone: dict[str, DocumentRow] = {}
        self.ever: set[str] = set()  # that were gone once
        self.now: set[str] = set()  # that this transaction took
        self.purges = 0
        #: Processes, and the states of documents that they delete.
        self._asked: Counter[tuple[str, str]] = Counter()
        self._retaining: dict[str, Limits] = {}  # processes that keep to an age → to which
        self._ended_ms: dict[str, int] = {}  # documents → when they ended

    @contextmanager
    def asked_by(self, process: Process, *states: str) -> Iterator[None]:
        """Only here may it delete documents, and only such; one that is killed here may have a commit under way."""
        asked = Counter((process.name, state) for state in states)
        self._asked += asked
        yield
        self._asked -= asked

    @contextmanager
    def retained_by(self, process: Process, limits: Limits) -> Iterator[None]:
        """As `asked_by`, for what is older than these limits."""
        self._retaining[process.name] = limits
        try:
            with self.asked_by(process, "done", "dead", "cancelled"):
                yield
        finally:
            del self._retaining[process.name]

    def ended(self, document_id: str) -> None:
        """A document ended in this transaction."""
        self._ended_ms[document_id] = self.book.now_ms

    def age_ms(self, document_id: str) -> int:
        """Since it ended, by the latest time that the store's clock ever showed: it may have been set back."""
        return self.book.latest_ms - self._ended_ms.get(document_id, 0)

    def went(self, changes: dict[int, int], rowids: dict[int, Key], by: Process) -> None:
        """What a transaction deleted."""
        self.now = set()
        for rowid in [rowid for rowid, kind in changes.items() if kind == apsw.SQLITE_DELETE]:
            del changes[rowid]
            (id_,) = rowids.pop(rowid)
            document = self.gone[id_] = self.book.documents.pop(id_)
            self.now.add(id_)
            self.world.happened("purged", f"{id_} by {by.name}")
            if not self._asked[by.name, document.state]:
                raise Violation(
                    "acknowledged", f"{id_} was deleted by {by.name} while it was {document.state}"
                )
            limits = self._retaining.get(by.name)
            self.book.touched.by("purge" if limits is None else "retention", id_)
            if limits is not None:
                self._check_age(document, limits)
        if not self.now:
            return
        self.ever |= self.now
        self.purges += len(self.now)
        if (counted := self._rows(PURGED)[0][0]) != self.purges:
            raise Violation("counters", f"{counted} are counted as purged, {self.purges} were")
        self._forget_history()
        self._check_nothing_is_left()

    def _check_age(self, document: DocumentRow, limits: Limits) -> None:
        age_ms = limits.dead_age_ms if document.state == "dead" else limits.done_age_ms
        if age_ms is None or self.age_ms(document.id) < age_ms:
            raise Violation("acknowledged", f"{document.id} was deleted for its age, but it ended only now")

    def _forget_history(self) -> None:
        mine = {id_: f"doc-{id_}" for id_ in self.now}
        self.book.ended = {one for one in self.book.ended if one[0].partition("/")[0] not in mine.values()}
        for id_ in self.now:
            self.book.shelf.clear(id_)

    def _check_nothing_is_left(self) -> None:
        for id_ in sorted(self.now):
            for table in self._tables:
                if self._rows(
                    f"SELECT 1 FROM {table} WHERE document_id = ? {REAL.get(table, '')} LIMIT 1", id_
                ):
                    raise Violation("orphan", f"{id_} was purged, and rows of it are left in {table}")
            if self._rows("SELECT 1 FROM connection WHERE other_document_id = ? LIMIT 1", id_):
                raise Violation("orphan", f"{id_} was purged, and connections lead to it")

    def came(self, new: DocumentRow) -> None:
        """A document that was not there before the transaction."""
        old = self.gone.pop(new.id, None)
        if new.state == "open":
            if old is not None:  # a child of the same parent under the same key
                self._begin_anew(new.id, 1)
            return
        if old is None:
            raise Violation("history", f"{new.id} came {new.state}, and had never been there")
        self.world.happened("imported", new.id)
        if new.generation == old.generation and _content(new) != _content(old):
            raise Violation("acknowledged", f"{new.id} was imported as {new}, and had been {old}")
        self._begin_anew(new.id, new.generation + 1)  # a file may be older than its purge
        self.book.ended |= {
            (key, generation, claim) for key, generation, claim in self._rows(HISTORY, new.org, new.id)
        }

    def _begin_anew(self, id_: str, generation: int) -> None:
        """What was known of it from this generation on is about another life."""
        book, ledger = self.book, self.book.ledger
        if generation == 1:
            book.last_act.pop(id_, None)
        for effect in [key for key in book.effects if key[0] == id_ and key[2] >= generation]:
            del book.effects[effect]
        counts: Any
        for counts in (
            book.charged,
            ledger.runs,
            ledger.faults,
            ledger.crashes_alone,
            ledger.failed_alone,
            ledger.overdue,
        ):
            for key in [
                key for key in counts if key[0].partition("/")[0] == f"doc-{id_}" and key[-1] >= generation
            ]:
                del counts[key]

    @cached_property
    def _tables(self) -> list[str]:
        return sorted({row[0] for row in self._rows(NAMING)} - STAYS)

    def _rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.database.execute(sql, params).fetchall()


def _content(row: DocumentRow) -> Key:
    return (*row._replace(meta=b""), json.loads(row.meta))
