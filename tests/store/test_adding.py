"""Adding: an answered id is durable, a second one of the same answers `exists`, a job waits for its time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from perdure.core.model import Policy
from perdure.errors import StoreError
from perdure.store.base import Steps
from perdure.store.operations import Added
from tests.store.faults import Given, break_writes
from tests.store.making import LEASE_MS, ORG, QUEUE, START_MS, Fault, World, Write, document


async def test_a_document_is_kept_with_everything_it_came_with(world: World) -> None:
    asked = replace(
        document("dune", priority=3, policy=Policy(attempts=5, hooks=("done",))),
        collection="novels", kind="bytes", media_type="text/plain", meta=b'{"a":1}', parent_id="p1", blob="b" * 64,
    )  # fmt: skip

    assert await world.store.add([asked]) == [Added(asked.id, "added")]

    claimed = (await world.claim())[0]
    record = claimed.document
    assert record == await world.store.document(ORG, asked.id)
    assert (record.name, record.collection, record.kind, record.media_type) == (
        "dune", "novels", "bytes", "text/plain",
    )  # fmt: skip
    assert (record.content_hash, record.size, record.inline, record.blob) == (
        asked.content_hash, asked.size, asked.inline, asked.blob,
    )  # fmt: skip
    assert (record.meta, record.parent_id, record.created_ms) == (b'{"a":1}', "p1", START_MS)
    job = claimed.job
    assert (job.key, job.pipeline, job.queue, job.stage, job.lane) == (
        f"doc-{asked.id}", "books", QUEUE, "extract", "",
    )  # fmt: skip
    assert (job.priority, job.attempts_max, job.policy, job.lease_ms) == (3, 5, asked.job.policy, LEASE_MS)
    assert (job.generation, job.suspect, job.fresh_from, job.input) == (1, False, None, None)


async def test_an_answered_id_survives_a_process_that_never_closes(world: World) -> None:
    ids = await world.add(*(document() for _ in range(5)))

    other = await world.another()  # reads what was committed, whatever the first process still has in memory

    assert [s.id for s in await other.documents()] == sorted(ids, reverse=True)


async def test_the_same_dedupe_answers_exists_with_the_first_id(world: World) -> None:
    first, again = document("a", dedupe="key:1"), document("b", dedupe="key:1")

    within = await world.store.add([first, again])
    across = await world.store.add([document("c", dedupe="key:1")])

    assert within == [Added(first.id, "added"), Added(first.id, "exists", "queued")]
    assert across == [Added(first.id, "exists", "queued")]
    assert [d["name"] for d in await world.table("document")] == ["a"]
    assert len(await world.table("job")) == 1


async def test_operations_that_share_a_flush_deduplicate_each_other(world: World) -> None:
    documents = [document(dedupe="same") for _ in range(20)]

    answers = await asyncio.gather(*(world.store.add([d]) for d in documents))

    assert [a[0].answer for a in answers] == ["added"] + ["exists"] * 19
    assert {a[0].id for a in answers} == {documents[0].id}
    assert world.store.flusher.flushes < 20  # they did share


async def test_two_processes_adding_the_same_agree_on_one(world: World) -> None:
    other = await world.another()
    pairs = [(document(dedupe=f"k{n}"), document(dedupe=f"k{n}")) for n in range(50)]

    answers = await asyncio.gather(
        *(world.store.add([a]) for a, _ in pairs), *(other.add([b]) for _, b in reversed(pairs))
    )

    ours, theirs = answers[:50], list(reversed(answers[50:]))
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine[0].id == yours[0].id
        assert sorted([mine[0].answer, yours[0].answer]) == ["added", "exists"]
    assert len(await world.table("document")) == 50


async def test_dedupe_holds_within_an_organisation_and_a_pipeline_only(world: World) -> None:
    answers = await world.store.add(
        [
            document(dedupe="k"),
            document(dedupe="k", org="other"),
            document(dedupe="k", pipeline="films"),
            document(),
            document(),
        ]
    )

    assert [a.answer for a in answers] == ["added"] * 5


async def test_the_same_id_again_exists_and_adds_no_job(world: World) -> None:
    same = document()

    assert [a.answer for a in await world.store.add([same, same])] == ["added", "exists"]
    assert [a.answer for a in await world.store.add([same])] == ["exists"]
    assert len(await world.table("job")) == 1


async def test_two_organisations_may_use_the_same_id(world: World) -> None:
    mine = document("mine")
    theirs = replace(mine, org="other", name="theirs")
    await world.add(mine)

    answers = await world.store.add([mine, theirs])

    assert answers == [Added(mine.id, "exists", "queued"), Added(mine.id, "added")]
    assert sorted(await world.names_in_turn(3)) == ["mine", "theirs"]


async def test_a_job_is_not_ready_before_its_time(world: World) -> None:
    soon, dated, past = await world.add(
        document("delay", delay_ms=5_000),
        document("run_at", run_at_ms=START_MS + 7_000),
        document("past", run_at_ms=START_MS - 1),
    )

    assert [(await world.status(i)).state for i in (soon, dated, past)] == ["waiting", "waiting", "queued"]
    assert [(await world.status(i)).run_at_ms for i in (soon, dated, past)] == [
        START_MS + 5_000, START_MS + 7_000, None,
    ]  # fmt: skip
    assert await world.names_in_turn(2) == ["past"]


async def test_adding_to_a_queue_and_lane_nobody_declared_is_seen_by_a_claim(world: World) -> None:
    await world.add(document("a", queue="films", lane="ocr"))

    assert [c.document.name for c in await world.claim(queues=["films"])] == ["a"]


async def test_a_closed_store_says_so(world: World) -> None:
    other = await world.another()
    await other.close()

    for refused in (lambda: other.add([document()]), lambda: other.status(ORG, "x"), lambda: other.lead()):
        with pytest.raises(StoreError) as caught:
            await refused()
        assert caught.value.code == "store_closed"


async def test_an_empty_add_writes_nothing(world: World) -> None:
    assert await world.store.add([]) == []
    assert await world.table("document") == []


def cut_after(statements: int) -> Fault:
    """The transaction is cut off after so many statements, if it has more."""

    async def fault(write: Write, steps: Given) -> Any:
        def cutting() -> Steps[Any]:
            conversation, answer = steps(), None
            for _ in range(statements):
                try:
                    query = conversation.send(answer)  # type: ignore[arg-type]
                except StopIteration as end:
                    return end.value
                answer = yield query
            raise StoreError("cut off")

        return await write(cutting)

    return fault


async def test_a_document_and_its_job_are_written_together_or_not_at_all(world: World) -> None:
    """Cut off after each of its statements in turn, until it has no more."""
    await world.add(document("first"))
    cut, whole = 0, False
    while not whole:
        cut += 1
        break_writes(world, [cut_after(cut)])
        with suppress(StoreError):
            await world.store.add([document(f"d{cut}")])
            whole = True
        jobs = {row["document_id"] for row in await world.table("job")}
        assert {row["id"] for row in await world.table("document")} == jobs
    assert cut > 2
    assert len(await world.table("document")) == 2
