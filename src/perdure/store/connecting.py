"""Connections: each chunk has a list of its nearest ones in other documents, and all lists are right.

A list is the best of all that is near, by score and then by id, so the order in which it became known does not matter.
After its chunks are committed a document is looked around from:

    the lists of its chunks are filled,
    its chunks are put into the lists of others where they belong,
    lists of others that lost a chunk of it are filled: they still lead to the one that is gone.

Of two documents whoever was committed last sees the other. What was found is written only if it is all there still, and
what it tells of is locked meanwhile; otherwise it is looked for again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from perdure.errors import StoreBusy
from perdure.store.around import LOST, Around, Lists, Look, Moved, best
from perdure.store.base import Query, Row, Steps
from perdure.store.each import Each
from perdure.store.indexing import sliced
from perdure.store.searching import EACH, THRESHOLD, Searching

TRIES = 20
#: Lists that are filled, and written, at a time.
PIECE = 20
#: A document with more chunks is connected in turns with others of its kind, with rests.
LONG = 40

#: One at a time in an organisation, and none while the chunks of what it tells of change. PostgreSQL only.
ALONE = (
    "SELECT pg_advisory_xact_lock("
    "hashtextextended('perdure connections ' || current_schema() || ' ' || CAST($1 AS text), 0))"
)
LOCK = Each(
    "SELECT 1 FROM {r} JOIN indexed i ON i.org = $1 AND i.document_id = r.document_id "
    "ORDER BY i.document_id FOR SHARE OF i",
    1,
    document_id="text",
)
#: OFFSET 0, here and below: a row by its key, never a join, which a server without statistics makes of whole tables.
THERE = Each(
    "SELECT 1 FROM {r} WHERE EXISTS (SELECT 1 FROM chunk c WHERE c.org = $1 AND c.document_id = r.document_id "
    "AND c.id = r.id AND c.model = r.model LIMIT 1 OFFSET 0)",
    1,
    document_id="text",
    id="text",
    model="text",
)
_LISTED = (
    "SELECT n.document_id, n.chunk_id, n.other_document_id, n.other_id, n.score, n.model FROM {r} CROSS JOIN {n} "
    "WHERE EXISTS (SELECT 1 FROM chunk o WHERE o.org = $1 AND o.document_id = n.other_document_id "
    "AND o.id = n.other_id AND o.model = n.model LIMIT 1 OFFSET 0)"
)
_OF_R = "n.org = $1 AND n.document_id = r.document_id AND n.chunk_id = r.id"
LISTED = Each(
    f"{_LISTED} AND {_OF_R}".replace("{n}", "connection n"),
    1,
    of_all=_LISTED.replace("{n}", f"LATERAL (SELECT * FROM connection n WHERE {_OF_R} OFFSET 0) n"),
    document_id="text",
    id="text",
)


class Connecting(Searching):
    """See `perdure.store.base.Store` for what each verb promises."""

    _write: Callable[..., Any]

    async def connect(
        self, org: str, document_id: str, *, threshold: float = THRESHOLD, each: int = EACH
    ) -> int:
        for _ in range(TRIES):
            try:
                return await self._connect(org, document_id, threshold, each)
            except Moved:
                continue
        raise StoreBusy(f"the documents around {document_id} change faster than they can be connected")

    async def _connect(self, org: str, document_id: str, threshold: float, each: int) -> int:
        """Piece by piece, each in a transaction of its own: nobody waits for the rows of a large document."""
        ours, count = await self._rows(self.sql.CHUNKS_EMBEDDED, org, document_id), 0
        long = len(ours) > LONG
        for n in range(0, len(ours), PIECE):
            async with self.background.piece() if long else nullcontext():
                around = await Look(self, org, threshold, each).around(document_id, ours[n : n + PIECE])
                await self._keep(org, document_id, around, each, long)
            count += sum(len(near) for of, near in around.lists.items() if of[0] == document_id)
        lost = await Look(self, org, threshold, each).lost(document_id)
        await self._keep(org, document_id, lost, each, long)
        return count

    async def _keep(self, org: str, document_id: str, around: Around, each: int, long: bool) -> None:
        """Raises: Moved if something that they tell of is gone."""
        for part in around.parts(PIECE):
            if not await self._write(partial(self._put, org, document_id, part, each), aside=long):
                raise Moved

    def _put(self, org: str, document_id: str, around: Around, each: int) -> Steps[bool]:
        """Merge the lists with what is stored; False if something that they tell of is gone."""
        name, params = self.dialect_name, (org,)
        if name == "postgres":
            yield Query(ALONE, params)
            documents = sorted({*around.documents(), document_id})
            yield from LOCK.steps(name, params, [(id_,) for id_ in documents])
        wanted = sorted(around.chunks())
        if len((yield from THERE.steps(name, params, wanted))) < len(wanted):
            return False
        stored: Lists = defaultdict(dict)
        for row in (yield from LISTED.steps(name, params, sorted(around.lists))):
            stored[row[0], row[1]][row[2], row[3]] = (row[4], row[5])
        come: list[Row] = []
        gone: list[Row] = []
        for of, near in sorted(around.lists.items()):
            known = stored[of]
            new = best(known | near, each)
            come += [(org, *of, *place, *told) for place, told in new.items() if known.get(place) != told]
            gone += [(org, *of, *place) for place in known if place not in new]
        if around.lost:  # meanwhile more entries may have lost their chunk, or a chunk may be back
            lost = around.lost & {row[:3] for row in (yield Query(LOST, (org, document_id)))}
            gone += [(org, here, chunk, document_id, other) for here, chunk, other in lost]
        yield from sliced(self.sql.CONNECTION_DROP, sorted(gone))
        yield from sliced(self.sql.CONNECTION_ADD, come)
        return True
