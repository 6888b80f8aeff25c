"""What is counted is what is there; every other test of a `world` ends with that check, too."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from perdure.store.operations import Cancel, NewJob, Promote, Requeue
from tests.store.making import DONE, ORG, QUEUE, World, dead, document, retry, save


async def test_counts_follow_a_document_through_its_states(world: World) -> None:
    ids = await world.add(*(document() for _ in range(4)))
    assert (await world.store.counts()).queues == {QUEUE: {"queued": 4}}
    first, second, third = [await world.take() for _ in range(3)]
    assert (await world.store.counts()).live == {"queued": 1, "running": 3}
    await world.settle(first, DONE)
    await world.settle(second, dead())
    await world.settle(third, retry(500))
    await world.store.cancel(Cancel(ORG, ids[3]))
    counts = await world.store.counts()
    assert counts.states() == {"done": 1, "dead": 1, "open": 1, "cancelled": 1}
    assert (counts.live, counts.queues, counts.accepted) == ({"waiting": 1}, {QUEUE: {"waiting": 1}}, 4)
    assert list(counts.due_ms) == [QUEUE]
    await world.store.requeue(Requeue(ORG, ids[0], NewJob("books", QUEUE, "extract")))
    world.clock.turn(1_000)
    await world.store.promote(Promote())
    counts = await world.store.counts()
    assert counts.states() == {"open": 2, "dead": 1, "cancelled": 1}
    assert (counts.live, counts.due_ms, counts.accepted) == ({"queued": 2}, {}, 4)


async def test_documents_are_counted_by_organisation_and_collection(world: World) -> None:
    await world.add(
        replace(document(), collection="images"), document(), document(org="other"), document(org="other")
    )
    counts = await world.store.counts()
    assert counts.states("other") == {"open": 2}
    assert counts.states(collection="images") == {"open": 1}
    assert counts.collections(ORG) == {"documents": {"open": 1}, "images": {"open": 1}}


async def test_follow_up_jobs_are_counted_in_their_queue_and_are_no_documents(world: World) -> None:
    await world.add(document())
    job = await world.take()
    follow = NewJob("notes", QUEUE, "extract", name="note")
    await world.store.save(save(job, jobs=(follow,)))
    await world.store.save(save(job, jobs=(follow,)))  # once per generation
    await world.settle(job, DONE)
    counts = await world.store.counts()
    assert (counts.live, counts.queues) == ({}, {QUEUE: {"queued": 1}})


async def test_what_is_held_and_what_is_paused_is_told_apart(world: World) -> None:
    await world.add(document(lane="openai"), document())
    await world.store.hold("openai", "away")
    await world.store.pause(QUEUE, True)
    counts = await world.store.counts()
    assert counts.queues == {QUEUE: {"held": 1, "paused": 1}}
    assert (counts.live, counts.held) == ({"held": 1, "queued": 1}, {"": 0, "openai": 1})
    assert counts.paused == {QUEUE}


async def test_many_clients_count_beside_each_other_and_leave_nothing_behind(world: World) -> None:
    others = [await world.another() for _ in range(3)]
    await asyncio.gather(*(store.add([document() for _ in range(20)]) for store in (world.store, *others)))
    for store in others:
        await store.close()
    assert (await world.store.counts()).states() == {"open": 80}
    clients = await world.query("SELECT DISTINCT client FROM counter WHERE n <> 0")
    assert len(clients) == 2, "ours, and nobody's"


async def test_counters_that_somebody_made_wrong_are_counted_anew(world: World) -> None:
    await world.add(document(), document())
    await world.take()
    await world.execute("UPDATE counter SET n = n + 5 WHERE subject <> 'accepted'")
    assert set((await world.miscounted()).values()) == {(7, 2), (6, 1)}
    await world.store.recount()
    assert await world.miscounted() == {}
    counts = await world.store.counts()
    assert (counts.accepted, counts.states(), counts.live) == (2, {"open": 2}, {"queued": 1, "running": 1})


async def test_what_is_refused_is_not_counted(world: World) -> None:
    await world.add(document())
    job = await world.take()
    assert await world.settle(job, DONE)
    assert not await world.settle(job, dead())
    assert (await world.store.counts()).states() == {"done": 1}


async def test_the_same_document_twice_is_accepted_once(world: World) -> None:
    one = document(dedupe="same")
    await asyncio.gather(world.add(one), world.add(document(dedupe="same")), world.add(one))
    counts = await world.store.counts()
    assert (counts.accepted, counts.states()) == (1, {"open": 1})
    assert (await world.store.balance()).difference == 0
