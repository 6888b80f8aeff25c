"""Group commit: many share a transaction, each keeps its own fate."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.core.model import Job
from perdure.errors import InputInvalid, StoreError, StoreUnavailable, Unstorable
from perdure.store.base import DataRefused
from perdure.store.flusher import BATCH_MAX
from perdure.store.operations import Add, Added, Cancel, EmittedRow, Save, Settle
from tests.store.faults import Given, break_writes, never_sent, well
from tests.store.making import DONE, ORG, QUEUE, World, Write, document, output, retry, save


async def jobs_of(world: World, count: int) -> list[Job]:
    """So many claimed jobs."""
    await world.add(*(document() for _ in range(count)))
    return [c.job for c in await world.claim(count)]


async def flushes_of(world: World, *asked: Any) -> tuple[int, list[Any]]:
    """How many commits the operations took together, and their answers."""
    before = world.store.flusher.flushes
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return world.store.flusher.flushes - before, answers


async def test_what_arrives_together_shares_a_commit(world: World) -> None:
    flushes, answers = await flushes_of(world, *(world.store.add([document()]) for _ in range(300)))

    assert [a[0].answer for a in answers] == ["added"] * 300
    assert flushes == 1
    (row,) = await world.table("worker", "WHERE kind = 'client'")
    assert row["flush"] == world.store.flusher.number == 1


async def test_what_arrives_during_a_commit_rides_the_next(world: World) -> None:
    async def trickle(n: int) -> None:
        for _ in range(n % 7):
            await asyncio.sleep(0)
        await world.add(document())

    flushes, _ = await flushes_of(world, *(trickle(n) for n in range(200)))

    assert 1 < flushes <= 8


async def test_more_than_a_batch_takes_several_commits(world: World) -> None:
    flushes, _ = await flushes_of(world, *(world.store.add([document()]) for _ in range(2_100)))

    assert flushes == 3
    assert len(await world.table("document")) == 2_100


async def test_many_documents_of_one_caller_hold_no_other_up(world: World) -> None:
    flusher = world.store.flusher
    before = flusher.flushes
    heavy = [
        asyncio.create_task(world.store.add([document() for _ in range(BATCH_MAX // 2)])) for _ in range(8)
    ]
    small = asyncio.create_task(world.store.add([document()]))
    await small

    assert flusher.flushes - before == 1
    assert sum(one.done() for one in heavy) <= 2
    assert sum(map(len, await asyncio.gather(*heavy))) == 4 * BATCH_MAX
    assert flusher.flushes - before == 4


@pytest.mark.parametrize("each", [2, 49])
async def test_many_bulks_do_not_make_one_large_transaction(world: World, each: int) -> None:
    bulks = [asyncio.create_task(world.store.add([document() for _ in range(each)])) for _ in range(1_100)]
    await asyncio.sleep(0)
    batch = world.store.flusher._take()
    world.store.flusher._pending.extendleft(reversed(batch))
    assert 0 < sum(len(one.op.documents) for one in batch if isinstance(one.op, Add)) <= BATCH_MAX
    for bulk in bulks[20:]:
        bulk.cancel()
    assert sum(map(len, await asyncio.gather(*bulks[:20]))) == 20 * each


async def test_one_operation_may_add_more_documents_than_a_batch(world: World) -> None:
    assert len(await world.store.add([document() for _ in range(BATCH_MAX + 1)])) == BATCH_MAX + 1


async def test_different_operations_share_a_commit_and_each_gets_its_own_answer(world: World) -> None:
    mine, theirs, third = await jobs_of(world, 3)
    stale = replace(theirs, token=1)

    flushes, answers = await flushes_of(
        world, world.store.save(save(mine)), world.store.save(save(stale)), world.settle(third, DONE),
        world.store.add([document("new")]), world.claim(5), world.store.cancel(Cancel(ORG, "unknown")),
    )  # fmt: skip

    assert flushes == 1
    assert answers[:3] == [True, False, True]
    assert answers[3][0].answer == "added"
    assert [c.document.name for c in answers[4]] == [
        "new"
    ]  # what is finished and added makes work for the same commit
    assert answers[5].startswith("refused")


async def test_a_document_has_one_operation_per_commit_in_the_order_they_came(world: World) -> None:
    job, other = await jobs_of(world, 2)
    steps = [save(job, name, output=output(data=name.encode())) for name in ("a", "b", "c")]

    flushes, answers = await flushes_of(
        world, *(world.store.save(s) for s in steps), world.settle(job, DONE), world.settle(job, retry()),
        world.settle(other, DONE),
    )  # fmt: skip

    assert answers == [True, True, True, True, False, True]
    assert flushes == 5
    assert [s.inline for s in await world.store.saves(ORG, job.document_id, "books")] == [b"c"]
    assert (await world.status(job.document_id)).state == "done"


async def test_a_cancel_between_two_saves_is_between_them(world: World) -> None:
    (job,) = await jobs_of(world, 1)

    _, answers = await flushes_of(
        world,
        world.store.save(save(job)),
        world.store.cancel(Cancel(ORG, job.document_id)),
        world.store.save(save(job)),
    )

    assert answers == [True, "cancelled", False]


# --- a value that the database refuses ----------------------------------------------------------------

POISONS: dict[str, dict[str, Any]] = {
    "missing": {"size": None},
    "too-large": {"size": 2**70},
    "surrogate": {"input_hash": "\ud800"},
    "wrong-type": {"inline": object()},
}


def poisoned(job: Job, poison: dict[str, Any]) -> Save:
    return save(job, output=replace(output(), **poison))


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
async def test_a_refused_value_fails_only_its_own_operation(world: World, poison: dict[str, Any]) -> None:
    jobs = await jobs_of(world, 200)
    bad = {17, 180}

    _, answers = await flushes_of(
        world, *(world.store.save(poisoned(j, poison if n in bad else {})) for n, j in enumerate(jobs))
    )

    assert [n for n, a in enumerate(answers) if a is not True] == sorted(bad)
    for n in bad:
        assert isinstance(answers[n], Unstorable)
        row = await world.job(jobs[n].document_id)
        assert (row["stage"], row["state"]) == ("extract", "running")  # nothing of it was written
    assert len(await world.table("saved")) == 198
    assert await world.store.save(save(jobs[17]))  # and its job is still in hand


async def test_a_nul_in_a_text_is_refused_alone(postgres_world: World) -> None:
    world = postgres_world
    jobs = await jobs_of(world, 50)

    _, answers = await flushes_of(
        world,
        *(world.store.save(poisoned(j, {"model": "a\0b"} if n == 9 else {})) for n, j in enumerate(jobs)),
    )

    assert [n for n, a in enumerate(answers) if a is not True] == [9]
    assert isinstance(answers[9], Unstorable)


async def test_a_refused_document_does_not_take_its_neighbours_along(world: World) -> None:
    documents = [document() for _ in range(20)]
    documents[3] = replace(documents[3], meta=None)  # type: ignore[arg-type]

    _, answers = await flushes_of(world, *(world.store.add([d]) for d in documents))

    assert isinstance(answers[3], Unstorable)
    assert len(await world.table("document")) == len(await world.table("job")) == 19


async def test_an_operators_verb_says_what_was_refused_too(world: World) -> None:
    for number in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputInvalid):
            await world.store.weigh("o", number)
        with pytest.raises(InputInvalid):
            await world.store.limit("k", None, number)
    with pytest.raises(InputInvalid):
        await world.store.limit("k", 0, None)
    with pytest.raises(Unstorable):
        await world.store.hold("ocr", "\ud800")
    with pytest.raises(InputInvalid):
        await world.store.status(ORG, "\ud800")


# --- a user's own SQL ---------------------------------------------------------------------------------


async def with_sql(world: World, job: Job, statement: str, *params: object) -> bool:
    return await world.store.save(save(job, output=output(), sql=((statement, params),)))


async def test_a_users_sql_commits_with_its_save(world: World) -> None:
    await world.execute("CREATE TABLE mine (id text PRIMARY KEY)")
    job, stale = await jobs_of(world, 2)

    assert await with_sql(world, job, "INSERT INTO mine VALUES ($1)", "a")
    assert not await with_sql(world, replace(stale, token=1), "INSERT INTO mine VALUES ($1)", "b")

    assert await world.query("SELECT id FROM mine") == [("a",)]


async def test_a_users_sql_rides_alone(world: World) -> None:
    await world.execute("CREATE TABLE mine (id text PRIMARY KEY)")
    jobs = await jobs_of(world, 4)
    last = save(jobs[3], sql=(("INSERT INTO mine VALUES ($1)", ("z",)),))

    flushes, answers = await flushes_of(
        world, world.store.save(save(jobs[0])), with_sql(world, jobs[1], "INSERT INTO mine VALUES ($1)", "a"),
        world.store.save(save(jobs[2])), world.store.settle(Settle(jobs[3], DONE, "extract", "", save=last)),
    )  # fmt: skip

    assert (flushes, answers) == (3, [True] * 4)


@pytest.mark.parametrize(
    "statement", ["INSERT INTO mine VALUES ('taken')", "INSERT INTO nowhere VALUES (1)", "nonsense"]
)
async def test_a_users_sql_that_fails_fails_alone_and_takes_its_save_back(
    world: World, statement: str
) -> None:
    await world.execute("CREATE TABLE mine (id text PRIMARY KEY)")
    await world.execute("INSERT INTO mine VALUES ('taken')")
    jobs = await jobs_of(world, 10)

    _, answers = await flushes_of(
        world,
        *(world.store.save(save(j, output=output())) for j in jobs[:5]),
        with_sql(world, jobs[5], statement),
        *(world.store.save(save(j, output=output())) for j in jobs[6:]),
    )

    assert isinstance(answers.pop(5), StoreError)
    assert answers == [True] * 9
    assert len(await world.table("saved")) == 9
    assert await world.store.save(save(jobs[5]))


# --- beginning and end --------------------------------------------------------------------------------


async def test_closing_writes_what_is_pending(world: World) -> None:
    other = await world.another()
    adding = [asyncio.create_task(other.add([document()])) for _ in range(50)]
    await asyncio.sleep(0)

    await other.close()

    assert [(await task)[0].answer for task in adding] == ["added"] * 50
    assert [w.kind for w in await world.store.workers()] == ["worker"]  # and the client is forgotten


async def test_a_caller_that_gives_up_does_not_disturb_the_others(world: World) -> None:
    (job,) = await jobs_of(world, 1)
    leaving = asyncio.create_task(world.store.save(save(job, rows=(EmittedRow("r", "1", b"1"),))))
    staying = asyncio.create_task(world.store.add([document()]))
    await asyncio.sleep(0)
    leaving.cancel()

    assert (await staying)[0].answer == "added"
    assert len(await world.store.rows(ORG, job.document_id, "r")) == 1  # a save that was asked for is written


async def test_a_claim_whose_caller_has_gone_takes_nothing(world: World) -> None:
    await world.add(document("a"))
    leaving = asyncio.create_task(world.claim())
    await asyncio.sleep(0)
    leaving.cancel()
    await world.add(document("b"))

    assert await world.names_in_turn(3) == ["a", "b"]


async def test_operators_verbs_and_the_flusher_do_not_disturb_each_other(world: World) -> None:
    jobs = await jobs_of(world, 100)
    await world.store.declare([QUEUE], ["ocr"])

    async def operate() -> None:
        for n in range(10):
            await world.store.hold("ocr", "away")
            await world.store.limit(f"key{n}", 3, None)
            await world.store.declare([f"queue{n}"], [])
            await world.store.prune(0, 0)
            await world.store.refill()
            await world.store.release("ocr")

    flushes, answers = await flushes_of(
        world,
        *(operate() for _ in range(3)),
        *(world.settle(j, DONE) for j in jobs),
        *(world.add(document()) for _ in range(50)),
    )

    assert [a for a in answers if isinstance(a, BaseException)] == []
    assert answers[3:103] == [True] * 100
    assert world.store.flusher.number == (await world.table("worker", "WHERE kind = 'client'"))[0]["flush"]
    assert flushes < 50


async def test_a_flusher_that_is_gone_lets_nobody_wait(world: World) -> None:
    (flusher,) = [task for task in asyncio.all_tasks() if task.get_name() == "perdure-flusher"]
    waiting = [asyncio.create_task(world.store.add([document()])) for _ in range(3)]
    while not world.store.flusher._pending:
        await asyncio.sleep(0)
    flusher.cancel()
    async with asyncio.timeout(90):
        answers = await asyncio.gather(*waiting, world.store.add([document()]), return_exceptions=True)
    assert [getattr(answer, "code", None) for answer in answers] == ["store_closed"] * 4


# --- a batch that is halved, and an end in the middle of it ------------------------------------------


async def refused_value(_: Write, __: Given) -> Any:
    raise DataRefused("a value that is too large")


def adding(world: World, count: int) -> list[asyncio.Task[list[Added]]]:
    """So many adds that share a batch; the first of them is the first of the batch."""
    return [asyncio.create_task(world.store.add([document(f"{n}")])) for n in range(count)]


async def added_names(world: World) -> set[str]:
    return {row["name"] for row in await world.table("document")}


async def test_an_outage_after_the_first_half_fails_only_the_second(world: World) -> None:
    world.store.flusher._patience_s = 0.0
    break_writes(world, [refused_value, well, never_sent])

    answers = await asyncio.gather(*adding(world, 200), return_exceptions=True)

    assert [type(answer) for answer in answers[100:]] == [StoreUnavailable] * 100
    assert [answer[0].answer for answer in answers[:100] if not isinstance(answer, BaseException)] == [
        "added"
    ] * 100
    assert await added_names(world) == {f"{n}" for n in range(100)}


async def test_a_flusher_that_is_cancelled_between_halves_answers_the_first(world: World) -> None:
    (flusher,) = [task for task in asyncio.all_tasks() if task.get_name() == "perdure-flusher"]

    async def cancelled(_: Write, __: Given) -> Any:
        flusher.cancel()
        await asyncio.sleep(60)

    break_writes(world, [refused_value, well, cancelled])
    async with asyncio.timeout(90):
        answers = await asyncio.gather(*adding(world, 200), return_exceptions=True)

    assert [answer[0].answer for answer in answers[:100] if not isinstance(answer, BaseException)] == [
        "added"
    ] * 100
    # nobody knows how far its write had come
    assert {str(answer) for answer in answers[100:]} == {
        "the outcome of the last write is unknown; read before writing again"
    }


async def test_answers_that_are_on_their_way_are_given_when_their_task_is_cancelled(world: World) -> None:
    other = await world.another()
    asked = [asyncio.create_task(other.add([document()])) for _ in range(200)]
    while not other.flusher._answering:
        await asyncio.sleep(0)
    for task in list(other.flusher._answering):
        task.cancel()
    async with asyncio.timeout(90):
        answers = await asyncio.gather(*asked)
        await other.close()

    assert [answer[0].answer for answer in answers] == ["added"] * 200


async def test_all_answers_are_given_when_the_flusher_is_closed(world: World) -> None:
    other = await world.another()
    asked = [asyncio.create_task(other.add([document()])) for _ in range(500)]
    while len(other.flusher._pending) < len(asked):
        await asyncio.sleep(0)
    futures = [pending.future for pending in other.flusher._pending]

    await other.flusher.close()

    assert all(future.done() for future in futures)
    assert [answer[0].answer for answer in await asyncio.gather(*asked)] == ["added"] * 500
