"""Waking: idle workers hear of new work at once, whoever brought it, and a lost listener harms nobody."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure.core.token import new_token
from perdure.store.operations import Claim, NewJob, Promote, Requeue
from tests.store.making import DONE, ORG, QUEUE, World, document, save


async def test_an_added_document_wakes_who_listens_elsewhere(world: World) -> None:
    other = await world.another()
    heard = asyncio.Event()
    stop = await other.listen(heard.set)
    await world.claim()  # nothing there: this worker is marked idle

    await world.add(document())

    await asyncio.wait_for(heard.wait(), 90)
    await stop()


async def test_closing_right_after_an_add_does_not_lose_the_wake_up(world: World) -> None:
    adding = await world.another()
    heard = asyncio.Event()
    stop = await world.store.listen(heard.set)
    await world.claim()

    await adding.add([document()])
    await adding.close()

    await asyncio.wait_for(heard.wait(), 90)
    await stop()


@pytest.mark.parametrize("work", ["promote", "requeue", "child", "release", "resume"])
async def test_whatever_makes_work_wakes(world: World, work: str) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    first, _ = await world.add(document(), document(delay_ms=10))
    job = await world.take()
    world.clock.turn(10)
    await world.claim()
    await asyncio.sleep(0.05)  # the wake-ups of what was added have gone out
    heard = asyncio.Event()
    stop = await (await world.another()).listen(heard.set)

    match work:
        case "promote":
            await world.store.promote(Promote())
        case "requeue":
            await world.settle(job, DONE)
            await world.store.requeue(Requeue(ORG, first, NewJob("books", QUEUE, "extract")))
        case "child":
            await world.store.save(save(job, documents=(document(),)))
        case "release":
            await world.store.release("ocr")
        case "resume":
            await world.store.pause(QUEUE, False)

    await asyncio.wait_for(heard.wait(), 90)
    await stop()


async def test_who_stopped_listening_hears_nothing_more(world: World) -> None:
    heard: list[str] = []
    other = await world.another()
    stop = await other.listen(lambda: heard.append("gone"))
    both = asyncio.Event()
    await other.listen(both.set)
    await stop()
    await world.claim()

    await world.add(document())

    await asyncio.wait_for(both.wait(), 90)
    assert heard == []


async def test_a_listener_that_died_is_cleared_away_and_a_new_one_is_not(
    sqlite_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, wake = sqlite_world, tmp_path / "perdure.db.d" / "wake"
    os.mkfifo(wake / "dead")
    mkfifo, heard = os.mkfifo, asyncio.Event()

    def interrupted(path: Path, mode: int) -> None:
        mkfifo(path, mode)
        for fifo in wake.iterdir():  # another process wakes everybody at this very moment
            try:
                os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                fifo.unlink()

    monkeypatch.setattr(os, "mkfifo", interrupted)
    stop = await world.store.listen(heard.set)
    await world.add(document())

    await asyncio.wait_for(heard.wait(), 90)
    assert not (wake / "dead").exists()
    await stop()
    assert list(wake.iterdir()) == []


async def test_a_worker_with_a_slot_to_spare_is_woken_however_busy_it_is(world: World) -> None:
    """PostgreSQL tells only workers that wait; one that runs three documents of four waits for the fourth."""
    await world.add(document())
    await world.claim(4)
    assert [row["idle"] for row in await world.table("worker") if row["id"] == world.worker] == [True]
    await world.add(document(), document())
    await world.store.claim(Claim(world.worker, (QUEUE,), new_token(), 2, idle=True))
    assert [row["idle"] for row in await world.table("worker") if row["id"] == world.worker] == [False]


async def test_two_that_begin_to_listen_at_once_both_hear(world: World) -> None:
    """While the connection is busy: each of them took the other for the one that tells the server."""
    other = await world.another()
    await other.driver.tend()  # it is connected
    first, second = asyncio.Event(), asyncio.Event()
    await asyncio.gather(other.driver.lock("test", 1), other.listen(first.set), other.listen(second.set))
    await world.claim()  # nothing there: this worker is marked idle

    await world.add(document())

    async with asyncio.timeout(90):
        await first.wait()
        await second.wait()
