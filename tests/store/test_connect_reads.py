"""Connecting a document reads what it is connected with, however many chunks its organisation has."""

from __future__ import annotations

from random import Random

from tests.store.making import ORG, World, output, save
from tests.store.test_chunks import chunk, chunk_set, indexed, vector

LARGE, SMALL, EACH = 1_500, 20, 20
READ = (
    "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN ('chunk', 'connection'))"
    " + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN ('chunk', 'connection'))"
)


async def read_so_far(world: World) -> int:
    """Rows of chunks and connections that were read, whatever statement read them."""
    (row,) = await world.query(READ)
    return int(row[0])


async def test_it_does_not_read_all_chunks_for_each_entry(postgres_world: World) -> None:
    """A server without statistics compared each new entry with all chunks of the organisation."""
    world, random, read = postgres_world, Random(1), 0
    for name, count in (("large", LARGE), ("small", SMALL)):
        job = await indexed(world, name=name)
        made = [
            chunk(job.document_id, n, f"{name} {n}", vector(1.0, *(random.random() / 50 for _ in range(7))))
            for n in range(count)
        ]
        assert await world.store.save(save(job, output=output(), chunks=chunk_set(*made)))
        before = await read_so_far(world)
        other = await world.another()
        await other.connect(ORG, job.document_id, each=EACH)
        await other.close()  # a session reports what it read when it ends
        read = await read_so_far(world) - before
    written = len(await world.table("connection"))
    assert written >= SMALL * EACH
    assert read < 20 * written, f"{read} rows read, {written} entries written"
