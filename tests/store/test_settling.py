"""Settling: what each outcome makes of a job, its document, its history and its hooks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.core.model import Policy
from perdure.core.outcome import Dead, Failure, Orphaned, Outcome, hold_delay_ms, outcome
from perdure.store.operations import ItemOutput, NewJob, Settle
from tests.store.making import (
    DONE,
    LEASE_MS,
    ORG,
    QUEUE,
    START_MS,
    World,
    dead,
    document,
    hold,
    later,
    output,
    retry,
    save,
)

COUNTERS = ("attempts", "claims", "postpones", "postponed_ms", "releases", "crashes", "holds", "suspect")
#: what a first claim has been counted as by the time it is settled
CLAIMED = {"attempts": 1, "claims": 1, **dict.fromkeys(COUNTERS[2:], 0)}

OUTCOMES: list[tuple[str, Outcome, str, dict[str, int]]] = [
    ("done", DONE, "done", {}),
    ("dead", dead(crashes=2), "dead", {"crashes": 2}),
    ("dead-uncharged", dead(charged=False), "dead", {"attempts": 0}),
    ("retry", retry(9_000), "waiting", {}),
    ("retry-at-once", retry(0, crashes=1, suspect=True), "queued", {"crashes": 1, "suspect": 1}),
    ("later", later(4_000), "waiting", {"attempts": 0, "postpones": 1, "postponed_ms": 4_000}),
    (
        "later-released", later(0, released=True, suspect=True), "queued",
        {"attempts": 0, "postpones": 1, "releases": 1, "suspect": 1},
    ),
    ("later-uncounted", later(1_000, counted=False), "waiting", {"attempts": 0, "postponed_ms": 1_000}),
    ("hold-in-an-open-lane", hold(), "waiting", {"attempts": 0, "holds": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "state", "changes"), [o[1:] for o in OUTCOMES], ids=[o[0] for o in OUTCOMES]
)
async def test_each_outcome_writes_its_state_and_counters(
    world: World, ending: Outcome, state: str, changes: dict[str, int]
) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    world.clock.turn(100)

    assert await world.store.settle(Settle(job, ending, "chunk", "ocr"))

    row, now_ms = await world.job(id_), START_MS + 100
    lane = "" if state == "done" else "ocr"  # what is done goes nowhere any more
    assert (row["state"], row["stage"], row["lane"]) == (state, "chunk", lane)
    assert {name: int(row[name]) for name in COUNTERS} == CLAIMED | changes
    assert (row["token"], row["worker"], row["lease_until_ms"]) == (None, None, None)
    assert row["finished_ms"] == (now_ms if state in ("done", "dead") else None)
    delay_ms = hold_delay_ms(0) if ending == hold() else getattr(ending, "delay_ms", 0)
    assert row["run_at_ms"] == now_ms + delay_ms


async def test_a_hold_in_a_lane_that_is_down_stays_ready_and_costs_nothing(world: World) -> None:
    await world.store.declare([], ["openai"])
    (id_,) = await world.add(document(lane="openai"))
    job = await world.take()
    await world.settle(job, hold())  # the lane is up: it waits, so that it cannot spin
    assert (await world.job(id_))["holds"] == 1
    world.clock.turn(hold_delay_ms(0))
    await world.promoted(1)
    job = await world.take()
    await world.store.hold("openai", "503")

    await world.settle(job, hold())

    row = await world.job(id_)
    assert (row["state"], row["holds"], row["attempts"], row["run_at_ms"]) == ("queued", 0, 0, world.clock.ms)
    assert (await world.status(id_)).state == "held"


async def test_holds_in_an_open_lane_wait_longer_each_time(world: World) -> None:
    (id_,) = await world.add(document())
    waits = []
    for _ in range(4):
        await world.settle(await world.take(), hold())
        waits.append((await world.job(id_))["run_at_ms"] - world.clock.ms)
        world.clock.turn(waits[-1])
        await world.promoted(1)

    assert waits == [2_000, 4_000, 8_000, 16_000]


async def test_history_keeps_every_claim_with_its_cause(world: World) -> None:
    (id_,) = await world.add(document(policy=Policy(attempts=3)))
    for ending in (retry(1_000), later(2_000), dead("bad_file")):
        job = await world.take()
        world.clock.turn(10)
        await world.settle(job, ending)
        world.clock.turn(5_000)
        await world.promoted(ending != dead("bad_file"))

    first, second, third = await world.store.attempts(ORG, id_)
    assert [(a.outcome, a.charged, a.claim, a.attempt) for a in (first, second, third)] == [
        ("retry", True, 1, 1), ("later", False, 2, 2), ("dead", True, 3, 2),
    ]  # fmt: skip
    assert [(a.delay_ms, a.why) for a in (first, second, third)] == [
        (1_000, "try again"), (2_000, "not now"), (None, "the last attempt failed"),
    ]  # fmt: skip
    assert (first.document_id, first.job_key, first.generation, first.stage) == (
        id_,
        f"doc-{id_}",
        1,
        "extract",
    )
    assert (first.worker, first.started_ms, first.ended_ms) == (world.worker, START_MS, START_MS + 10)
    assert (third.error_type, third.error_code, third.message) == ("ValueError", "bad_file", "boom")
    assert first.fingerprint is not None
    assert first.fingerprint == second.fingerprint


async def test_done_and_hold_are_told_in_history_too(world: World) -> None:
    (id_,) = await world.add(document())
    await world.settle(await world.take(), hold())
    world.clock.turn(60_000)
    await world.promoted(1)
    await world.settle(await world.take(), DONE)

    held, done = await world.store.attempts(ORG, id_)

    assert (held.outcome, held.charged, held.why) == ("hold", False, "the lane is down")
    assert (done.outcome, done.charged, done.error_type, done.fingerprint) == ("done", True, None, None)


async def test_the_document_ends_with_its_main_job(world: World) -> None:
    good, bad, going = await world.add(document("good"), document("bad"), document("going"))
    world.clock.turn(50)
    endings: dict[str, Outcome] = {good: DONE, bad: dead("bad_file"), going: retry(1_000)}
    for claimed in await world.claim(3):
        await world.settle(claimed.job, endings[claimed.document.id])

    status = {id_: await world.status(id_) for id_ in endings}
    assert [(s.state, s.finished_ms) for s in status.values()] == [
        ("done", START_MS + 50), ("dead", START_MS + 50), ("waiting", None),
    ]  # fmt: skip
    assert [(s.error_code, s.error_message) for s in status.values()] == [
        (None, None), ("bad_file", "boom"), ("unexpected", "boom"),
    ]  # fmt: skip
    (row,) = await world.table("document", f"WHERE id = '{bad}'")
    assert json.loads(row["error_meta"]) == {
        "stage": "extract", "type": "ValueError", "attempts": 1, "worker": world.worker,
    }  # fmt: skip
    assert (await world.store.tally()).documents == {"done": 1, "dead": 1, "open": 1}


async def test_a_follow_up_ends_without_touching_its_document(world: World) -> None:
    (id_,) = await world.add(document(policy=Policy(hooks=("done",))))
    await world.settle(await world.take(), DONE)
    hook = await world.take()
    assert hook.key == f"doc-{id_}/on_done"

    await world.settle(hook, dead("hook_failed"))

    assert (await world.status(id_)).state == "done"
    assert (await world.job(id_, "on_done"))["state"] == "dead"
    assert [a.job_key for a in await world.store.attempts(ORG, id_)] == [f"doc-{id_}", hook.key]


async def test_the_end_of_a_follow_up_has_no_hooks(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    spawned = NewJob("connect", QUEUE, "connect", name="connect", policy=Policy(hooks=("done",)))
    await world.settle(job, DONE, save=save(job, jobs=(spawned,)))

    await world.settle(await world.take(), DONE)

    assert {row["key"] for row in await world.table("job")} == {f"doc-{id_}", f"doc-{id_}/connect"}


async def test_hooks_are_spawned_once_for_the_end_they_were_asked_for(world: World) -> None:
    both = Policy(hooks=("done", "dead"))
    good, bad, silent = await world.add(
        document("good", policy=both), document("bad", policy=both), document("silent")
    )
    for claimed in await world.claim(3):
        ending = dead("bad_file") if claimed.document.id == bad else DONE
        assert await world.settle(claimed.job, ending)
        assert not await world.settle(claimed.job, ending)

    told: dict[str, Any] = {
        c.job.key: (c.job.pipeline, json.loads(c.job.input or b"")) for c in await world.claim(9)
    }

    assert silent not in str(told)
    assert told == {
        f"doc-{good}/on_done": ("books.on_done", None),
        f"doc-{bad}/on_dead": (
            "books.on_dead",
            {
                "stage": "extract",
                "error_type": "ValueError",
                "code": "bad_file",
                "message": "boom",
                "status_code": None,
            },
        ),
    }


async def test_a_document_that_dies_with_its_worker_ends_like_any_other(world: World) -> None:
    (id_,) = await world.add(document(policy=Policy(hooks=("dead",), postpones_max=0)))
    job = await world.take()
    world.clock.turn(LEASE_MS + 1)
    (expired,) = await world.store.expired(10)
    ending = outcome(expired, Orphaned("extract", "lease expired", blame=False))
    assert isinstance(ending, Dead)

    taken = [await world.settle(expired, ending, expired_only=True, ours=False) for _ in range(2)]

    assert taken == [True, False]
    assert not await world.settle(job, DONE)
    assert [row["document_id"] for row in await world.table("dead")] == [id_]
    assert (await world.status(id_)).error_code == "postpones_exhausted"
    assert [c.job.key for c in await world.claim(9)] == [f"doc-{id_}/on_dead"]


async def test_the_last_save_and_the_end_are_one(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    last = save(
        job,
        output=output(),
        items=(ItemOutput("extract", "1", "f", 1, b"1"),),
        documents=(document("child"),),
    )

    assert await world.settle(job, DONE, save=last)

    assert [s.stage for s in await world.store.saves(ORG, id_, "books")] == ["extract"]
    assert await world.names_in_turn(2) == ["child"]


async def test_broken_text_in_a_failure_is_cleaned_the_same_on_both(world: World) -> None:
    (id_,) = await world.add(document(policy=Policy(hooks=("dead",))))
    broken = "a\0b\ud800c"
    failure = Failure("extract", broken, broken, broken, status_code=2**70)

    assert await world.settle(await world.take(), Dead(failure, broken))

    (told,) = await world.store.attempts(ORG, id_)
    status = await world.status(id_)
    texts = [
        told.message,
        told.error_type,
        told.error_code,
        told.why,
        status.error_code,
        status.error_message,
    ]
    assert all(
        text and text[0] == "a" and text[-1] == "c" and not {"\0", "\ud800"} & set(text) for text in texts
    )
    assert len(set(texts)) == 1
    assert told.status_code is None
