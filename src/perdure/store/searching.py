"""Search over chunks that are committed: by words, by vectors, and by both, fused by their ranks.

A chunk that is second by words and first by vectors beats one that is first by either alone: each list gives it
1 / (60 + its rank), and the sum is its score. Having all the words is telling where few have them, and counts twice
then; those with only some of them come far behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.core.chunk import Chunk, Completeness, Connection
from perdure.core.words import Asked, asked, snippet
from perdure.errors import InputInvalid, SettingInvalid
from perdure.store import indexing
from perdure.store.base import Query, Row, Steps
from perdure.store.near import Among, Near, Which
from perdure.store.reading import Reading
from perdure.store.records import Hit

if TYPE_CHECKING:
    from perdure.store.pgvector import PgVectors
    from perdure.store.vectors import Vectors

THRESHOLD = 0.6
EACH = 5
LIMIT_MAX = 100
#: Of each list this many take part in the fusion.
CANDIDATES = 100
#: Chunks with the words asked for that are ranked at most; of words that stand in more, not all can be the best.
RANKED = 5_000
#: With so many chunks that have every word, those that have only some are not looked for, and to have them is common.
ENOUGH = 30
FUSION = 60
#: A search whose hits are superseded while it looks begins again so often.
AGAIN = 10

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
            (every, some), near = await asyncio.gather(
                self._by_words(org, wanted, collection, document),
                self._by_vector(org, vector, collection, document),
            )
            ranked = _fused(every, some, near)[:limit]
            found = await self._found([num for num, _ in ranked], org, collection, document)
            tries -= 1
            if len(found) == len(ranked) or not tries:
                return [_hit(found[num], score, wanted) for num, score in ranked if num in found]
            # some were superseded while we looked, and their successors were not seen

    async def _by_words(
        self, org: str, wanted: Asked, collection: str | None, document: str | None
    ) -> tuple[list[int], list[int]]:
        """Chunks with every term, and others with some: all phrases, or any word where no phrase is asked for."""
        if not wanted.terms:
            return [], []
        all_terms = wanted.quoted + wanted.joined
        fewer = wanted.quoted or wanted.single

        def steps() -> Steps[tuple[list[int], list[int]]]:
            scope = indexing.scope(org, collection, document)
            alone = not (yield Query(self.sql.INDEXED_OTHERS, (org,)))
            params = (RANKED, CANDIDATES, *self.sql.looked_up(scope, all_terms, True, alone))
            every = [row[0] for row in (yield Query(self.sql.CHUNK_FOUND, params))]
            nothing_less = all_terms == fewer and (len(fewer) == 1 or bool(wanted.quoted))
            if len(every) >= ENOUGH or nothing_less:
                return every, []
            params = (RANKED, CANDIDATES, *self.sql.looked_up(scope, fewer, bool(wanted.quoted), alone))
            found = [row[0] for row in (yield Query(self.sql.CHUNK_FOUND, params))]
            return every, [num for num in found if num not in every]

        return await self._read(steps)

    async def _by_vector(
        self, org: str, vector: tuple[str, bytes] | None, collection: str | None, document: str | None
    ) -> list[int]:
        if vector is None:
            return []
        model, data = vector
        if not data or len(data) % 4:
            raise InputInvalid("a vector is float32 numbers as bytes, at least one")
        which, among = Which(org, model, len(data) // 4), Among(collection, document)
        # nothing that points away from what is asked for
        (found,) = await self._nearest(which, [data], CANDIDATES, among, least=1e-6)
        return [near.num for near in found]

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
        self, numbers: Sequence[int], org: str, collection: str | None = None, document: str | None = None
    ) -> dict[int, Row]:
        """Rows of CHUNK_HITS by number; without those that are gone or do not belong here."""
        if not numbers:
            return {}
        params = (org, collection, document, self.sql.many(numbers))
        return {row[0]: row for row in await self._rows(self.sql.CHUNK_HITS, *params)}

    async def chunks(self, org: str, document_id: str) -> list[Chunk]:
        return [Chunk(*row) for row in await self._rows(self.sql.CHUNKS, org, document_id)]

    async def completeness(self, org: str, document_id: str) -> Completeness:
        return Completeness(*(await self._rows(self.sql.COMPLETENESS, org, document_id))[0])

    async def connections(self, org: str, document_id: str, chunk_id: str | None = None) -> list[Connection]:
        found = await self._rows(self.sql.CONNECTIONS, org, document_id, chunk_id)
        return [Connection(*row) for row in found]


def _fused(every: list[int], some: list[int], near: list[int]) -> list[tuple[int, float]]:
    """Numbers and scores, best first."""
    scores: dict[int, float] = {}
    telling = 2.0 if len(every) < ENOUGH else 1.0
    behind = FUSION if every else 0
    for ranked, weight, first in ((every, telling, 1), (some, 1.0, 1 + behind), (near, 1.0, 1)):
        for rank, num in enumerate(ranked, first):
            scores[num] = scores.get(num, 0.0) + weight / (FUSION + rank)
    return sorted(scores.items(), key=lambda one: (-one[1], one[0]))


def _hit(row: Row, score: float, wanted: Asked) -> Hit:
    _, document_id, chunk_id, text, anchor, page, name = row
    return Hit(document_id, chunk_id, score, snippet(text, wanted.terms), anchor, page, name)
