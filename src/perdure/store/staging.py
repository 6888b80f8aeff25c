"""Words of a large document go into the index of SQLite before the transaction that makes its chunks searchable.

All others wait while one process writes to SQLite, and the index takes nine tenths of the time: two seconds for a text
of 16 MB. So its words are indexed some chunks at a time, under the numbers that the chunks will have, and
`chunk_staged` names those numbers: a search leaves them out. The save then adds the chunks under these numbers and
takes the rows of `chunk_staged` away. Rows of a save that never came are used by the next one, or deleted after a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from perdure.store.base import Query, Row, Steps
from perdure.store.indexing import scope
from perdure.store.operations import NewChunk, Save

if TYPE_CHECKING:
    from perdure.store.sql_store import SqlStore

SLICE = 50  # chunks of a transaction
OLD_MS = 86_400_000
COLLECTION = "SELECT collection FROM document WHERE org = $1 AND id = $2"
KNOWN = (
    "SELECT id FROM chunk WHERE org = $1 AND document_id = $2 "
    "UNION ALL SELECT id FROM chunk_staged WHERE org = $1 AND document_id = $2"
)
OLD = "DELETE FROM chunk_staged WHERE num IN (SELECT num FROM chunk_staged WHERE staged_ms < $1 LIMIT $2)"
LAST = (
    "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'chunk'), 0), "
    "coalesce((SELECT max(num) FROM chunk_staged), 0))"
)
ADD = (
    "INSERT INTO chunk_staged (org, document_id, scope, staged_ms, num, id, words) "
    "VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING"
)
#: No chunk that is added meanwhile gets one of these numbers.
RESERVE = (
    "UPDATE sqlite_sequence SET seq = max(seq, $1) WHERE name = 'chunk'",
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'chunk', $1 "
    "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'chunk')",
)


async def stage(store: SqlStore, save: Save) -> None:
    """Index the words of its new chunks."""
    assert save.chunks is not None
    which = (save.job.org, save.job.document_id)
    found = await store._rows(COLLECTION, *which)
    if not found:
        return
    words = " ".join(scope(which[0], found[0][0], which[1]))
    known = {id_ for (id_,) in await store._rows(KNOWN, *which)}
    new = [one for one in save.chunks.chunks if one.chunk.id not in known]
    now_ms = await store.now_ms()
    for n in range(0, len(new), SLICE):
        async with store.background.piece():
            await store._write(partial(_some, (*which, words, now_ms), new[n : n + SLICE]))


def _some(common: Row, new: Sequence[NewChunk]) -> Steps[None]:
    yield Query(OLD, (common[-1] - OLD_MS, SLICE))
    last = (yield Query(LAST))[0][0]
    yield Query(ADD, common, [(last + n, one.chunk.id, one.words) for n, one in enumerate(new, 1)])
    for statement in RESERVE:
        yield Query(statement, (last + len(new),))
