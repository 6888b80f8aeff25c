"""When the answer to a COMMIT is lost, or nothing was written at all, each operation still answers truly and once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.core.model import Policy
from perdure.core.token import new_token
from perdure.errors import StoreBusy, StoreUnavailable
from perdure.store.base import Steps
from perdure.store.operations import Added, Cancel, Claim, EmittedRow, NewJob, Once, Promote, Raise, Requeue
from tests.store.faults import Given, break_writes, busy, never_sent, reply_lost
from tests.store.making import (
    DONE,
    ORG,
    QUEUE,
    Fault,
    Faulty,
    World,
    Write,
    dead,
    document,
    output,
    retry,
    save,
)


def broken_after(statements: int, error: Exception) -> Fault:
    """The transaction breaks in the middle."""

    async def fault(write: Write, steps: Given) -> Any:
        def breaking() -> Steps[Any]:
            conversation, answer = steps(), None
            for _ in range(statements):
                answer = yield conversation.send(answer)  # type: ignore[arg-type]
            raise error

        return await write(breaking)

    return fault


FAULTS: dict[str, list[Fault]] = {
    "reply lost, then away": [reply_lost, never_sent],
    "never sent": [never_sent],
    "never sent, then reply lost": [never_sent, reply_lost],
    "busy, then reply lost": [busy, busy, reply_lost],
}
faulty = pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)


@faulty
async def test_an_add_is_answered_with_what_is_in_the_store(world: World, faults: list[Fault]) -> None:
    known = document(dedupe="k")
    await world.add(known)
    new, same = document("new"), document("same", dedupe="k")
    driver = break_writes(world, faults)

    assert await world.store.add([new, same]) == [Added(new.id, "added"), Added(known.id, "exists", "queued")]

    assert driver.writes == len(faults) + 1
    assert len(await world.table("document")) == len(await world.table("job")) == 2
    assert (await world.store.add([document()]))[0].answer == "added"  # and it goes on as before


@faulty
async def test_a_claim_is_handed_out_once(world: World, faults: list[Fault]) -> None:
    await world.add(*(document() for _ in range(5)))
    break_writes(world, faults)
    claim = Claim(world.worker, (QUEUE,), new_token(), 3)

    found = await world.store.claim(claim)

    assert len(found) == 3
    assert {(c.job.token, c.job.claims, c.job.attempts) for c in found} == {(claim.token, 1, 1)}
    assert [c.job for c in sorted(found, key=lambda c: c.job.id)] == await world.store.in_hand(world.worker)


@faulty
async def test_a_save_is_applied_once(world: World, faults: list[Fault]) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    break_writes(world, faults)
    spawned = (NewJob("connect", QUEUE, "connect", name="connect"),)
    row = EmittedRow("v", "1", b"1")

    assert await world.store.save(
        save(job, output=output(), rows=(row,), documents=(document(),), jobs=spawned)
    )

    assert len(await world.store.saves(ORG, id_, "books")) == 1
    assert len(await world.table("job")) == 3
    assert await world.settle(job, DONE)


@faulty
async def test_a_settle_is_applied_once(world: World, faults: list[Fault]) -> None:
    (id_,) = await world.add(document(policy=Policy(hooks=("dead",))))
    job = await world.take()
    break_writes(world, faults)

    assert await world.settle(job, dead())

    assert len(await world.store.attempts(ORG, id_)) == 1
    assert (await world.status(id_)).state == "dead"
    assert [c.job.key for c in await world.claim(9)] == [f"doc-{id_}/on_dead"]
    assert (await world.store.tally()).fenced == 0


@faulty
async def test_a_fenced_write_stays_refused(world: World, faults: list[Fault]) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    await world.settle(job, retry())  # somebody took it back, with this very token
    break_writes(world, faults)
    assert not await world.settle(job, DONE)
    break_writes(world, faults)
    assert not await world.store.save(save(job))

    assert (await world.store.tally()).fenced == 2
    assert (await world.status(id_)).state == "queued"


async def test_the_answers_of_a_whole_batch_are_found_again(world: World) -> None:
    ids = await world.add(*(document() for _ in range(4)), document("late", delay_ms=1))
    first, second, third = (c.job for c in await world.claim(3))
    await world.settle(first, dead())
    world.clock.turn(1)
    break_writes(world, [reply_lost])

    requeue = Requeue(ORG, first.document_id, NewJob("books", QUEUE, "extract"))
    saved, settled, requeued, raised, added, _ = await asyncio.gather(
        world.store.save(save(second)), world.settle(third, DONE), world.store.requeue(requeue),
        world.store.raise_(Raise(ORG, ids[3])), world.store.add([document()]), world.store.promote(Promote()),
    )  # fmt: skip

    assert (saved, settled, requeued, raised) == (True, True, "requeued", "raised")
    assert added[0].answer == "added"
    assert (await world.status(first.document_id)).generation == 2
    assert len(await world.claim(9)) == 4  # requeued, raised, added, promoted: each once


@pytest.mark.parametrize("error", [StoreUnavailable("lost"), StoreBusy("deadlock")], ids=["lost", "busy"])
async def test_a_transaction_that_breaks_in_the_middle_leaves_nothing_behind(
    world: World, error: Exception
) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    driver = break_writes(world, [broken_after(statements, error) for statements in range(4)])

    assert await world.store.save(save(job, output=output()))

    assert (driver.writes, len(await world.store.saves(ORG, id_, "books"))) == (5, 1)
    assert (await world.table("worker", "WHERE kind = 'client'"))[0]["flush"] == world.store.flusher.number


# --- what cannot be known is not claimed to be known --------------------------------------------------


async def test_after_giving_up_in_doubt_the_next_write_is_not_taken_for_the_last(world: World) -> None:
    await world.add(document())
    world.store.flusher._patience_s = 0.0
    break_writes(world, [reply_lost])
    lost = document("lost")
    with pytest.raises(StoreUnavailable):
        await world.store.add([lost])
    world.store.flusher._patience_s = 60.0
    break_writes(world, [never_sent])  # still away at first, so this write has its doubts too
    new = document("new")

    assert await world.store.add([new]) == [Added(new.id, "added")]

    assert {d["name"] for d in await world.table("document")} >= {"lost", "new"}
    assert await world.store.document(ORG, new.id) is not None


async def test_a_client_that_was_forgotten_registers_again(world: World) -> None:
    await world.add(document())
    old = world.store.flusher.client
    await world.execute("DELETE FROM worker WHERE id = $1", old)

    assert (await world.store.add([document()]))[0].answer == "added"

    assert world.store.flusher.client not in (0, old)
    assert len(await world.table("document")) == 2


async def test_a_client_forgotten_while_in_doubt_says_that_it_does_not_know(world: World) -> None:
    await world.add(document())

    async def lost_and_forgotten(write: Write, steps: Given) -> Any:
        await write(steps)
        await world.execute("DELETE FROM worker WHERE id = $1", world.store.flusher.client)
        raise StoreUnavailable("lost")

    break_writes(world, [lost_and_forgotten])
    with pytest.raises(StoreUnavailable, match="unknown"):
        await world.store.add([document("in doubt")])

    assert len(await world.table("document")) == 2  # written, but nobody could tell
    assert (await world.store.add([document()]))[0].answer == "added"


@pytest.mark.parametrize("fault", [never_sent, busy, reply_lost])
async def test_the_first_write_of_a_client_is_as_patient_as_any(world: World, fault: Fault) -> None:
    other = await world.another()
    other.driver = Faulty(other.driver, [fault])  # meets the registration

    assert (await other.add([document()]))[0].answer == "added"


async def test_an_operators_verb_is_tried_again_while_the_store_is_busy(world: World) -> None:
    world.store.driver = Faulty(world.store.driver, [busy, busy])

    await world.store.pause(QUEUE, True, by="ann")

    assert [(act.who, act.verb) for act in await world.store.acts()] == [("ann", "pause")]


async def test_busy_for_longer_than_our_patience_is_told(world: World) -> None:
    await world.add(document())
    world.store.flusher._patience_s = 0.05
    break_writes(world, [busy] * 50)

    with pytest.raises(StoreBusy):
        await world.store.add([document()])

    break_writes(world, [])
    assert (await world.store.add([document()]))[0].answer == "added"
    assert len(await world.table("document")) == 2


async def test_a_cancel_in_doubt_is_not_called_done_when_it_was_refused(world: World) -> None:
    (id_,) = await world.add(document())
    await world.settle(await world.take(), DONE)
    break_writes(world, [reply_lost])

    assert (await world.store.cancel(Cancel(ORG, id_))).startswith("refused")
    assert (await world.status(id_)).state == "done"


async def test_a_key_answers_although_its_reply_was_lost(world: World) -> None:
    await world.add(document())
    break_writes(world, [reply_lost])
    asked, once = document(), Once(ORG, "k", "hash")

    first = await world.store.add_once(once, [asked])

    assert first.added == [Added(asked.id, "added")]
    assert (await world.store.add_once(once, [document()])).added == first.added


@faulty
async def test_a_refused_act_stays_refused_although_the_same_was_done_before(
    world: World, faults: list[Fault]
) -> None:
    (id_,) = await world.add(document())
    await world.settle(await world.take(), dead())
    requeue = Requeue(ORG, id_, NewJob("books", QUEUE, "extract"), by="ann")
    assert await world.store.requeue(requeue) == "requeued"
    break_writes(world, faults)
    assert (await world.store.requeue(requeue)).startswith("refused")  # it is in progress

    assert (await world.status(id_)).generation == 2
    assert await world.store.cancel(Cancel(ORG, id_, by="ann")) == "cancelled"
    break_writes(world, faults)
    assert (await world.store.cancel(Cancel(ORG, id_, by="ann"))).startswith("refused")


async def test_an_act_is_answered_truly_although_somebody_acted_since(world: World) -> None:
    (id_,) = await world.add(document())
    await world.settle(await world.take(), dead())
    other = await world.another()

    async def lost_and_overtaken(write: Write, steps: Given) -> Any:
        await write(steps)
        assert await other.cancel(Cancel(ORG, id_, by="bob")) == "cancelled"
        raise StoreUnavailable("the connection was lost after COMMIT")

    break_writes(world, [lost_and_overtaken])

    requeue = Requeue(ORG, id_, NewJob("books", QUEUE, "extract"), by="ann")
    assert await world.store.requeue(requeue) == "requeued"


async def test_an_add_whose_document_was_purged_before_its_answer_adds_it_again(world: World) -> None:
    known = document("known", dedupe="k")
    await world.add(known)
    await world.settle(await world.take(), dead())
    other = await world.another()

    async def lost_and_purged(write: Write, steps: Given) -> Any:
        await write(steps)
        assert await other.purge([(ORG, known.id)]) == {(ORG, known.id): "purged"}
        raise StoreUnavailable("the connection was lost after COMMIT")

    break_writes(world, [lost_and_purged])
    same = document("same", dedupe="k")

    assert await world.store.add([same]) == [Added(same.id, "added")]

    assert await world.store.document(ORG, same.id) is not None


async def test_a_number_that_another_client_took_is_no_answer_of_ours(world: World) -> None:
    """As in a store that was restored while its clients went on: no reply of ours is missing."""
    (id_,) = await world.add(document())
    job = await world.take()
    await world.execute("UPDATE worker SET flush = flush + 1 WHERE id = $1", world.store.flusher.client)

    assert await world.store.save(save(job, output=output()))

    assert len(await world.store.saves(ORG, id_, "books")) == 1
