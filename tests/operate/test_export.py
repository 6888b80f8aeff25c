"""Dead documents leave a store and come back to another one: whole, once, and whatever their size."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.core.chunk import Chunk, Connection
from perdure.core.model import Policy
from perdure.errors import InputInvalid
from perdure.operate.export import Writer, encoded, export
from perdure.operate.restore import Answer, restore
from perdure.store.blobs import Blobs, DirectoryBlobs
from perdure.store.operations import ChunkSet, EmittedRow, ItemOutput, NewChunk, NewDocument, NewJob, Requeue
from perdure.store.sql_store import SqlStore
from tests.store.making import DONE, ORG, QUEUE, World, dead, document, output, retry, save

OWNED = ("document", "job", "attempt", "saved", "item", "emitted", "chunk", "connection", "dead", "outbox")


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return DirectoryBlobs(tmp_path / "blobs")


async def died(world: World, new: NewDocument | None = None, attempts: int = 2) -> str:
    """A document that was tried and died, with something of everything that a document can own."""
    (id_,) = await world.add(new or document(policy=Policy(attempts=attempts), dedupe="same"))
    for n in range(attempts):
        job = await world.take()
        world.clock.turn(10)
        if n == 0:
            await world.store.save(
                save(job, output=output(), items=(ItemOutput("extract", "1", "f", 1, b"1"),),
                     rows=(EmittedRow("facts", '{"n":1}', b"1"),), chunks=_chunks(id_)),
            )  # fmt: skip
        await world.settle(job, retry() if n + 1 < attempts else dead("bad_file"))
    return id_


def _chunks(id_: str) -> ChunkSet:
    return ChunkSet("r1", (NewChunk(Chunk(f"{id_}-c", 0, 0, 3, "sea", ""), "sea"),))


@asynccontextmanager
async def elsewhere(tmp_path: Path) -> AsyncIterator[SqlStore]:
    """Another, empty store."""
    other = World(f"sqlite:///{tmp_path}/other.db")
    async with other:
        yield other.store


async def exported(world: World, blobs: Blobs, target: Path, *ids: str) -> list[dict[str, Any]]:
    """The lines of a file with these documents."""
    with Writer(target) as writer:
        page = await export(writer, world.store, blobs, [(ORG, id_) for id_ in ids])
    assert set(page.exported) == {(ORG, id_) for id_ in ids}
    raw = gzip.decompress(target.read_bytes()) if target.suffix == ".gz" else target.read_bytes()
    return [json.loads(line) for line in raw.splitlines()]


async def imported(store: SqlStore, blobs: Blobs, source: Path) -> list[Answer]:
    return [answer async for some in restore(store, blobs, source, "ann") for answer in some]


@pytest.mark.parametrize("name", ["dead.jsonl", "dead.jsonl.gz"])
async def test_a_document_comes_back_as_it_was(world: World, tmp_path: Path, blobs: Blobs, name: str) -> None:
    id_ = await died(world)
    (line,) = await exported(world, blobs, tmp_path / name, id_)
    assert (line["id"], line["state"], line["dead"]["error_code"]) == (id_, "dead", "bad_file")
    before = (await world.store.archived([(ORG, id_)]))[0]
    assert await world.store.purge([(ORG, id_)]) == {(ORG, id_): "purged"}
    for table in OWNED:
        assert await world.table(table) == [], table
    assert await world.store.counted("purged") == 1

    assert [a.answer for a in await imported(world.store, blobs, tmp_path / name)] == ["imported"]

    after = (await world.store.archived([(ORG, id_)]))[0]
    assert (after.document, after.dead, after.attempts) == (before.document, before.dead, before.attempts)
    kept = {k: v for k, v in (before.job or {}).items() if k != "run_at_ms"}
    assert {k: v for k, v in (after.job or {}).items() if k != "run_at_ms"} == kept
    assert [a.answer for a in await imported(world.store, blobs, tmp_path / name)] == ["exists"]
    again = Requeue(ORG, id_, NewJob("books", QUEUE, "extract"), dead_only=True)
    assert await world.store.requeue(again) == "requeued"
    assert await world.store.requeue(again) == "refused: the document is in progress again, not dead"
    job = await world.take()
    assert (job.generation, job.attempts) == (2, 1)
    assert await world.settle(job, DONE)
    assert await world.table("dead") == []


async def test_content_of_any_size_goes_from_one_store_to_another(
    world: World, tmp_path: Path, blobs: Blobs
) -> None:
    contents = [b"", b"\0\xff" * 20, b"a" * 40_000, bytes(range(256)) * 20_000, b'","content":"' * 300_000]
    ids = []
    for content in contents:
        large = len(content) > 32_768
        new = replace(
            document(policy=Policy(attempts=1)), size=len(content), inline=None if large else content,
            blob=await blobs.put(content) if large else None,
        )  # fmt: skip
        ids.append(await died(world, new, 1))
    target = tmp_path / "dead.jsonl"
    assert len(await exported(world, blobs, target, *ids)) == len(contents)

    there = DirectoryBlobs(tmp_path / "there")
    async with elsewhere(tmp_path) as store:
        assert [a.answer for a in await imported(store, there, target)] == ["imported"] * len(contents)
        for id_, content in zip(ids, contents, strict=True):
            found = await store.document(ORG, id_)
            assert found is not None
            raw = found.inline if found.blob is None else await there.get(found.blob)
            assert raw == content
        assert list((tmp_path / "there").glob("**/*.part")) == []


async def test_a_bad_line_keeps_no_other_from_being_imported(
    world: World, tmp_path: Path, blobs: Blobs
) -> None:
    ids = [await died(world, document(policy=Policy(attempts=1)), 1) for _ in range(3)]
    target = tmp_path / "dead.jsonl"
    first, second, third = await exported(world, blobs, target, *ids)
    second["content"] = "AAAA"
    damaged = [
        json.dumps(first), "not json", "[]", '{"perdure": 1}', json.dumps(second),
        json.dumps(first | {"state": "done"}),
        json.dumps(first | {"perdure": 2}), json.dumps(first | {"content": "A"}), json.dumps(first | {"org": "a\0b"}),
        json.dumps(first | {"content": None}), "x" * 3_000_000, '{"id":"long","content":"' + "A" * 3_000_000,
        '{"id":"cut","more":1,"content":"' + "A" * 2_000_001 + '"}', json.dumps(third),
    ]  # fmt: skip
    target.write_text("\n".join(damaged))
    async with elsewhere(tmp_path) as store:
        answers = await imported(store, blobs, target)
        assert [a.number for a in sorted(answers, key=lambda a: a.number)] == list(range(1, len(damaged) + 1))
        good = {a.number for a in answers if a.answer == "imported"}
        assert good == {1, len(damaged)}
        assert all(a.answer.startswith("refused: ") for a in answers if a.number not in good)
        assert {row.id for row in await store.documents(ORG, "dead")} == {ids[0], ids[2]}


async def test_what_was_added_again_meanwhile_is_not_there_twice(
    world: World, tmp_path: Path, blobs: Blobs
) -> None:
    id_ = await died(world)
    await exported(world, blobs, tmp_path / "dead.jsonl", id_)
    await world.store.purge([(ORG, id_)])
    (other,) = await world.add(document(dedupe="same"))
    (answer,) = await imported(world.store, blobs, tmp_path / "dead.jsonl")
    assert answer.answer == f"exists as {other}"


async def test_a_file_is_there_when_it_is_complete_and_never_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "dead.jsonl"
    with pytest.raises(ZeroDivisionError), Writer(target) as writer:
        writer.write([({"id": 1 // 0}, b"1")])
    assert list(tmp_path.iterdir()) == []
    with Writer(target) as writer:
        writer.write([({"id": "1"}, b"1")])
        assert not target.exists()
    with pytest.raises(InputInvalid, match="already"), Writer(target):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["dead.jsonl"]


async def test_lost_content_is_told_and_the_rest_is_exported(
    world: World, tmp_path: Path, blobs: Blobs
) -> None:
    lost = hashlib.sha256(b"lost").hexdigest()
    new = replace(document(policy=Policy(attempts=1)), inline=None, blob=lost)
    id_ = await died(world, new, 1)
    with Writer(tmp_path / "dead.jsonl") as writer:
        page = await export(writer, world.store, blobs, [(ORG, id_)])
    assert page.exported == {}
    assert "does not exist" in page.failed[ORG, id_]
    async with elsewhere(tmp_path) as store:
        (answer,) = await imported(store, blobs, tmp_path / "dead.jsonl")
        assert answer.answer.startswith("refused: its content was not exported")


async def test_only_what_has_ended_is_purged(world: World) -> None:
    (going,) = await world.add(document())
    job = await world.take()
    child = replace(document(policy=Policy(attempts=1)), parent_id=going)
    assert await world.store.save(save(job, documents=(child,)))
    await world.settle(await world.take(), dead("bad_file"))
    hooked = await died(world, document(policy=Policy(attempts=1, hooks=("dead",))), 1)
    keys = [(ORG, id_) for id_ in (going, child.id, hooked, "unknown")]
    assert await world.store.purge(keys) == {
        (ORG, going): "refused: the document is in progress",
        (ORG, child.id): f"refused: its parent {going} is in progress and counts it",
        (ORG, hooked): f"refused: its job doc-{hooked}/on_dead has not ended",
        (ORG, "unknown"): "refused: no such document",
    }
    assert await world.store.counted("purged") == 0
    assert await world.store.purge([(ORG, hooked)], generations={(ORG, hooked): 7}) == {
        (ORG, hooked): "refused: the document has been run again since it was read"
    }


async def test_connections_of_a_purged_document_go_on_both_sides(world: World) -> None:
    first, second = await world.add(document("first"), document("second", policy=Policy(attempts=1)))
    jobs = {c.document.id: c.job for c in await world.claim(2)}
    for id_ in (first, second):
        await world.store.save(save(jobs[id_], chunks=_chunks(id_)))
    for one, other in ((first, second), (second, first)):
        link = Connection(f"{one}-c", other, f"{other}-c", 0.9, "m")
        await world.store.save(save(jobs[one], connections=(link,)))
    await world.settle(jobs[second], dead("bad_file"))
    assert len(await world.table("connection")) == 2

    await world.store.purge([(ORG, second)])

    assert await world.table("connection") == []
    assert [row["document_id"] for row in await world.table("chunk")] == [first]


@pytest.mark.parametrize("sizes", [[1, 1], [4, 1, 1, 2], [3, 3], [], [1], [5, 0, 4], [2, 2, 2, 1]])
async def test_pieces_are_one_text_in_base64(sizes: list[int]) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for n, size in enumerate(sizes):
            yield bytes([n]) * size

    told = b"".join([text async for text in encoded(pieces())])
    assert base64.b64decode(told, validate=True) == b"".join(
        bytes([n]) * size for n, size in enumerate(sizes)
    )
