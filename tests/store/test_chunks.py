"""Chunks and connections: replaced with the save that made them, all or nothing, and never twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perdure.core.chunk import Chunk, Completeness, Connection, chunk_id, revision
from perdure.core.model import Job
from perdure.core.words import words
from perdure.store.operations import ChunkSet, NewChunk, NewJob, Requeue, Settle
from perdure.store.sql_store import SqlStore
from tests.store.making import DONE, ORG, World, document, output, save

MODEL = "toy"


def vector(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


def chunk(document_id: str, position: int, text: str, vec: bytes | None = None) -> Chunk:
    start = position * 1000
    page = position + 1
    return Chunk(
        chunk_id(document_id, "hash", position, text), position, start, start + len(text), text, f"page={page}", page,
        MODEL if vec else None, vec,
    )  # fmt: skip


def chunk_set(*chunks: Chunk) -> ChunkSet:
    return ChunkSet(revision(chunks), tuple(NewChunk(c, " ".join(words(c.text))) for c in chunks))


async def indexed(
    world: World, *texts: str, name: str = "", vectors: list[bytes] | None = None, **more: Any
) -> Job:
    """A document whose chunks are these texts, still in hand."""
    (id_,) = await world.add(document(name, **more))
    (claim,) = await world.claim()
    assert claim.job.document_id == id_
    made = [chunk(id_, n, t, vectors[n] if vectors else None) for n, t in enumerate(texts)]
    assert await world.store.save(save(claim.job, output=output(), chunks=chunk_set(*made)))
    return claim.job


async def texts(world: World, query: str, **more: Any) -> list[str]:
    """The beginnings of what a search finds."""
    return [hit.snippet for hit in await world.store.search(ORG, query, **more)]


async def test_chunks_are_stored_with_the_save_and_found_from_then_on(world: World) -> None:
    assert await texts(world, "whales") == []

    job = await indexed(world, "whales sing", "ships sink", name="moby")

    (hit,) = await world.store.search(ORG, "whales")
    assert (hit.document_id, hit.snippet, hit.anchor, hit.page, hit.name) == (
        job.document_id, "whales sing", "page=1", 1, "moby",
    )  # fmt: skip
    stored = await world.store.chunks(ORG, job.document_id)
    assert stored == [chunk(job.document_id, 0, "whales sing"), chunk(job.document_id, 1, "ships sink")]
    assert hit.chunk_id == stored[0].id
    assert await world.store.completeness(ORG, job.document_id) == Completeness(2, 2, 0)


async def test_the_same_chunks_again_change_nothing_at_all(world: World) -> None:
    job = await indexed(world, "whales sing", "ships sink", vectors=[vector(1, 0), vector(0, 1)])
    before = await world.table("chunk"), await world.table("indexed")
    same = [
        chunk(job.document_id, 0, "whales sing", vector(1, 0)),
        chunk(job.document_id, 1, "ships sink", vector(0, 1)),
    ]
    world.clock.turn(1000)

    assert await world.store.save(save(job, output=output(), chunks=chunk_set(*same)))

    assert (await world.table("chunk"), await world.table("indexed")) == before
    assert await world.store.completeness(ORG, job.document_id) == Completeness(2, 2, 2)


async def test_a_new_model_keeps_ids_and_numbers(world: World) -> None:
    job = await indexed(world, "whales sing", vectors=[vector(1, 0)])
    (before,) = await world.table("chunk")
    other = replace(chunk(job.document_id, 0, "whales sing", vector(1, 2, 3)), model="other")

    assert await world.store.save(save(job, output=output(), chunks=chunk_set(other)))

    (after,) = await world.table("chunk")
    assert (after["num"], after["id"], after["model"]) == (before["num"], before["id"], "other")
    assert len(await texts(world, "whales")) == 1


async def test_new_content_supersedes_the_old_in_one_transaction(world: World) -> None:
    job = await indexed(world, "the old whale", "what stays")
    kept = await world.table("chunk", "WHERE position = 1")
    reader = await world.another()
    seen: list[tuple[str, ...]] = []
    over = asyncio.Event()

    async def read() -> None:
        while not over.is_set():
            seen.append(tuple(sorted(hit.snippet for hit in await reader.search(ORG, "whale"))))

    reading = asyncio.create_task(read())
    for n in range(10):
        word = "new" if n % 2 == 0 else "old"
        new = [chunk(job.document_id, 0, f"the {word} whale"), chunk(job.document_id, 1, "what stays")]
        assert await world.store.save(save(job, output=output(), chunks=chunk_set(*new)))
        await asyncio.sleep(0.01)
    over.set()
    await reading

    assert set(seen) <= {("the old whale",), ("the new whale",)}, "a mixture, or nothing"
    assert await world.table("chunk", "WHERE position = 1") == kept
    assert len(await world.table("chunk")) == 2


async def test_no_chunks_at_all_takes_them_away_and_a_save_without_any_leaves_them(world: World) -> None:
    job = await indexed(world, "whales sing")

    await world.store.save(save(job, output=output()))
    assert await texts(world, "whales") == ["whales sing"]
    await world.store.save(save(job, output=output(), chunks=chunk_set()))

    assert await texts(world, "whales") == []
    assert await world.store.completeness(ORG, job.document_id) == Completeness(0, 0, 0)


async def test_a_fenced_save_writes_no_chunks_and_no_connections(world: World) -> None:
    job = await indexed(world, "whales sing")
    late = replace(job, token=job.token + 1)
    pair = Connection("a", "d", "b", 0.9, MODEL)
    before = [await world.table(t) for t in ("chunk", "indexed", "connection")]

    new = chunk_set(chunk(job.document_id, 0, "something else"))
    assert not await world.store.save(save(late, output=output(), chunks=new, connections=(pair,)))

    assert [await world.table(t) for t in ("chunk", "indexed", "connection")] == before


async def test_chunks_come_with_the_last_save_too_and_outlive_a_requeue(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    last = save(job, output=output(), chunks=chunk_set(chunk(id_, 0, "whales sing")))

    assert await world.store.settle(Settle(job, DONE, "chunk", "", last))
    again = document()
    assert await world.store.requeue(Requeue(ORG, id_, again.job)) == "requeued"

    assert await texts(world, "whales") == ["whales sing"]


async def test_what_the_database_refuses_fails_alone_and_leaves_the_old_chunks(world: World) -> None:
    job = await indexed(world, "whales sing")
    broken = chunk_set(replace(chunk(job.document_id, 0, "x"), position=2**70))

    answers = await asyncio.gather(
        world.store.save(save(job, output=output(), chunks=broken)), return_exceptions=True
    )

    assert getattr(answers[0], "code", None) == "unstorable"
    assert await texts(world, "whales") == ["whales sing"]


# --- connections ---------------------------------------------------------------------------------


async def connect(world: World, job: Job, **options: Any) -> list[Connection]:
    pairs = await world.store.nearest(ORG, job.document_id, **options)
    assert await world.store.save(save(job, output=output("connect"), connections=tuple(pairs)))
    return pairs


async def test_each_chunk_is_connected_with_its_nearest_in_other_documents(world: World) -> None:
    first = await indexed(world, "a", "b", vectors=[vector(1, 0), vector(0, 1)])
    second = await indexed(world, "c", "d", vectors=[vector(1, 0.1), vector(-1, 0)])
    await indexed(world, "of others", vectors=[vector(1, 0)], org="elsewhere")

    (pair,) = await connect(world, second)

    chunks = [await world.store.chunks(ORG, job.document_id) for job in (first, second)]
    assert (pair.chunk_id, pair.other_document_id, pair.other_id) == (
        chunks[1][0].id,
        first.document_id,
        chunks[0][0].id,
    )
    assert 0.99 < pair.score < 1
    # found from either side, by document and by chunk
    assert await world.store.connections(ORG, second.document_id) == [pair]
    assert await world.store.connections(ORG, first.document_id) == [
        Connection(chunks[0][0].id, second.document_id, chunks[1][0].id, pair.score, MODEL)
    ]
    assert await world.store.connections(ORG, first.document_id, chunks[0][1].id) == []


async def test_at_most_so_many_each_above_the_threshold_and_twice_is_once(world: World) -> None:
    for n in range(8):
        await indexed(world, f"t{n}", vectors=[vector(1, n / 10)])
    job = await indexed(world, "mine", vectors=[vector(1, 0)])

    pairs = await connect(world, job)
    again = await connect(world, job)

    assert len(pairs) == 5
    assert [p.score for p in pairs] == sorted((p.score for p in pairs), reverse=True)
    assert again == pairs
    assert len(await world.table("connection")) == 5
    assert len(await connect(world, job, threshold=0.999, each=3)) == 1
    assert len(await world.table("connection")) == 1, "what is not near enough any more is gone"


async def test_connections_follow_when_either_side_is_superseded(world: World) -> None:
    first = await indexed(world, "a", vectors=[vector(1, 0)])
    second = await indexed(world, "b", vectors=[vector(1, 0)])
    pairs = await connect(world, second)
    assert len(pairs) == 1

    new = chunk(first.document_id, 0, "a, revised", vector(1, 0))
    await world.store.save(save(first, output=output(), chunks=chunk_set(new)))
    assert await world.store.connections(ORG, second.document_id) == []
    # a connecting job that read before the change saves what it found: no error, and nothing that leads nowhere
    assert await world.store.save(save(second, output=output(), connections=tuple(pairs)))
    assert await world.store.connections(ORG, second.document_id) == []

    await connect(world, first)
    (seen,) = await world.store.connections(ORG, second.document_id)
    assert seen.other_id == new.id


async def test_a_follow_up_that_the_same_text_overtook_changes_nothing(world: World) -> None:
    """A second generation saves the chunks that are there already and connects them; then the first one comes."""
    await indexed(world, "b", vectors=[vector(1, 0)])
    job = await indexed(world, "a", vectors=[vector(1, 0)])
    same = chunk_set(chunk(job.document_id, 0, "a", vector(1, 0)))
    last = save(
        job, output=output(), chunks=same, jobs=(NewJob("connect", "documents", "find", name="connect"),)
    )
    assert await world.store.settle(Settle(job, DONE, "chunk", "", last))
    late = await world.take()
    assert await world.store.requeue(Requeue(ORG, job.document_id, document().job)) == "requeued"
    again = await world.take()
    assert (late.generation, again.generation) == (1, 2)
    assert await world.store.save(save(again, output=output(), chunks=same))
    await connect(world, again)
    before = await world.table("connection")

    assert await world.store.save(save(late, output=output("find"), connections=()))

    assert await world.table("connection") == before != []


async def test_chunks_of_an_earlier_generation_that_come_late_change_nothing(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    follow_up = NewJob("index", "documents", "cut", name="index")
    assert await world.store.settle(Settle(job, DONE, "extract", "", save(job, jobs=(follow_up,))))
    late = await world.take()
    assert await world.store.requeue(Requeue(ORG, id_, document().job)) == "requeued"
    again = await world.take()
    assert await world.store.save(save(again, chunks=chunk_set(chunk(id_, 0, "new"))))
    before = await world.table("chunk")

    assert await world.store.save(save(late, chunks=chunk_set(chunk(id_, 0, "old"))))

    assert await world.table("chunk") == before != []


async def test_the_words_of_sqlite_agree_with_the_chunks_after_every_change(sqlite_world: World) -> None:
    world = sqlite_world
    job = await indexed(world, "one whale", "two whales")
    for text in ("three", "four"):
        new = chunk_set(chunk(job.document_id, 0, text), chunk(job.document_id, 1, "two whales"))
        await world.store.save(save(job, output=output(), chunks=new))

    # raises if a word is there that should not be, or the other way round
    await world.execute("INSERT INTO chunk_text (chunk_text, rank) VALUES ('integrity-check', 1)")
    assert await texts(world, "one") == []


async def test_two_jobs_of_one_document_that_write_chunks_at_once_leave_those_of_one(world: World) -> None:
    job = await indexed(world)
    follow_up = save(job, output=output(), jobs=(NewJob("books", "documents", "extract", name="again"),))
    await world.store.save(follow_up)
    other_store, other_job = await world.another(), await world.take()
    assert other_job.document_id == job.document_id

    async def write(store: SqlStore, mine: Job, word: str) -> None:
        for n in range(8):
            new = [chunk(job.document_id, place, f"{word} {n} {place}") for place in range(3)]
            assert await store.save(save(mine, output=output(), chunks=chunk_set(*new)))

    await asyncio.gather(write(world.store, job, "main"), write(other_store, other_job, "other"))

    stored = [c.text for c in await world.store.chunks(ORG, job.document_id)]
    assert len(stored) == 3
    assert len({text.rsplit(" ", 1)[0] for text in stored}) == 1, stored


async def test_a_search_begins_again_while_its_hits_are_superseded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await indexed(world, "whale")
    found, looks = world.store._found, iter(range(20))

    async def late(*asked: Any) -> dict[int, Any]:
        return await found(*asked) if next(looks) == 8 else {}

    monkeypatch.setattr(world.store, "_found", late)

    assert [hit.snippet for hit in await world.store.search(ORG, "whale")] == ["whale"]
