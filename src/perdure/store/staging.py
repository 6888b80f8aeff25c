"""Words of a large document go into the index before the transaction that makes its chunks searchable.

The index takes nine tenths of the time that a text of 16 MB needs: two seconds, in which nobody else writes to SQLite
and a core of PostgreSQL is busy. So its words (and on PostgreSQL its vectors) are indexed some chunks at a time, under
the numbers that the chunks will have, and `chunk_staged` names those numbers: a search leaves them out. The save then
adds the chunks under these numbers and takes the rows of `chunk_staged` away. Rows of a save that never came are used
by the next one, or deleted after an hour (`forget_staged`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from perdure.errors import StoreBusy, StoreUnavailable
from perdure.store.base import Query, Row, Steps
from perdure.store.dialect import Dialect
from perdure.store.indexing import scope
from perdure.store.operations import NewChunk, Save

if TYPE_CHECKING:
    from perdure.store.sql_store import SqlStore

SLICE = 25  # chunks of a transaction
COLLECTION = "SELECT collection FROM document WHERE org = $1 AND id = $2"
KNOWN = (
    "SELECT id FROM chunk WHERE org = $1 AND document_id = $2 "
    "UNION ALL SELECT id FROM chunk_staged WHERE org = $1 AND document_id = $2"
)


async def stage(store: SqlStore, save: Save) -> None:
    """Index the words of its new chunks; those that are lost with a connection are indexed with the save."""
    with suppress(StoreUnavailable, StoreBusy):
        await _stage(store, save)


async def _stage(store: SqlStore, save: Save) -> None:
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
            some = partial(_some, store.sql, (*which, words, now_ms), new[n : n + SLICE])
            await store._write(some, aside=True)


def _some(sql: Dialect, common: Row, new: Sequence[NewChunk]) -> Steps[None]:
    made: list[Row] = [(one.chunk.id, one.words, one.chunk.model, one.chunk.vector) for one in new]
    if sql.STAGED_LAST is not None:
        last = (yield Query(sql.STAGED_LAST))[0][0]
        made = [(*row, last + n) for n, row in enumerate(made, 1)]
        for statement in sql.STAGED_RESERVE:
            yield Query(statement, (last + len(new),))
    yield Query(sql.STAGED_ADD, common, made)
