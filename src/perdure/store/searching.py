"""Search over chunks that are committed: by words, by vectors, and by both.

Words find candidates by those of the query that tell chunks apart (`candidates`), vectors by their cosines; each
candidate of either is then measured in both ways (`ranking`). Which words tell chunks apart follows from the
organisation's own (`rarity`), so a search reads a bounded number of rows however large the store is, and no chunk is
too old to be found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from perdure.core.chunk import Chunk, Completeness, Connection
from perdure.core.words import Asked, asked, snippet, words
from perdure.errors import InputInvalid, SettingInvalid
from perdure.store import indexing
from perdure.store.background import Background, Worker, beside
from perdure.store.base import Query, Row, Steps
from perdure.store.candidates import Candidates
from perdure.store.near import Among, Near, Which
from perdure.store.ranking import ENOUGH, ENOUGH_ELSE, FEW, Measure, Wanted, fits, fused, share
from perdure.store.rarity import Rarity
from perdure.store.reading import Reading
from perdure.store.records import ALL, Hit, Part

if TYPE_CHECKING:
    from perdure.store.pgvector import PgVectors
    from perdure.store.vectors import Vectors

THRESHOLD = 0.6
EACH = 5
LIMIT_MAX = 100
#: Candidates that vectors give.
NEAREST = 100
#: A search whose hits are superseded while it looks begins again so often.
AGAIN = 10
#: Where a row of CHUNK_HITS has the document's name, the chunk's words and its vector.
NAME_AT, WORDS_AT, VECTOR_AT = 6, 8, 9

_log = logging.getLogger("perdure.store")


class Searching(Reading):
    """See `perdure.store.base.Store` for what each verb promises."""

    dialect_name: str
    _vectors: Vectors | None = None
    _server: PgVectors | None = None  # where the database can search vectors itself
    vector_room_bytes: int | None = None  # that the vectors of all organisations may take; None: 512 MB
    vectors_by: str = (
        "numpy"  # who searches vectors: this process, `pgvector`, or `auto`: the server where it can
    )

    @cached_property
    def background(self) -> Background:
        return Background()

    def give_way(self, worker: Worker) -> None:
        self.background.workers.add(worker)

    @cached_property
    def rarity(self) -> Rarity:
        return Rarity(self.driver)

    @property
    def vectors(self) -> Vectors:
        if self._vectors is None:
            from perdure.store import vectors  # numpy is loaded by whoever searches

            self._vectors = vectors.Vectors(self.driver, self.vector_room_bytes or vectors.ROOM_BYTES)
        return self._vectors

    async def open_vectors(self) -> None:
        """Find out who searches vectors; SettingInvalid where pgvector is demanded and cannot be had."""
        if self.vectors_by == "numpy":
            return
        why_not = "SQLite does not have it"
        if self.dialect_name == "postgres":
            from perdure.store.pgvector import PgVectors

            server = PgVectors(self.driver)
            why_not = await server.open()
            self._server = None if why_not else server
            _log.info("vectors are searched by %s", f"this process: {why_not}" if why_not else server)
        if why_not and self.vectors_by == "pgvector":
            raise SettingInvalid(f"PERDURE_VECTORS is pgvector: {why_not}; or set it to auto or numpy")

    async def close_vectors(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def search(
        self, org: str, query: str, vector: tuple[str, bytes] | None = None, *, collection: str | None = None,
        document: str | None = None, limit: int = 10,
    ) -> list[Hit]:  # fmt: skip
        if not 1 <= limit <= LIMIT_MAX:
            raise InputInvalid(f"a search gives 1 to {LIMIT_MAX} hits, not {limit}")
        wanted, tries = asked(query), AGAIN
        if wanted.quoted:
            vector = None  # what is near in meaning need not have the phrase
        while True:
            (terms, by_words, total), near = await asyncio.gather(
                self._by_words(org, wanted, collection, document),
                self._by_vector(org, vector, collection, document),
            )
            numbers = list(dict.fromkeys([*by_words, *(one.num for one in near)]))
            rows = await self._found(numbers, org, collection, document, vector)
            tries -= 1
            if len(rows) == len(numbers) or not tries:
                size = sum(len(row[WORDS_AT]) + len(row[NAME_AT]) for row in rows.values())
                size *= 1 + len(terms) // 4  # a few words are looked for as quickly as one
                found = await beside(size, _hits, rows, wanted, terms, vector, near, total)
                return [_hit(rows[num], score, wanted) for num, score in found[:limit]]
            # some were superseded while we looked, and their successors were not seen

    async def _by_words(
        self, org: str, wanted: Asked, collection: str | None, document: str | None
    ) -> tuple[list[Wanted], list[int], int]:
        """What each word weighs, chunks to be measured, and how many chunks the organisation has."""
        if not wanted.terms:
            return [], [], 0
        sample = await self.rarity.sample(org)

        def steps() -> Steps[tuple[list[Wanted], list[int]]]:
            alone = not (yield Query(self.sql.INDEXED_OTHERS, (org,)))
            scope = indexing.scope(org, collection, document)
            return (yield from Candidates(self.sql, sample, scope, alone).find(wanted))

        return *(await self._read(steps)), sample.total

    async def _by_vector(
        self, org: str, vector: tuple[str, bytes] | None, collection: str | None, document: str | None
    ) -> list[Near]:
        if vector is None:
            return []
        model, data = vector
        if not data or len(data) % 4:
            raise InputInvalid("a vector is float32 numbers as bytes, at least one")
        which, among = Which(org, model, len(data) // 4), Among(collection, document)
        # nothing that points away from what is asked for
        (found,) = await self._nearest(which, [data], NEAREST, among, least=1e-6)
        return found

    async def _nearest(
        self, which: Which, wanted: Sequence[bytes], limit: int | None, among: Among, least: float
    ) -> list[list[Near]]:
        """For each vector the most similar chunks that are committed (all, without a limit), best first."""
        if self._server is not None:
            found = await self._server.nearest(which, wanted, limit, among, least)
            if found is not None:
                return found
        return await self.vectors.nearest(which, wanted, limit, among, least)

    async def nearest(
        self, org: str, document_id: str, *, threshold: float = THRESHOLD, each: int = EACH
    ) -> list[Connection]:
        ours: dict[tuple[str, int], list[tuple[str, bytes]]] = {}
        for id_, model, vector in await self._rows(self.sql.CHUNKS_EMBEDDED, org, document_id):
            ours.setdefault((model, len(vector) // 4), []).append((id_, vector))
        pairs: list[Connection] = []
        for (model, dimensions), chunks in ours.items():
            which, among = Which(org, model, dimensions), Among(but=document_id)
            wanted = [vector for _, vector in chunks]
            found = await self._nearest(which, wanted, each, among, threshold)
            numbers = sorted({near.num for nears in found for near in nears})
            where = await self._found(numbers, org)
            pairs += [
                Connection(id_, where[near.num][1], where[near.num][2], near.score, model)
                for (id_, _), nears in zip(chunks, found, strict=True)
                for near in nears
                if near.num in where
            ]
        return pairs

    async def _found(
        self, numbers: Sequence[int], org: str, collection: str | None = None, document: str | None = None,
        vector: tuple[str, bytes] | None = None,
    ) -> dict[int, Row]:  # fmt: skip
        """Rows of CHUNK_HITS by number; without those that are gone or do not belong here."""
        if not numbers:
            return {}
        model, data = vector or ("", b"")
        params = (org, collection, document, self.sql.many(numbers), model, len(data))
        return {row[0]: row for row in await self._rows(self.sql.CHUNK_HITS, *params)}

    async def chunks(self, org: str, document_id: str, page: Part = ALL) -> list[Chunk]:
        found = await self._rows(self.sql.CHUNKS, org, document_id, page.most, page.first)
        return [Chunk(*row) for row in found]

    async def completeness(self, org: str, document_id: str) -> Completeness:
        return Completeness(*(await self._rows(self.sql.COMPLETENESS, org, document_id))[0])

    async def connections(
        self, org: str, document_id: str, chunk_id: str | None = None, page: Part = ALL
    ) -> list[Connection]:
        found = await self._rows(self.sql.CONNECTIONS, org, document_id, chunk_id, page.most, page.first)
        return [Connection(*row) for row in found]


def _hits(
    rows: dict[int, Row], wanted: Asked, terms: list[Wanted], vector: tuple[str, bytes] | None,
    near: list[Near], total: int,
) -> list[tuple[int, float]]:  # fmt: skip
    """Numbers and scores of the candidates, best first; none of them if none fits."""
    measure = Measure(terms, wanted.joined)
    names = {row[NAME_AT]: words(row[NAME_AT]) for row in rows.values()}
    measured = (
        {num: measure.fit([*row[WORDS_AT].split(), *names[row[NAME_AT]]]) for num, row in rows.items()}
        if terms
        else {}
    )
    cosines = {one.num: one.score for one in near if one.num in rows}
    if vector is not None:
        others = [num for num, row in rows.items() if num not in cosines and row[VECTOR_AT] is not None]
        cosines |= zip(others, _cosines(vector[1], [rows[num][VECTOR_AT] for num in others]), strict=True)
    least = min((one.score for one in near), default=0.0)
    model = vector[0] if vector else ""
    enough = ENOUGH.get(model, ENOUGH_ELSE)
    ranked = fused(measured, cosines, share(model, len(terms)), least, enough)
    if vector is not None and terms and total >= FEW:
        good = (fits(vector[0], measured[num], cosines.get(num, 0.0)) for num, _ in ranked[:LIMIT_MAX])
        ranked = ranked if any(good) else []
    return ranked


def _cosines(vector: bytes, others: Sequence[bytes]) -> list[float]:
    if not others:
        return []
    from perdure.store.matrix import cosines

    return cosines(vector, others)


def _hit(row: Row, score: float, wanted: Asked) -> Hit:
    _, document_id, chunk_id, text, anchor, page, name, heading, _, _ = row
    return Hit(
        document_id,
        chunk_id,
        score,
        snippet(text, wanted.terms),
        anchor,
        page,
        name,
        heading.replace("\n", " › "),
        text,
    )
