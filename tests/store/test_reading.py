"""Reading: lists, counts and look-ups as operators and doors see them."""

from __future__ import annotations

from perdure.core.outcome import Outcome
from perdure.store.operations import Cancel
from tests.store.making import DONE, ORG, QUEUE, START_MS, World, dead, document, retry


async def test_documents_are_listed_newest_first_and_page_by_page(world: World) -> None:
    ids = await world.add(*(document() for _ in range(7)))

    first = await world.store.documents(limit=3)
    second = await world.store.documents(after=first[-1].place, limit=3)
    third = await world.store.documents(after=second[-1].place, limit=3)

    assert [s.id for s in (*first, *second, *third)] == sorted(ids, reverse=True)


async def test_documents_are_listed_by_organisation_state_and_stage(world: World) -> None:
    done, bad, waits, running = await world.add(*(document(stage="fetch") for _ in range(4)))
    endings: dict[str, Outcome] = {done: DONE, bad: dead(), waits: retry(1_000)}
    for claimed in await world.claim(4):
        if claimed.document.id != running:
            await world.settle(claimed.job, endings[claimed.document.id])
    queued, cancelled = await world.add(document(), document())
    await world.store.cancel(Cancel(ORG, cancelled))
    (theirs,) = await world.add(document(org="other"))

    async def listed(org: str | None, state: str | None, stage: str | None = None) -> list[str]:
        return [s.id for s in await world.store.documents(org, state, stage=stage)]

    for state, id_ in {
        "done": done,
        "dead": bad,
        "waiting": waits,
        "queued": queued,
        "cancelled": cancelled,
    }.items():
        assert await listed(ORG, state) == [id_]
    assert await listed(ORG, "running", "fetch") == [running]
    assert await listed(ORG, "running", "chunk") == []
    assert await listed("other", None) == [theirs]
    assert len(await listed(None, None)) == 7
    assert await listed("nobody", None) == []


async def test_a_tally_counts_documents_and_the_jobs_of_each_queue(world: World) -> None:
    await world.store.limit("key", 1, None)
    await world.store.declare([QUEUE], ["ocr"])
    await world.add(
        *(document(limit_key="key") for _ in range(3)), document(lane="ocr"), document(delay_ms=500)
    )
    await world.add(document(queue="films"), document(queue="films", delay_ms=100))
    await world.store.hold("ocr", "away")
    await world.claim(1)

    tally = await world.store.tally()

    assert tally.documents == {"open": 7}
    assert tally.queues == {
        QUEUE: {"running": 1, "parked": 2, "held": 1, "waiting": 1}, "films": {"queued": 1, "waiting": 1},
    }  # fmt: skip
    assert (tally.next_due_ms, tally.fenced) == (START_MS + 100, 0)
    assert (await world.store.tally([QUEUE])).next_due_ms == START_MS + 500
    assert set((await world.store.tally(["films"])).queues) == {"films"}
    await world.store.pause("films", True)
    assert (await world.store.tally()).queues["films"] == {"paused": 2}
    assert (await world.store.tally()).next_due_ms == START_MS + 500  # what is paused falls due for nobody


async def test_what_is_not_there_is_none(world: World) -> None:
    (id_,) = await world.add(document())

    assert await world.store.find(id_) == ORG
    assert await world.store.find("unknown") is None
    for org, unknown in ((ORG, "unknown"), ("other", id_)):
        assert await world.store.status(org, unknown) is None
        assert await world.store.document(org, unknown) is None
        assert await world.store.attempts(org, unknown) == []
        assert await world.store.rows(org, unknown, "v") == []
