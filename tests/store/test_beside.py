"""Two transactions in the middle of each other on PostgreSQL: each sees what the other decided, or does not wait."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.core.knobs import DEFAULT
from perdure.store.base import BREAKER
from perdure.store.operations import NewJob, Promote, Requeue
from tests.store.locks import locked, uncommitted, until_waiting, waits
from tests.store.making import DONE, ORG, QUEUE, World, document, output, save
from tests.store.test_chunks import chunk, chunk_set

KEY = "tenant-7"


async def counting(world: World, org: str = ORG) -> Any:
    """A second client; both have counted something."""
    other = await world.another()
    await world.store.add([document("known")])
    await other.add([document("known", org=org)])
    return other


async def test_a_claim_does_not_wait_for_a_job_that_another_has_locked(postgres_world: World) -> None:
    world = postgres_world
    taken, free = await world.add(document(), document())
    async with locked(world, "SELECT 1 FROM job WHERE document_id = $1", taken) as other:
        claiming = asyncio.create_task(world.claim(2))

        assert not await waits(other, claiming)
        assert [claimed.document.id for claimed in claiming.result()] == [free]


async def test_two_that_enter_at_once_do_not_both_take_the_last_room(postgres_world: World) -> None:
    world = postgres_world
    await world.store.limit(KEY, 1, None)
    other = await counting(world, "another")  # organisations share no turns
    entering = world.store.add([document("a", limit_key=KEY)])
    async with uncommitted(world, world.store, entering) as connection:
        second = asyncio.create_task(other.add([document("b", org="another", limit_key=KEY)]))
        await waits(connection, second, 2)
    await second

    states = await world.query("SELECT state FROM job WHERE limit_key = $1 ORDER BY state", KEY)
    assert [state for (state,) in states] == ["parked", "queued"]


async def test_two_that_promote_at_once_count_a_job_once(postgres_world: World) -> None:
    world = postgres_world
    await world.add(document(delay_ms=1_000))
    world.clock.turn(1_000)
    other = await counting(world)
    async with uncommitted(world, world.store, world.promoted(1)) as connection:
        second = asyncio.create_task(other.promote(Promote()))
        await waits(connection, second, 2)

    assert await second == 0


async def test_two_that_lend_at_once_lend_one_document(postgres_world: World) -> None:
    world, other = postgres_world, await postgres_world.another()
    await world.add(document(lane="ocr"), document(lane="ocr"))
    await world.store.hold("ocr", "away", BREAKER)
    world.clock.turn(round(1_000 * DEFAULT.probe_max_s))
    lending = []
    async with locked(world, "SELECT 1 FROM dependency WHERE name = $1", "ocr") as connection:
        for number, store in enumerate(
            (world.store, other), 1
        ):  # the first has lent one, and waits to note it
            lending.append(asyncio.create_task(store.lend()))
            await until_waiting(connection, number)

    assert await asyncio.gather(*lending) == [1, 0]
    assert len(await world.claim(2)) == 1


async def test_a_purge_beside_a_requeue_keeps_the_document(postgres_world: World) -> None:
    """Its job was pruned, so there is no job whose lock would tell."""
    world = postgres_world
    (id_,) = await world.add(document())
    await world.settle(await world.take(), DONE)
    assert await world.store.prune(age_ms=0, count=0) == 1
    other = await counting(world)
    requeuing = world.store.requeue(Requeue(ORG, id_, NewJob("books", QUEUE, "extract")))
    async with uncommitted(world, world.store, requeuing) as connection:
        purging = asyncio.create_task(other.purge([(ORG, id_)], states=("done",)))
        await until_waiting(connection, 2)

    assert await purging == {(ORG, id_): "refused: the document is in progress"}
    assert (await world.status(id_)).state == "queued"


async def test_chunks_that_two_jobs_save_at_once_are_those_of_the_last(postgres_world: World) -> None:
    world = postgres_world
    (id_,) = await world.add(document())
    job = await world.take()
    first = save(
        job, chunks=chunk_set(chunk(id_, 0, "old")), jobs=(NewJob("again", QUEUE, "cut", name="again"),)
    )
    assert await world.store.save(first)
    follow_up = await world.take()
    other = await counting(world)
    ways = ((world.store, job, "mine"), (other, follow_up, "theirs"))
    saving = []
    async with locked(world, "SELECT 1 FROM chunk WHERE document_id = $1", id_) as connection:
        for number, (store, own, text) in enumerate(ways, 1):  # the first waits to delete the old chunk
            new = save(own, output=output(own.stage), chunks=chunk_set(chunk(id_, 0, text)))
            saving.append(asyncio.create_task(store.save(new)))
            await until_waiting(connection, number)
    assert await asyncio.gather(*saving) == [True, True]

    assert [found.text for found in await world.store.chunks(ORG, id_)] == ["theirs"]
