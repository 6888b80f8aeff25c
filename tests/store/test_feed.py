"""The feed tells what happened to documents, in the order of commits, and can be read on from any place."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure.errors import InputInvalid
from perdure.store import webhooks
from perdure.store.feed import NAMES, START, Happened
from perdure.store.operations import Cancel, NewJob, Requeue, Settle
from perdure.store.webhooks import Ended, Webhook
from perdure.watch.board import Board
from perdure.watch.overall import Overall
from tests.store.making import BOOM, DONE, ORG, QUEUE, World, dead, document, hold


async def waiting_s(world: World) -> float:
    """What the metric says."""
    return (await Overall(world.store, Board.private()).read())["perdure_feed_waiting_seconds",]


async def told(world: World, number: int, after: str = START) -> list[Happened]:
    """So many entries: they show once nobody else has an older transaction open, in other databases too."""
    async with asyncio.timeout(90):
        while len(found := await world.store.feed(ORG, after)) < number:
            await asyncio.sleep(0.01)
    return found


async def test_ends_and_acts_are_told_in_order(world: World) -> None:
    first, second, third = await world.add(document(), document(), document())
    for outcome in (DONE, dead(), hold()):
        job = await world.take()
        await world.store.settle(Settle(job, outcome, job.stage, job.lane))
    await world.store.cancel(Cancel(ORG, third, "ann", "not wanted"))
    await world.store.requeue(Requeue(ORG, second, NewJob("books", QUEUE, "extract"), by="ann"))

    entries = await told(world, 5)

    assert [(one.name, one.document_id) for one in entries] == [
        ("document.done", first),
        ("document.dead", second),
        ("document.held", third),
        ("document.cancelled", third),
        ("document.requeued", second),
    ]
    assert entries[1].data["error"] == {"code": BOOM.code, "message": BOOM.message}
    assert entries[1].data["stage"] == BOOM.stage
    assert entries[4].data["generation"] == 2
    assert await told(world, 2, entries[2].place) == entries[3:]
    assert await world.store.feed("zeta") == []


async def test_a_place_of_another_server_leaves_nothing_untold(postgres_world: World) -> None:
    world = postgres_world
    await world.add(document())
    job = await world.take()
    await world.store.settle(Settle(job, DONE, job.stage, job.lane))
    entries = await told(world, 1)
    assert await world.store.feed(ORG, entries[-1].place) == []
    assert await told(world, 1, "999999999999999-7") == entries


async def test_what_was_refused_is_not_told(world: World) -> None:
    await world.add(document())
    job = await world.take()
    assert await world.store.settle(Settle(job, DONE, job.stage, job.lane))
    assert not await world.store.settle(Settle(job, dead(), job.stage, job.lane))
    assert [one.name for one in await told(world, 1)] == ["document.done"]


async def test_the_end_of_the_feed_is_before_what_comes_next(world: World) -> None:
    await world.add(document(), document())
    job = await world.take()
    await world.store.settle(Settle(job, DONE, job.stage, job.lane))
    await told(world, 1)
    end = await world.store.feed_end()
    assert await world.store.feed(ORG, end) == []
    job = await world.take()
    await world.store.settle(Settle(job, DONE, job.stage, job.lane))
    assert [one.document_id for one in await told(world, 1, end)] == [job.document_id]


async def test_a_transaction_that_commits_late_is_not_passed_over(postgres_world: World) -> None:
    """Numbers are handed out in one order and committed in another."""
    import asyncpg

    late = await asyncpg.connect(postgres_world.url)
    try:
        open_one = late.transaction()
        await open_one.start()
        await late.execute(
            "INSERT INTO feed (org, at_ms, name, document_id, data) VALUES ($1, 1, 'document.done', 'late', '{}')",
            ORG,
        )
        await postgres_world.add(document())
        job = await postgres_world.take()
        await postgres_world.store.settle(Settle(job, DONE, job.stage, job.lane))
        seen = await postgres_world.store.feed(ORG)
        await open_one.commit()
        seen += await told(postgres_world, 2 - len(seen), seen[-1].place if seen else START)
        assert {one.document_id for one in seen} == {"late", job.document_id}
    finally:
        await late.close()


async def test_concurrent_writers_lose_nothing_for_a_reader_who_follows(world: World) -> None:
    other = await world.another()
    ids = await world.add(*(document() for _ in range(40)))
    seen: list[str] = []

    async def work(store: object) -> None:
        while found := await world.claim(2, store=store):  # type: ignore[arg-type]
            for one in found:
                await store.settle(Settle(one.job, DONE, one.job.stage, one.job.lane))  # type: ignore[attr-defined]

    async def follow() -> None:
        place = START
        while len(seen) < len(ids):
            for one in await world.store.feed(ORG, place, 7):
                seen.append(one.document_id)
                place = one.place
            await asyncio.sleep(0.001)

    async with asyncio.timeout(90):
        await asyncio.gather(work(world.store), work(other), follow())
    assert sorted(seen) == sorted(ids)


async def test_old_entries_are_forgotten(world: World) -> None:
    await world.add(document())
    job = await world.take()
    await world.store.settle(Settle(job, DONE, job.stage, job.lane))
    await told(world, 1)
    world.clock.turn(1_000)
    assert await world.store.forget_feed(1_000, 10) == 0
    world.clock.turn(1)
    assert await world.store.forget_feed(1_000, 10) == 1
    assert await world.store.feed(ORG) == []


@pytest.mark.parametrize("text", ["", "1", "a-b", "1-2-3", "-1-2", "9" * 19 + "-1"])
async def test_a_place_that_is_none_is_refused(world: World, text: str) -> None:
    with pytest.raises(InputInvalid, match="no place in the feed"):
        await world.store.feed(ORG, text)


async def test_a_purge_takes_the_documents_entries_with_it(world: World) -> None:
    gone, kept = await world.add(document(), document())
    for _ in (gone, kept):
        job = await world.take()
        await world.store.settle(Settle(job, dead(), job.stage, job.lane))
    await told(world, 2)
    assert await world.store.purge([(ORG, gone)]) == {(ORG, gone): "purged"}
    assert [row["document_id"] for row in await world.table("feed")] == [kept]
    assert [one.document_id for one in await told(world, 1)] == [kept]


async def test_what_a_webhook_has_not_read_yet_is_told_after_a_purge(world: World) -> None:
    await world.store.add_webhook(Webhook("w", ORG, "http://127.0.0.1:9/", NAMES, "s", START, 0), "ann")
    first, second = await world.add(document(), document())
    for _ in (first, second):
        job = await world.take()
        await world.store.settle(Settle(job, dead(), job.stage, job.lane))
    entries = await told(world, 2)
    await world.store.tell_webhook((await world.store.webhooks())[0], entries[:1])
    await world.store.purge([(ORG, first), (ORG, second)])
    assert [one.document_id for one in await told(world, 1)] == [second]


async def test_a_delivery_goes_with_its_document_once_it_was_sent(world: World) -> None:
    await world.store.add_webhook(Webhook("w", ORG, "http://127.0.0.1:9/", NAMES, "s", START, 0), "ann")
    ids = await world.add(*(document() for _ in range(3)))
    for _ in ids:
        job = await world.take()
        await world.store.settle(Settle(job, dead(), job.stage, job.lane))
    await world.store.tell_webhook((await world.store.webhooks())[0], await told(world, 3))
    sent, given_up, waiting = await world.store.deliveries_due("w", 3)
    await world.store.end_deliveries([Ended(sent.id, "sent")])
    await world.store.end_deliveries([Ended(given_up.id, "dead")])
    await world.store.purge([(ORG, id_) for id_ in ids])
    assert {one.id for one in await world.store.deliveries(ORG)} == {given_up.id, waiting.id}

    assert await world.store.retry_deliveries(ORG, given_up.id, "ann") == 1
    for one in (given_up, waiting):
        await world.store.end_deliveries([Ended(one.id, "waiting", delay_ms=10)])
        await world.store.end_deliveries([Ended(one.id, "sent")])
    assert await world.store.deliveries(ORG) == []


async def test_many_deliveries_are_changed_in_several_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "SLICE", 10)
    await world.store.add_webhook(Webhook("w", ORG, "http://127.0.0.1:9/", NAMES, "s", START, 0), "ann")
    for _ in await world.add(*(document() for _ in range(25))):
        job = await world.take()
        await world.store.settle(Settle(job, dead(), job.stage, job.lane))
    await world.store.tell_webhook((await world.store.webhooks())[0], await told(world, 25))
    due = await world.store.deliveries_due("w", 100)
    await world.store.end_deliveries([Ended(one.id, "dead", error="answered 400") for one in due])
    writes = 0
    write = world.store._write

    async def counted(steps: Any) -> Any:
        nonlocal writes
        writes += 1
        return await write(steps)

    monkeypatch.setattr(world.store, "_write", counted)
    assert await world.store.retry_deliveries(ORG, None, "ann", "mended") == 25
    assert writes == 4
    acts = [row for row in await world.table("act") if row["verb"] == "webhook-retry"]
    assert [row["reason"] for row in acts] == ["25 deliveries: mended"]
    assert not await world.store.drop_webhook("other", "w", "eve")
    assert len(await world.store.deliveries(ORG)) == 25
    writes = 0
    assert await world.store.drop_webhook(ORG, "w", "ann")
    assert writes == 5
    assert await world.store.deliveries(ORG) == []


async def test_a_transaction_in_another_database_of_the_server_keeps_the_feed_waiting(
    postgres_world: World,
) -> None:
    world = postgres_world
    elsewhere = str(urlsplit(world.url)._replace(path="/postgres").geturl())
    other = await asyncpg.connect(elsewhere, server_settings={"application_name": "elsewhere"})
    try:
        async with other.transaction(), asyncio.timeout(90):
            mine = int(await other.fetchval("SELECT pg_current_xact_id()::text"))
            while (oldest := await world.store.driver.oldest_writer()) is None or oldest.name != "elsewhere":
                await asyncio.sleep(0.05)
            assert oldest.database == "postgres"
            ((xmin,),) = await world.query("SELECT pg_snapshot_xmin(pg_current_snapshot())::text")
            assert int(xmin) == mine
            await world.add(document())
            job = await world.take()
            await world.store.settle(Settle(job, DONE, job.stage, job.lane))
            assert await world.store.feed(ORG) == []
        assert len(await told(world, 1)) == 1
    finally:
        await other.close()


async def test_who_read_for_a_webhook_before_another_moves_its_place_no_more(world: World) -> None:
    await world.store.add_webhook(Webhook("w", ORG, "http://127.0.0.1:9/", NAMES, "s", START, 0), "ann")
    await world.add(document(), document())
    for _ in range(2):
        job = await world.take()
        await world.store.settle(Settle(job, DONE, job.stage, job.lane))
    entries = await told(world, 2)
    (webhook,) = await world.store.webhooks()

    await world.store.tell_webhook(webhook, entries)
    await world.store.tell_webhook(webhook, entries[:1])

    assert [one.place for one in await world.store.webhooks()] == [entries[1].place]
    assert len(await world.table("delivery")) == 2


async def test_the_transaction_that_the_feed_waits_for_is_named(postgres_world: World) -> None:
    world = postgres_world
    other = await asyncpg.connect(world.url, server_settings={"application_name": "nightly"})
    try:
        async with other.transaction():
            await other.execute("SELECT pg_current_xact_id()")
            async with asyncio.timeout(60):  # others may write on this server; they end soon
                while (
                    oldest := await world.store.driver.oldest_writer()
                ) is None or oldest.name != "nightly":
                    await asyncio.sleep(0.05)
            assert oldest.pid == other.get_server_pid()
            assert 0 <= oldest.since_ms < 120_000
            # its start is rounded to milliseconds, and others may write on this server
            while await waiting_s(world) == 0:
                await asyncio.sleep(0.01)
    finally:
        await other.close()
