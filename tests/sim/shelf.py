"""The chunks of documents and what leads from them: what each transaction may do to them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.sim.documents import chunks_of
from tests.sim.promises import Violation
from tests.sim.tables import Key

if TYPE_CHECKING:
    from tests.sim.book import Book

CHUNKS = "SELECT id FROM chunk WHERE document_id = ?"
CONNECTIONS = "SELECT chunk_id, score FROM connection WHERE document_id = ?"
OUTPUT = "SELECT inline FROM saved WHERE document_id = ? AND pipeline = ? AND stage = ? AND generation = ?"


class Shelf:
    """What should be there by the saves alone, held against what is."""

    def __init__(self, book: Book) -> None:
        self.book, self.world, self.database = book, book.world, book.database
        self.chunks: defaultdict[str, set[str]] = defaultdict(set)
        self._generations: dict[str, int] = {}  # of the last save of chunks
        self._connections: defaultdict[str, set[tuple[str, float]]] = defaultdict(set)

    def keep(self, made: Iterable[Key]) -> None:
        """After a transaction that made these saves."""
        for key in sorted(made):
            if key[2] in ("three", "cut"):
                self._indexed(key[0], key[3])
            elif key[2] == "follow":
                self._followed(key)
            else:
                continue
            self._check(key[0])

    def clear(self, document_id: str) -> None:
        """The document is gone."""
        self.chunks[document_id], self._connections[document_id] = set(), set()

    def check_all(self) -> None:
        """Every document, in the end."""
        for document_id in self.book.documents:
            self._check(document_id)

    def _indexed(self, document_id: str, generation: int) -> None:
        new = {chunk.id for chunk in chunks_of(document_id, generation)}
        if self.chunks[document_id]:
            same = new == self.chunks[document_id]
            self.world.happened("chunks kept" if same else "chunks superseded", document_id)
        self.chunks[document_id], self._generations[document_id] = new, generation
        self._connections[document_id] = {one for one in self._connections[document_id] if one[0] in new}

    def _followed(self, key: Key) -> None:
        document_id, generation = key[0], key[3]
        if generation < self._generations[document_id]:
            self.world.happened("follow-up overtaken", document_id)
            return
        self.world.happened("connected", document_id)
        ((output,),) = self._rows(OUTPUT, *key)
        self._connections[document_id] = {
            (id_, float(json.loads(output))) for id_ in self.chunks[document_id]
        }

    def _check(self, document_id: str) -> None:
        chunks = {row[0] for row in self._rows(CHUNKS, document_id)}
        if chunks != self.chunks[document_id]:
            there = f"{sorted(chunks)}, not {sorted(self.chunks[document_id])}"
            raise Violation("indexed", f"the chunks of {document_id} are {there}")
        connections = {(row[0], row[1]) for row in self._rows(CONNECTIONS, document_id)}
        if connections != self._connections[document_id]:
            there = f"{sorted(connections)}, not {sorted(self._connections[document_id])}"
            raise Violation("indexed", f"the connections of {document_id} are {there}")

    def _rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.database.execute(sql, params).fetchall()
