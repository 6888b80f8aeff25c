"""Operators' acts: requeue starts a generation, cancel ends at once, prune tidies the queue and leaves the history."""

from __future__ import annotations

import asyncio
from dataclasses import astuple

import pytest

from perdure.core.model import Policy
from perdure.core.outcome import Outcome
from perdure.store.operations import Cancel, ItemOutput, NewDocument, NewJob, Requeue, Save
from tests.store.making import DONE, ORG, QUEUE, START_MS, World, dead, document, later, output, retry, save

AGAIN = NewJob("books", QUEUE, "extract", policy=Policy(attempts=2))
FOREVER_MS = 10**12


def requeue(document_id: str, fresh_from: str | None = None, content: NewDocument | None = None) -> Requeue:
    return Requeue(ORG, document_id, AGAIN, fresh_from, by="ann", reason="fixed", content=content)


async def ended(world: World, ending: Outcome, name: str = "") -> str:
    """A document that has come to its end, with a saved stage and an item behind it."""
    (id_,) = await world.add(document(name, policy=Policy(attempts=1)))
    job = await world.take()
    item = ItemOutput("extract", "1", "f", 1, b"1")
    await world.settle(job, ending, save=save(job, "extract", output=output(), items=(item,)))
    return id_


# --- requeue ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [DONE, dead("bad_file", crashes=2)], ids=["done", "dead"])
async def test_a_requeue_starts_a_generation_with_a_fresh_budget_and_keeps_history(
    world: World, ending: Outcome
) -> None:
    id_ = await ended(world, ending)
    world.clock.turn(1_000)

    assert await world.store.requeue(requeue(id_, fresh_from="chunk")) == "requeued"

    status = await world.status(id_)
    assert (status.state, status.generation, status.finished_ms) == ("queued", 2, None)
    assert (status.error_code, status.error_message) == (None, None)
    assert (status.attempts_made, status.attempts_max, status.claims) == (0, 2, 0)
    job = await world.take()
    assert (job.generation, job.attempts, job.claims, job.crashes, job.fresh_from) == (2, 1, 1, 0, "chunk")
    assert (job.attempts_max, job.policy.attempts) == (2, 2)
    await world.store.save(save(job, output=output(data=b"2")))
    await world.settle(job, DONE)
    assert [(a.generation, a.claim) for a in await world.store.attempts(ORG, id_)] == [(1, 1), (2, 1)]
    assert [s.generation for s in await world.store.saves(ORG, id_, "books", 2)] == [1, 2]
    assert [s.generation for s in await world.store.saves(ORG, id_, "books")] == [2]
    assert astuple((await world.store.acts())[0])[1:] == (
        START_MS + 1_000,
        "ann",
        "requeue",
        ORG,
        id_,
        "fixed",
    )


async def test_a_requeue_after_the_queue_row_is_gone_goes_on_with_the_generations(world: World) -> None:
    id_ = await ended(world, DONE)
    world.clock.turn(1_000)
    assert await world.store.prune(500, 1_000) == 1

    assert await world.store.requeue(requeue(id_)) == "requeued"

    job = await world.take()
    assert (job.generation, job.attempts, job.key) == (2, 1, f"doc-{id_}")
    await world.settle(job, dead())
    assert [a.generation for a in await world.store.attempts(ORG, id_)] == [1, 2]


async def test_a_cancelled_document_can_be_requeued(world: World) -> None:
    (id_,) = await world.add(document())
    await world.store.cancel(Cancel(ORG, id_))

    assert await world.store.requeue(requeue(id_)) == "requeued"
    assert (await world.take()).generation == 2


async def test_what_is_in_progress_is_not_requeued(world: World) -> None:
    queued, running, waiting = await world.add(document(), document(), document())
    first, second, third = (c.job for c in await world.claim(3))
    await world.settle(first, later())
    await world.settle(third, retry(1_000))

    for id_ in (queued, running, waiting):
        assert (await world.store.requeue(requeue(id_))).startswith(
            "refused: the document is still in progress"
        )
        assert (await world.status(id_)).generation == 1
    assert await world.store.requeue(requeue("unknown")) == "refused: no such document"
    assert await world.store.acts() == []
    assert await world.settle(second, DONE)


async def test_of_two_requeues_at_once_one_is_refused(world: World) -> None:
    id_ = await ended(world, dead())
    other = await world.another()

    answers = await asyncio.gather(*(s.requeue(requeue(id_)) for s in (world.store, other, world.store)))

    assert sorted(a.partition(":")[0] for a in answers) == ["refused", "refused", "requeued"]
    assert (await world.status(id_)).generation == 2
    assert len(await world.claim(9)) == 1


# --- cancel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "running", "waiting", "held"])
async def test_a_cancel_ends_a_document_in_any_state(world: World, state: str) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    (id_,) = await world.add(document(lane="ocr", delay_ms=1_000 if state == "waiting" else 0))
    if state == "running":
        await world.take()
    if state == "held":
        await world.store.hold("ocr", "away")
    assert (await world.status(id_)).state == state
    world.clock.turn(10)

    assert await world.store.cancel(Cancel(ORG, id_, by="ann", reason="wrong file")) == "cancelled"

    status = await world.status(id_)
    assert (status.state, status.finished_ms) == ("cancelled", START_MS + 10)
    assert (status.error_code, status.error_message) == ("cancelled", "wrong file")
    row = await world.job(id_)
    assert (row["state"], row["token"], row["worker"], row["finished_ms"]) == (
        "cancelled",
        None,
        None,
        START_MS + 10,
    )
    assert await world.claim(9) == []
    assert await world.store.cancel(Cancel(ORG, id_)) == "refused: the document is cancelled"
    assert astuple((await world.store.acts())[0])[1:] == (
        START_MS + 10,
        "ann",
        "cancel",
        ORG,
        id_,
        "wrong file",
    )


async def test_a_cancel_ends_the_follow_ups_too(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    await world.store.save(save(job, jobs=(NewJob("connect", QUEUE, "connect", name="connect"),)))

    await world.store.cancel(Cancel(ORG, id_))

    assert (await world.job(id_, "connect"))["state"] == "cancelled"
    assert await world.claim(9) == []


async def test_what_has_ended_or_is_unknown_is_not_cancelled(world: World) -> None:
    done, bad = await ended(world, DONE), await ended(world, dead())

    answers = [await world.store.cancel(Cancel(ORG, i)) for i in (done, bad, "unknown")]
    answers.append(await world.store.cancel(Cancel("stranger", done)))

    assert answers == [
        "refused: the document is done", "refused: the document is dead",
        "refused: no such document", "refused: no such document",
    ]  # fmt: skip


async def test_a_save_and_a_cancel_of_one_document_at_once_both_answer_truly(world: World) -> None:
    ids = await world.add(*(document() for _ in range(30)))
    jobs = {c.document.id: c.job for c in await world.claim(30)}
    other = await world.another()

    answers = await asyncio.gather(
        *(s for id_ in ids for s in (world.settle(jobs[id_], DONE), other.cancel(Cancel(ORG, id_))))
    )

    for id_, settled, cancelled in zip(ids, answers[::2], answers[1::2], strict=True):
        state = (await world.status(id_)).state
        assert (settled, cancelled) in ((True, "refused: the document is done"), (False, "cancelled"))
        assert state == ("done" if settled else "cancelled")


# --- prune -----------------------------------------------------------------------------------------


async def test_prune_by_age_takes_queue_rows_and_items_and_leaves_the_rest(world: World) -> None:
    old = await ended(world, DONE, "old")
    world.clock.turn(10_000)
    young, (alive,) = await ended(world, DONE, "young"), await world.add(document("alive"))
    world.clock.turn(1_000)

    assert await world.store.prune(5_000, 1_000) == 1

    assert {row["document_id"] for row in await world.table("job")} == {young, alive}
    assert {row["document_id"] for row in await world.table("item")} == {young}
    status = await world.status(old)
    assert (status.state, status.generation, status.stage, status.attempts_made) == ("done", 1, "extract", 1)
    assert len(await world.store.attempts(ORG, old)) == 1
    assert len(await world.store.saves(ORG, old, "books")) == 1
    assert [s.id for s in await world.store.documents(state="done")] == [young, old]


async def test_prune_by_count_keeps_the_newest_of_each_queue(world: World) -> None:
    ids = []
    for _ in range(6):
        ids.append(await ended(world, DONE))
        world.clock.turn(10)
    await world.add(document("film", queue="films"))
    (film,) = await world.claim(queues=["films"])
    await world.settle(film.job, DONE)

    assert await world.store.prune(FOREVER_MS, 4) == 2

    assert [r["document_id"] for r in await world.table("job", "ORDER BY id")] == [*ids[2:], film.document.id]


async def test_prune_by_count_keeps_that_many_of_those_that_ended_together(world: World) -> None:
    await world.add(*(document() for _ in range(20)))
    await asyncio.gather(*(world.settle(c.job, DONE) for c in await world.claim(20)))

    await world.store.prune(FOREVER_MS, 15)

    assert len(await world.table("job")) == 15


async def test_the_dead_are_never_pruned_and_the_cancelled_are(world: World) -> None:
    bad = await ended(world, dead())
    (gone,) = await world.add(document())
    await world.store.cancel(Cancel(ORG, gone))
    world.clock.turn(10_000)

    assert await world.store.prune(0, 0) == 1
    assert [row["document_id"] for row in await world.table("job")] == [bad]
    assert (await world.status(gone)).state == "cancelled"


async def test_prune_takes_at_most_its_limit_the_oldest_first(world: World) -> None:
    ids = []
    for _ in range(5):
        ids.append(await ended(world, DONE))
        world.clock.turn(10)

    assert await world.store.prune(0, 0, limit=2) == 2
    assert [row["document_id"] for row in await world.table("job", "ORDER BY id")] == ids[2:]
    assert [await world.store.prune(0, 0, limit=2) for _ in range(3)] == [2, 1, 0]


async def test_items_of_a_requeued_document_survive_prune(world: World) -> None:
    id_ = await ended(world, DONE)
    await world.store.requeue(requeue(id_))
    job = await world.take()
    await world.store.save(Save(job, "extract", "", 1_000, items=(ItemOutput("extract", "2", "f", 1, b"2"),)))
    world.clock.turn(10_000)

    assert await world.store.prune(0, 0) == 0
    assert len(await world.table("item")) == 2


async def test_items_of_a_live_repair_survive_the_prune_of_the_job_that_it_repairs(world: World) -> None:
    await world.add(document())
    job = await world.take()
    repair = NewJob("books", QUEUE, "extract", name="repair-extract", lease_ms=30_000)
    await world.settle(job, DONE, save=Save(job, "extract", "", 1_000, jobs=(repair,)))
    repairing = await world.take()
    item = ItemOutput("extract", "0", "f", 1, b"0")
    assert await world.store.save(Save(repairing, "extract", "", 1_000, items=(item,)))
    world.clock.turn(10_000)

    assert await world.store.prune(0, 0) == 1
    assert [row["key"] for row in await world.table("item")] == ["0"]

    await world.settle(repairing, DONE)
    world.clock.turn(10_000)
    assert await world.store.prune(0, 0) == 1
    assert await world.table("item") == []


async def test_items_of_a_later_generation_survive_the_prune_of_an_earlier_one(world: World) -> None:
    """The follow-up of the second generation died: a requeue takes its items up."""
    (id_,) = await world.add(document())
    connect = NewJob("connect", QUEUE, "find", name="connect", lease_ms=30_000)
    for ending in (DONE, dead()):
        job = await world.take()
        await world.settle(job, DONE, save=Save(job, "extract", "", 1_000, jobs=(connect,)))
        follow_up = await world.take()
        item = ItemOutput("find", f"{follow_up.generation}", "f", 1, b"0")
        assert await world.store.save(Save(follow_up, "find", "", 1_000, items=(item,)))
        await world.settle(follow_up, ending)
        await world.store.requeue(requeue(id_))
    world.clock.turn(10_000)

    assert await world.store.prune(0, 0) == 1
    assert [row["key"] for row in await world.table("item")] == ["2"]


async def test_a_claim_that_is_cancelled_stays_in_history(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    assert await world.store.cancel(Cancel(ORG, id_, "somebody", "not wanted")) == "cancelled"
    [attempt] = await world.store.attempts(ORG, id_)
    assert (attempt.outcome, attempt.claim, attempt.stage) == ("cancelled", job.claims, job.stage)
    assert attempt.why == "cancelled: not wanted"
