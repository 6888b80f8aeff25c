"""Claiming: who is next, who is not to be had, and that nobody is handed out twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import astuple

import pytest

from perdure.core.token import new_token
from perdure.store.operations import Cancel, Claim, Promote, Raise
from tests.store.making import (
    DONE,
    LEASE_MS,
    ORG,
    QUEUE,
    START_MS,
    World,
    document,
    later,
    output,
    retry,
    save,
)


async def test_a_claim_counts_and_leases_in_the_same_statement(world: World) -> None:
    (id_,) = await world.add(document())
    token = new_token()
    world.clock.turn(5_000)
    now_ms = START_MS + 5_000

    (claimed,) = await world.store.claim(Claim(world.worker, (QUEUE,), token, 10))

    job = claimed.job
    assert (job.token, job.worker, job.attempts, job.claims, job.claimed_ms) == (
        token,
        world.worker,
        1,
        1,
        now_ms,
    )
    row = await world.job(id_)
    assert row["state"] == "running"
    assert (row["token"], row["worker"], row["attempts"], row["claims"]) == (token, world.worker, 1, 1)
    assert (row["claimed_ms"], row["beat_ms"], row["lease_until_ms"]) == (now_ms, now_ms, now_ms + LEASE_MS)
    assert await world.claim(10) == []


async def test_every_claim_counts_again_and_has_a_token_of_its_own(world: World) -> None:
    await world.add(document())
    first = await world.take()
    await world.settle(first, retry())
    second = await world.take()

    assert (second.attempts, second.claims) == (2, 2)
    assert second.token != first.token
    await world.settle(second, later())
    third = await world.take()
    assert (third.attempts, third.claims) == (2, 3)  # the second was given back, but it was a claim
    assert first.key == second.key == third.key == f"doc-{first.document_id}"


async def test_a_running_document_names_the_stage_that_runs(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    seen = [await world.status(id_)]
    assert await world.store.save(save(job, stage="chunk", output=output("extract")))
    seen.append(await world.status(id_))
    assert [(status.state, status.stage) for status in seen] == [("running", "extract"), ("running", "chunk")]


async def test_a_claim_takes_at_most_what_it_asked_for_from_the_queues_it_asked(world: World) -> None:
    await world.add(*(document() for _ in range(5)), document(queue="films"), document(queue="mail"))

    assert len(await world.claim(2)) == 2
    assert {c.job.queue for c in await world.claim(10, queues=["films", QUEUE])} == {"films", QUEUE}
    assert [c.job.queue for c in await world.claim(10, queues=["films", QUEUE, "mail"])] == ["mail"]
    assert await world.claim(10, queues=[]) == []


async def test_several_queues_and_lanes_are_served_by_one_order(world: World) -> None:
    await world.add(
        *(document(f"a{n}", lane="ocr") for n in range(3)),
        *(document(f"b{n}", queue="films") for n in range(3)),
    )

    served = [c.document.name for _ in range(3) for c in await world.claim(2, queues=[QUEUE, "films"])]

    # each queue has its own virtual time, so the first of both come before the second of either
    assert [sorted(served[n : n + 2]) for n in (0, 2, 4)] == [["a0", "b0"], ["a1", "b1"], ["a2", "b2"]]


async def test_within_an_organisation_priority_decides_then_order(world: World) -> None:
    await world.add(document("a"), document("b"), document("urgent", priority=5), document("c"))
    await world.add(document("low", priority=-5), document("more", priority=5))

    # the urgent ones start at the queue's present, the others keep their order
    served = await world.names_in_turn(6)

    assert served[0] == "urgent"
    assert served.index("more") <= 2
    assert [name for name in served if name in "abc"] == ["a", "b", "c"]
    assert served[-1] == "low"


async def test_a_raised_document_comes_before_everybody(world: World) -> None:
    ids = await world.add(
        *(document(f"x{n}", org="other", priority=10) for n in range(5)), document("a"), document("b")
    )

    assert await world.store.raise_(Raise(ORG, ids[-1], by="ann")) == "raised"

    assert await world.names_in_turn(2) == ["b", "x0"]
    assert astuple((await world.store.acts())[0])[1:] == (START_MS, "ann", "raise", ORG, ids[-1], "")


async def test_a_raised_document_that_waits_is_due_at_once_and_first(world: World) -> None:
    *_, id_ = await world.add(
        *(document(priority=10) for _ in range(5)), document("waits", priority=10, delay_ms=3_600_000)
    )
    for claimed in await world.claim(3):
        await world.settle(claimed.job, retry(1_000))
    tired = claimed.job.document_id
    world.clock.turn(1_000)
    assert await world.store.promote(Promote()) == 3  # the organisation has had turns of every kind

    (last,) = [c.job for c in await world.claim(9) if c.job.document_id == tired]
    await world.settle(last, retry(3_600_000))
    await world.add(*(document(org="other", priority=10) for _ in range(3)))
    for raised in (id_, tired):
        assert await world.store.raise_(Raise(ORG, raised)) == "raised"
        assert await world.store.promote(Promote()) == 1
        assert (await world.take()).document_id == raised


async def test_what_runs_or_is_over_cannot_be_raised(world: World) -> None:
    id_, other = await world.add(document(), document())
    job = await world.take()

    for document_id in (id_, "unknown"):
        assert (await world.store.raise_(Raise(ORG, document_id))).startswith("refused: ")
    await world.settle(job, DONE)
    assert (await world.store.raise_(Raise(ORG, id_))).startswith("refused: ")
    assert (await world.store.raise_(Raise("stranger", other))).startswith("refused: ")
    assert await world.store.acts() == []


async def test_a_paused_queue_hands_out_nothing_and_its_running_jobs_go_on(world: World) -> None:
    await world.add(document("a"), document("b"), document("film", queue="films"))
    job = await world.take()
    await world.store.pause(QUEUE, True, by="ann")

    assert await world.claim(10) == []
    assert len(await world.claim(10, queues=[QUEUE, "films"])) == 1
    assert await world.settle(job, DONE)
    assert (await world.store.tally()).queues[QUEUE] == {"paused": 1}

    await world.store.pause(QUEUE, False, by="ann")
    assert await world.names_in_turn(2) == ["b"]
    assert [(act.who, act.verb) for act in await world.store.acts()] == [("ann", "resume"), ("ann", "pause")]


async def test_suspects_are_claimed_apart_from_the_others(world: World) -> None:
    await world.add(document("bad"), document("good"))
    await world.settle(await world.take(), later(suspect=True))

    assert [c.document.name for c in await world.claim(10)] == ["good"]
    assert await world.claim(10) == []
    (claimed,) = await world.claim(0, suspects=3)
    assert (claimed.document.name, claimed.job.suspect) == ("bad", True)


async def test_one_claim_fills_both_kinds_of_slots(world: World) -> None:
    await world.add(*(document(f"s{n}") for n in range(3)))
    for claimed in await world.claim(3):
        await world.settle(claimed.job, later(suspect=True))
    await world.add(*(document(f"g{n}") for n in range(3)))

    found = await world.claim(2, suspects=1)

    assert Counter(c.job.suspect for c in found) == {True: 1, False: 2}


async def test_two_claimers_never_share_a_job(world: World) -> None:
    other, total = await world.another(), 600
    theirs = await other.register("worker", "w2", [QUEUE])
    await world.add(*(document(lane=f"lane{n % 3}") for n in range(total)))
    seen: list[int] = []

    async def drain(worker: int, store: object) -> None:
        empty = 0
        while empty < 3:  # a claim may find what another one has just locked, and nothing else
            claim = Claim(worker, (QUEUE,), new_token(), 7)
            found = await (world.store if store is None else other).claim(claim)
            seen.extend(c.job.id for c in found)
            assert all(c.job.worker == worker and c.job.token == claim.token for c in found)
            empty = 0 if found else empty + 1

    await asyncio.gather(
        *(drain(world.worker, None) for _ in range(3)), *(drain(theirs, other) for _ in range(3))
    )

    assert len(seen) == len(set(seen)) == total
    assert {row["claims"] for row in await world.table("job")} == {1}


async def test_an_idle_worker_is_marked_and_unmarked(world: World) -> None:
    async def idle() -> bool:
        return bool((await world.table("worker", f"WHERE id = {world.worker}"))[0]["idle"])

    async def claim(marked: bool) -> None:
        await world.store.claim(Claim(world.worker, (QUEUE,), new_token(), 1, idle=marked))

    await claim(False)
    assert await idle()
    await world.add(document())
    await claim(True)
    assert not await idle()


@pytest.mark.parametrize("state", ["cancelled", "waiting"])
async def test_only_ready_jobs_are_claimed(world: World, state: str) -> None:
    (id_,) = await world.add(document(delay_ms=0 if state == "cancelled" else 1_000))
    if state == "cancelled":
        await world.store.cancel(Cancel(ORG, id_))

    assert (await world.job(id_))["state"] == state
    assert await world.claim(10) == []
