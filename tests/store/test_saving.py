"""Saving: outputs, items, rows and children commit with the advance, all of them or none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perdure.core.model import Job
from perdure.store.operations import (
    Cancel,
    EmittedRow,
    HandOver,
    ItemOutput,
    NewEvent,
    NewJob,
    Save,
    Settle,
    StageOutput,
)
from tests.store.making import (
    DONE,
    LEASE_MS,
    ORG,
    START_MS,
    World,
    dead,
    document,
    later,
    output,
    retry,
    save,
)


async def fenced_off(world: World, op: Save | Settle | HandOver) -> bool:
    """The write was refused, changed nothing in any table, and was counted."""
    tables = ("job", "document", "saved", "item", "emitted", "attempt", "outbox", "feed")
    before, fenced = [await world.table(t) for t in tables], (await world.store.tally()).fenced
    kept = await world.store.flusher.submit(op)
    after = [await world.table(t) for t in tables]
    return not kept and before == after and (await world.store.tally()).fenced == fenced + 1


def handed_over(job: Job) -> HandOver:
    """To another service, with an event."""
    event = NewEvent(f"event-{job.token}", job.org, job.document_id, "Extract", "{}")
    return HandOver(job, job.token + 1_000, "extract", "", "{}", LEASE_MS, event)


def everything(job: Job) -> Save:
    """A save with one of each."""
    return save(
        job,
        output=output(),
        items=(ItemOutput("extract", "1", "f", 2, b"{}"),),
        rows=(EmittedRow("vectors", '{"n":1}', b"[1]"),),
        documents=(document("child"),),
        jobs=(NewJob("connect", "documents", "connect", name="connect"),),
    )


async def test_a_save_advances_the_job_and_renews_its_lease(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    world.clock.turn(20_000)

    kept = await world.store.save(
        Save(job, "embed", "openai", 45_000, suspect=True, output=output("chunk", duration_ms=7, model="m"))
    )

    assert kept
    row, now_ms = await world.job(id_), START_MS + 20_000
    assert (row["state"], row["stage"], row["lane"], bool(row["suspect"])) == (
        "running",
        "embed",
        "openai",
        True,
    )
    assert (row["lease_ms"], row["lease_until_ms"]) == (45_000, now_ms + 45_000)
    assert (row["beat_ms"], row["progress_ms"]) == (now_ms, now_ms)
    assert (row["attempts"], row["claims"], row["token"]) == (1, 1, job.token)
    (saved,) = await world.store.saves(ORG, id_, "books")
    assert (saved.stage, saved.generation, saved.version, saved.model) == ("chunk", 1, 1, "m")
    assert (saved.inline, saved.input_hash, saved.output_hash) == (b'"text"', "in", 'out-"text"')
    assert (saved.saved_ms, saved.duration_ms, saved.blob) == (now_ms, 7, None)


async def test_a_stage_saved_again_overwrites_and_the_newest_of_each_generation_can_be_read(
    world: World,
) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    for data in (b"1", b"2"):
        await world.store.save(save(job, output=output(data=data)))
    await world.store.save(save(job, output=replace(output(data=b"3"), blob="b" * 64, inline=None)))
    second = replace(job, generation=2)
    await world.store.save(save(second, output=output(data=b"4")))

    async def saves(**generation: int) -> list[Any]:
        found = await world.store.saves(ORG, id_, "books", **generation)
        return [(s.generation, s.inline, s.blob) for s in found]

    assert await saves() == [(2, b"4", None)]
    assert await saves(generation=1) == [(1, None, "b" * 64)]
    assert await world.store.saves(ORG, id_, "films") == []
    assert await world.store.blob_named("b" * 64)
    assert not await world.store.blob_named("c" * 64)


async def test_items_are_read_back_by_stage_fingerprint_and_generation(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    items = tuple(ItemOutput("extract", str(n), "f1", 1, str(n).encode()) for n in range(3))
    await world.store.save(save(job, items=items))
    await world.store.save(save(job, items=(ItemOutput("extract", "9", "f2", 1, b"9"),)))
    await world.store.save(
        save(replace(job, generation=2), items=(ItemOutput("extract", "1", "f1", 1, b"new"),))
    )

    async def found(fingerprint: str, generation: int) -> list[tuple[str, int, bytes | None]]:
        items = await world.store.items(ORG, id_, "books", "extract", fingerprint, generation)
        return sorted((i.key, i.generation, i.inline) for i in items)

    assert await found("f1", 1) == [("0", 1, b"0"), ("1", 1, b"1"), ("1", 2, b"new"), ("2", 1, b"2")]
    assert await found("f1", 2) == [("1", 2, b"new")]
    assert await found("f2", 1) == [("9", 1, b"9")]
    assert await world.store.items(ORG, id_, "books", "chunk", "f1", 1) == []


async def test_rows_are_written_under_their_key_and_the_last_one_wins(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    first = (
        EmittedRow("v", "1", b"a"),
        EmittedRow("v", "2", b"b"),
        EmittedRow("v", "1", b"c"),
        EmittedRow("w", "1", b"x"),
    )
    await world.store.save(save(job, rows=first))
    world.clock.turn(5)
    await world.store.save(save(job, rows=(EmittedRow("v", "2", b"d"),)))

    assert await world.store.rows(ORG, id_, "v") == [("1", b"c"), ("2", b"d")]
    assert await world.store.rows(ORG, id_, "w") == [("1", b"x")]
    assert [r["written_ms"] - START_MS for r in await world.table("emitted", "ORDER BY name, key")] == [
        0,
        5,
        0,
    ]


async def test_rows_of_older_code_go_when_its_stage_is_saved_again(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()

    async def keep(fingerprint: str, *keys: str, ran: str = "embed", whole: bool = True) -> None:
        rows = tuple(EmittedRow(ran, key, fingerprint.encode()) for key in keys)
        given = output(ran) if whole else None
        assert await world.store.save(save(job, rows=rows, output=given, ran=ran, fingerprint=fingerprint))

    await keep("old", "1", "2")
    await keep("old", "1", ran="chunk")
    await world.settle(job, retry())
    job = await world.take()
    await keep("new", "2", whole=False)  # an item: the stage is not through, what it made before still counts
    assert await world.store.rows(ORG, id_, "embed") == [("1", b"old"), ("2", b"new")]

    await keep("new", "3")

    assert await world.store.rows(ORG, id_, "embed") == [("2", b"new"), ("3", b"new")]
    assert await world.store.rows(ORG, id_, "chunk") == [("1", b"old")]


async def test_the_same_item_twice_in_one_save_keeps_the_last(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    twice = tuple(ItemOutput("extract", "1", "f", 1, data) for data in (b"a", b"b"))

    assert await world.store.save(save(job, items=twice))

    assert [i.inline for i in await world.store.items(ORG, id_, "books", "extract", "f", 1)] == [b"b"]


async def test_children_are_added_with_the_save_once(world: World) -> None:
    (id_,) = await world.add(document("parent"))
    job = await world.take()
    child = replace(document("child"), parent_id=id_)
    follow_up = NewJob("connect", "documents", "connect", name="connect", input=b'{"a":1}')

    for _ in range(2):  # the stage ran again after a crash: nothing is doubled
        assert await world.store.save(save(job, documents=(child,), jobs=(follow_up,)))

    claimed = {c.job.key: c for c in await world.claim(10)}
    assert set(claimed) == {f"doc-{child.id}", f"doc-{id_}/connect"}
    assert claimed[f"doc-{child.id}"].document.parent_id == id_
    spawned = claimed[f"doc-{id_}/connect"]
    assert (spawned.job.pipeline, spawned.job.input, spawned.document.name) == (
        "connect",
        b'{"a":1}',
        "parent",
    )


async def test_a_follow_up_of_a_later_generation_is_a_job_of_its_own(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    spawn = (NewJob("connect", "documents", "connect", name="connect"),)

    await world.store.save(save(job, jobs=spawn))
    await world.store.save(save(replace(job, generation=2), jobs=spawn))

    keys = {row["key"] for row in await world.table("job")}
    assert keys == {f"doc-{id_}", f"doc-{id_}/connect", f"doc-{id_}/connect-g2"}


async def test_a_wrong_token_is_refused(world: World) -> None:
    await world.add(document())
    job = await world.take()
    stranger = replace(job, token=job.token + 1)

    assert await fenced_off(world, everything(stranger))
    assert await fenced_off(world, Settle(stranger, DONE, "extract", "", save=everything(stranger)))
    assert await world.store.save(everything(job))  # the owner is not affected


async def test_after_its_end_a_job_takes_nothing_more(world: World) -> None:
    await world.add(document())
    job = await world.take()
    await world.settle(job, DONE)

    assert await fenced_off(world, everything(job))
    for again in (DONE, retry(), dead()):
        assert await fenced_off(world, Settle(job, again, "extract", ""))


async def test_after_a_reclaim_the_old_worker_is_fenced_and_the_new_one_is_not(world: World) -> None:
    await world.add(document())
    old = await world.take()
    await world.settle(old, later())  # the sweeper took it back
    new = await world.take()

    assert await fenced_off(world, everything(old))
    for end in (DONE, retry(), later(), dead()):
        assert await fenced_off(world, Settle(old, end, "extract", ""))
    assert await fenced_off(world, handed_over(old))
    assert await world.store.save(everything(new))
    assert await world.settle(new, DONE)


async def test_after_a_cancel_the_worker_is_fenced(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    assert await world.store.cancel(Cancel(ORG, id_)) == "cancelled"

    assert await fenced_off(world, everything(job))
    assert await fenced_off(world, Settle(job, DONE, "extract", ""))


async def test_a_lease_that_ran_out_but_was_not_reclaimed_is_still_good(world: World) -> None:
    await world.add(document())
    job = await world.take()
    world.clock.turn(LEASE_MS * 10)

    assert await world.store.save(everything(job))


async def test_what_was_fenced_is_counted_beyond_the_end_of_its_writer(world: World) -> None:
    await world.add(document())
    job = await world.take()
    other = await world.another()
    for _ in range(3):
        assert not await other.save(save(replace(job, token=1)))
    await other.close()

    assert (await world.store.tally()).fenced == 3


async def test_a_large_save_comes_back_as_it_was(world: World) -> None:
    (id_,) = await world.add(document())
    job = await world.take()
    data = bytes(range(256)) * 4_000
    big = StageOutput("extract", 1, "i", "o", len(data), data)
    await world.store.save(save(job, output=big))

    assert (await world.store.saves(ORG, id_, "books"))[0].inline == data
