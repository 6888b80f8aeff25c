"""A document's chunks and connections, replaced within the transaction that saves the stage which made them.

Readers see those of one revision, never a mixture or nothing. What is stored already as it should be is not touched: a
save that is repeated writes nothing, and the same text keeps its chunk, its number and its connections. A follow-up
of an earlier generation that comes late changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from perdure.core.chunk import Connection
from perdure.core.model import Job
from perdure.store import rows
from perdure.store.base import Query, Row, Steps
from perdure.store.dialect import Dialect
from perdure.store.operations import ChunkSet, Save

#: Rows of one statement: a server ends those that take too long.
SLICE = 500
#: Chunks of a save, from which on others do not wait until they are written.
LARGE_CHUNKS = 500


def has_many_chunks(save: Save) -> bool:
    """Whether its chunks take so long to write that other saves must not wait for them."""
    return save.chunks is not None and len(save.chunks.chunks) >= LARGE_CHUNKS


def index(sql: Dialect, saves: Sequence[Save], now_ms: int) -> Steps[int]:
    """Write the chunks and connections of accepted saves; how many chunks they superseded."""
    superseded = 0
    for save in sorted(saves, key=lambda s: (s.job.org, s.job.document_id)):
        if save.chunks is not None:
            superseded += yield from _replace(sql, save.job, save.chunks, now_ms)
        if save.connections is not None:
            yield from _connect(sql, save.job, save.connections)
    return superseded


def _replace(sql: Dialect, job: Job, new: ChunkSet, now_ms: int) -> Steps[int]:
    superseded, which = 0, (job.org, job.document_id)
    revision, generation, collection = yield from _lock(sql, job)
    if job.generation < generation or (revision, generation) == (new.revision, job.generation):
        return superseded
    if revision != new.revision:
        superseded = yield from _exchange(sql, job, new, collection)
    # also if nothing differs: what follows from an earlier generation comes late from now on
    yield Query(sql.INDEXED_SET, (*which, new.revision, len(new.chunks), now_ms, job.generation))
    return superseded


def _exchange(sql: Dialect, job: Job, new: ChunkSet, collection: str) -> Steps[int]:
    which = (job.org, job.document_id)
    words = " ".join(scope(job.org, collection, job.document_id))
    chunks = {n.chunk.id: rows.chunk(job, n, words) for n in new.chunks}
    known: dict[str, str | None] = dict((yield Query(sql.CHUNK_IDS, which)))
    models = {n.chunk.id: n.chunk.model for n in new.chunks}
    gone = [(*which, id_) for id_ in sorted(known.keys() - chunks.keys())]
    other = [(*which, id_) for id_ in sorted(known) if id_ not in models or known[id_] != models[id_]]
    # what leads to them stays, and is not shown: it tells the follow-up whose lists must be filled
    yield from sliced(sql.CONNECTION_CUT, other)
    if gone:
        yield from expected(sql)
        yield from sliced(sql.CHUNK_DROP, gone)
        yield from expected(sql, over=True)
    if len(new.chunks) < LARGE_CHUNKS:
        yield from sliced(sql.CHUNK_ADD, list(chunks.values()))
    else:
        yield from sql.keep_staged(*which)
        yield from sliced(sql.CHUNK_ADD_STAGED, list(chunks.values()))
        yield Query(sql.STAGED_DROP, rows=[which])
    return len(gone)


def expected(sql: Dialect, over: bool = False) -> Steps[None]:
    """Chunks that are deleted from here on, until it is `over`, go as they should; all others are counted as a loss."""
    yield Query(sql.CHUNKS_GO, ("" if over else "1",))


def _connect(sql: Dialect, job: Job, connections: Sequence[Connection]) -> Steps[None]:
    which = (job.org, job.document_id)
    _, generation, _ = yield from _lock(sql, job)
    if job.generation < generation:  # whoever saved chunks since looks himself, and sees more
        return
    new = {rows.connection_key(c): rows.connection(job, c) for c in connections}
    known = set((yield Query(sql.CONNECTION_KEYS, which)))
    yield from sliced(sql.CONNECTION_DROP, [(*which, *key) for key in sorted(known - new.keys())])
    yield from sliced(sql.CONNECTION_ADD, [new[key] for key in sorted(new)])


def _lock(sql: Dialect, job: Job) -> Steps[Row]:
    """What is indexed of the document (revision, generation, collection), until we commit ours and nobody else's."""
    which = (job.org, job.document_id)
    yield Query(sql.INDEXED_ADD, which)  # so that there is a row to lock
    return (yield Query(sql.INDEXED_LOCK, which))[0]


def sliced(statement: str, all_rows: Sequence[Sequence[object]]) -> Steps[None]:
    """Run it for all rows, some hundred at a time."""
    for n in range(0, len(all_rows), SLICE):
        yield Query(statement, rows=all_rows[n : n + SLICE])


def scope(org: str, collection: str | None = None, document_id: str | None = None) -> list[str]:
    """Words that only chunks of this organisation, collection and document have in their scope, all of one length."""
    named = (("o", org), ("c", collection), ("d", document_id))
    return [
        kind + hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:24]
        for kind, name in named
        if name is not None
    ]
