"""Words of large documents are indexed before their chunks are searchable: nothing is found early or twice."""

from __future__ import annotations

import pytest

from perdure.core.model import Job
from perdure.store import indexing, staging
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
    await world.query("INSERT INTO chunk_text (chunk_text, rank) VALUES ('integrity-check', 1)")


async def running(world: World) -> Job:
    await world.add(document())
    return await world.take()


async def test_nothing_is_found_before_the_save_and_all_after_it(sqlite_world: World) -> None:
    world = sqlite_world
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
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, staged = sqlite_world, list[int]()
    some = staging._some

    def counted(common: object, new: list[object]) -> object:
        staged.append(len(new))
        return some(common, new)  # type: ignore[arg-type]

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


async def test_a_save_that_is_refused_leaves_nothing_that_is_found(sqlite_world: World) -> None:
    world = sqlite_world
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


async def test_what_is_left_goes_with_its_document_or_after_a_day(sqlite_world: World) -> None:
    world = sqlite_world
    first, second = await running(world), await running(world)
    for job in (first, second):
        await staging.stage(world.store, of(job, "one", "two", "three"))
    await world.settle(first, dead())
    await world.store.purge([(ORG, first.document_id)])
    assert {row["document_id"] for row in await world.table("chunk_staged")} == {second.document_id}
    world.clock.turn(staging.OLD_MS + 1)
    third = await running(world)
    await world.store.save(of(third, "four", "five", "six"))
    assert await world.table("chunk_staged") == []
    await whole(world)
