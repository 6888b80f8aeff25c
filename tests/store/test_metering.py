"""What only the store sees: foreign keys that do not hold, chunks that go, and how the whole is doing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.core.events import AnyEvent, ChunksDeleted, ForeignKeyRefused
from perdure.errors import Unstorable
from perdure.store.operations import NewJob, Requeue
from perdure.watch import overall
from perdure.watch.board import Board
from perdure.watch.overall import PARTS, Overall
from tests.store.making import DONE, LEASE_MS, ORG, QUEUE, World, dead, document, output, save
from tests.store.test_chunks import chunk, chunk_set, indexed


def listened(world: World) -> list[AnyEvent]:
    told: list[AnyEvent] = []
    world.store.events.subscribe(told.append)
    return told


async def again(world: World, document_id: str, *texts: str) -> None:
    """Process a document once more, with these chunks."""
    job = NewJob("books", QUEUE, "extract", lease_ms=LEASE_MS)
    assert await world.store.requeue(Requeue(ORG, document_id, job, "extract", "me")) == "requeued"
    (claim,) = await world.claim()
    made = [chunk(document_id, n, text) for n, text in enumerate(texts)]
    assert await world.store.save(save(claim.job, output=output(), chunks=chunk_set(*made)))
    assert await world.settle(claim.job, DONE)


async def test_chunks_that_are_superseded_are_counted_and_no_loss(world: World) -> None:
    told = listened(world)
    job = await indexed(world, "one", "two", "three")
    assert await world.settle(job, DONE)
    assert told == []
    await again(world, job.document_id, "one", "other")
    assert told == [ChunksDeleted(2, "superseded")]
    assert (await world.store.pulse()).chunks_lost == 0


async def test_chunks_that_somebody_else_deletes_are_a_loss(world: World) -> None:
    job = await indexed(world, "one", "two", "three")
    assert await world.settle(job, DONE)
    await again(world, job.document_id, "one", "two")  # what may be deleted may so only for a moment
    await world.execute("DELETE FROM chunk WHERE document_id = $1 AND position = 1", job.document_id)
    assert (await world.store.pulse()).chunks_lost == 1
    await world.execute("DELETE FROM chunk WHERE document_id = $1", job.document_id)
    assert (await world.store.pulse()).chunks_lost == 2
    await world.execute("DELETE FROM chunk WHERE document_id = $1", job.document_id)
    assert (await world.store.pulse()).chunks_lost == 2


async def test_a_foreign_key_that_does_not_hold_is_told_once_however_many_share_its_flush(
    world: World,
) -> None:
    told = listened(world)
    await world.execute("CREATE TABLE shelf (id integer PRIMARY KEY)")
    await world.execute("CREATE TABLE book (shelf integer REFERENCES shelf (id))")
    await world.add(document(), document())
    wrong, right = [claimed.job for claimed in await world.claim(2)]
    statement = ("INSERT INTO book VALUES (CAST($1 AS integer))", (7,))
    with pytest.raises(Unstorable):
        await world.store.save(save(wrong, output=output(), sql=(statement,)))
    assert await world.store.save(save(right, output=output()))
    (event,) = told
    assert isinstance(event, ForeignKeyRefused)
    assert "foreign key" in event.message.lower()


async def test_another_value_that_is_refused_is_no_foreign_key(world: World) -> None:
    told = listened(world)
    await world.execute("CREATE TABLE shelf (id integer PRIMARY KEY)")
    await world.add(document())
    twice = ("INSERT INTO shelf VALUES (1), (1)", ())
    with pytest.raises(Unstorable):
        await world.store.save(save(await world.take(), output=output(), sql=(twice,)))
    assert told == []


async def test_the_pulse_of_a_store(world: World) -> None:
    assert (await world.store.pulse()).heard_ms is None
    await world.add(document())
    await world.take()
    world.clock.turn(5_000)
    pulse = await world.store.pulse()
    assert (pulse.now_ms - (pulse.heard_ms or 0), pulse.workers) == (5_000, 1)


async def test_a_worker_that_is_not_heard_of_any_more_is_not_counted(world: World) -> None:
    assert (await world.store.pulse()).workers == 1
    world.clock.turn(31_000)
    assert (await world.store.pulse()).workers == 0


async def test_those_that_are_called_the_same_are_added_up_or_the_worst_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overall, "LABEL_VALUES_MAX", 1)
    await world.store.declare(["a", "b", "c"], [""])
    await world.store.pause("b", True, "ann", "")
    found = await Overall(world.store, Board.private()).read()
    assert (found["perdure_queue_paused", "a"], found["perdure_queue_paused", "other"]) == (0, 1)


async def test_what_is_counted_of_a_collection_begins_at_0_before_anything_happens(world: World) -> None:
    await world.add(replace(document(), collection="invoices"))
    board = Board.private()
    await Overall(world.store, board).read()
    for name in ("retry_job_documents_max_retries_exceeded_total", "retry_job_documents_requeued_total"):
        assert board.read()[name, "invoices"] == 0


async def test_counts_of_a_host_add_up_and_are_its_own(world: World) -> None:
    count = world.store.count_for
    assert await count("here", {"runs:success": 1, "requeued:threads": 3}) == {
        "runs:success": 1, "requeued:threads": 3,
    }  # fmt: skip
    assert await count("here 2", {"runs:success": 1}) == {"runs:success": 1}
    assert await count("here", {"runs:success": 1}) == {"runs:success": 2, "requeued:threads": 3}


async def test_one_at_a_time_tells_of_a_host(world: World) -> None:
    other = await world.another()
    assert await world.store.lock_host("here")
    assert not await other.lock_host("here")
    assert await other.lock_host("there")
    await world.store.unlock_host("here")
    assert await other.lock_host("here")


async def test_every_part_of_the_numbers_can_be_read_and_one_that_fails_keeps_no_other_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.store.declare([QUEUE], [""])
    board = Board.private()
    found = await Overall(world.store, board).read()
    assert {value for key, value in board.read().items() if key[0] == "perdure_scrape_errors_total"} == {0.0}
    assert found["perdure_workers",] == 1
    assert found["perdure_queue_depth", QUEUE, "queued"] == 0

    async def broken(_: Overall) -> None:
        raise RuntimeError("no")

    monkeypatch.setitem(PARTS, "pulse", broken)
    found = await Overall(world.store, board).read()
    assert ("perdure_workers",) not in found
    assert found["perdure_queue_depth", QUEUE, "queued"] == 0
    assert board.read()["perdure_scrape_errors_total", "pulse"] == 1


async def test_chunks_that_are_purged_are_counted_and_no_loss(world: World) -> None:
    told = listened(world)
    job = await indexed(world, "one", "two", "three")
    assert await world.settle(job, dead())
    key = (ORG, job.document_id)
    assert await world.store.purge([key]) == {key: "purged"}
    assert told == [ChunksDeleted(3, "purged")]
    assert (await world.store.pulse()).chunks_lost == 0
