"""Words of large documents are indexed before their chunks are searchable: nothing is found early or twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from perdure.core.model import Job
from perdure.errors import StoreUnavailable
from perdure.store import indexing, staging
from perdure.store.base import Steps
from perdure.store.operations import Save
from tests.store.making import DONE, ORG, World, dead, document, output, retry, save
from tests.store.test_chunks import chunk, chunk_set, indexed, vector


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "LARGE_CHUNKS", 3)
    monkeypatch.setattr(staging, "SLICE", 2)


def of(job: Job, *texts: str) -> Save:
    made = [chunk(job.document_id, n, text, vector(1, n)) for n, text in enumerate(texts)]
    return save(job, output=output(), chunks=chunk_set(*made))


async def found(world: World, query: str) -> list[str]:
    return sorted(hit.text for hit in await world.store.search(ORG, query))


async def whole(world: World) -> None:
    """The index has the words of all chunks and no others."""
    if world.store.dialect_name == "sqlite":
        await world.query("INSERT INTO chunk_text (chunk_text, rank) VALUES ('integrity-check', 1)")
        return
    compared = (
        "SELECT count(*) FROM (SELECT num, chunk_words(scope, words) AS found FROM chunk) c "
        "FULL JOIN chunk_text t USING (num) WHERE c.found IS DISTINCT FROM t.found"
    )
    assert await world.query(compared) == [(0,)]


async def running(world: World) -> Job:
    await world.add(document())
    return await world.take()


async def test_nothing_is_found_before_the_save_and_all_after_it(world: World) -> None:
    await indexed(world, "a whale of its own")
    job = await running(world)
    large = of(job, "whale one", "whale two", "whale three", "whale four", "whale five")
    await staging.stage(world.store, large)
    assert len(await world.table("chunk_staged")) == 5
    assert await found(world, "whale") == ["a whale of its own"]
    await indexed(world, "a whale that comes between")  # under a number that no staged one has
    assert await found(world, "whale") == ["a whale of its own", "a whale that comes between"]
    assert await world.store.save(large)
    assert len(await found(world, "whale")) == 7
    assert await world.table("chunk_staged") == []
    await whole(world)


async def test_a_save_stages_by_itself_in_small_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = list[int]()
    some = staging._some

    def counted(sql: object, common: object, new: list[object]) -> object:
        staged.append(len(new))
        return some(sql, common, new)  # type: ignore[arg-type]

    monkeypatch.setattr(staging, "_some", counted)
    job = await running(world)
    assert await world.store.save(of(job, "one", "two", "three", "four", "five"))
    assert staged == [2, 2, 1]
    again = await world.store.save(of(job, "one", "two", "three", "four", "six"))
    assert again
    assert staged == [2, 2, 1, 1]  # what is there is not indexed again
    assert await found(world, "five") == []
    assert await found(world, "six") == ["six"]
    await whole(world)


async def test_a_save_that_is_refused_leaves_nothing_that_is_found(world: World) -> None:
    job = await running(world)
    await world.settle(job, retry(0))
    later = await world.take()
    assert not await world.store.save(of(job, "late one", "late two", "late three"))
    assert await found(world, "late") == []
    assert len(await world.table("chunk_staged")) == 3
    assert await world.store.save(of(later, "late one", "late two", "new three"))  # two of them are used
    assert await found(world, "late") == ["late one", "late two"]
    assert await found(world, "three") == ["new three"]
    assert await world.table("chunk_staged") == []
    await whole(world)
    assert await world.settle(later, DONE)


async def test_what_is_left_goes_with_its_document_or_is_forgotten(world: World) -> None:
    first, second = await running(world), await running(world)
    for job in (first, second):
        await staging.stage(world.store, of(job, "one", "two", "three"))
    await world.settle(first, dead())
    await world.store.purge([(ORG, first.document_id)])
    assert {row["document_id"] for row in await world.table("chunk_staged")} == {second.document_id}
    await staging.stage(world.store, of(first, "four", "five", "six"))  # of a late worker
    assert {row["document_id"] for row in await world.table("chunk_staged")} == {second.document_id}
    assert await world.store.forget_staged(3_600_000, 2) == 0
    world.clock.turn(3_600_001)
    assert await world.store.forget_staged(3_600_000, 2) == 2
    assert await world.store.forget_staged(3_600_000, 2) == 1
    assert await world.table("chunk_staged") == []
    await whole(world)


async def test_every_word_is_found_as_it_is(world: World) -> None:
    """PostgreSQL's parser of texts would cut these apart."""
    await indexed(world, "commit 3e5x of 1e5b27, version 2e", "another text")
    for query in ("3e5x", '"of 1e5b27"', "2e", '"commit 3e5x"'):
        assert await found(world, query) == ["commit 3e5x of 1e5b27, version 2e"], query


@pytest.mark.parametrize(
    ("words", "lexemes"),
    [
        ("one two one", "'in cd' 'in oab' 'one':1,3 'two':2"),
        ("", "'in cd' 'in oab'"),
        ("it's 'in oxy' b:1,2A \\ c", "'b1,2A':4 'c':6 'in':2 'in cd' 'in oab' 'its':1 'oxy':3"),
        ("x" * 3_000, f"'in cd' 'in oab' '{'x' * 64}':1"),
        (" ".join(["a"] * 20_000), None),
    ],
    ids=["places", "none", "forged signs", "one long word", "many words"],
)
async def test_words_are_words_only(postgres_world: World, words: str, lexemes: str | None) -> None:
    """Also those that somebody forged: no text gets into the scope of another organisation."""
    ((made,),) = await postgres_world.query("SELECT CAST(chunk_words('oab cd', $1) AS text)", words)
    if lexemes is None:
        assert made.startswith("'a':1,2,3")
    else:
        assert made == lexemes


async def test_a_save_needs_nothing_that_was_to_be_indexed_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost in the middle of it."""
    write, left = world.store._write, iter([True, False])

    async def losing(steps: Callable[[], Steps[Any]], aside: bool = False) -> Any:
        if aside and not next(left, False):
            raise StoreUnavailable("the connection was lost")
        return await write(steps, aside)

    monkeypatch.setattr(world.store, "_write", losing)
    job = await running(world)
    assert await world.store.save(of(job, "whale one", "whale two", "whale three", "whale four"))
    assert len(await found(world, "whale")) == 4
    assert await world.table("chunk_staged") == []
    await whole(world)


async def test_nobody_forgets_what_a_save_is_using(postgres_world: World) -> None:
    """It is an hour old, and the save has not committed yet."""
    world = postgres_world
    job = await running(world)
    large = of(job, "whale one", "whale two", "whale three")
    await staging.stage(world.store, large)
    world.clock.turn(3_600_001)
    other = await asyncpg.connect(world.url)
    try:
        async with other.transaction():  # what a save does first
            for query in world.store.sql.keep_staged(ORG, job.document_id):
                await other.fetch(query.sql, *query.params)
            assert await world.store.forget_staged(3_600_000, 10) == 0
    finally:
        await other.close()
    assert await world.store.save(large)
    assert len(await found(world, "whale")) == 3
    await whole(world)
