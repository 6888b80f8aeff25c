"""Streams of events share looks at the feed: the store pays for places, not for streams."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from perdure.api import looks
from perdure.api.looks import Looks
from perdure.api.refused import Refused
from perdure.errors import StoreUnavailable
from perdure.service import AsyncPerdure
from perdure.store.feed import Happened


class Feed:
    """A store that counts who asks, and a service that has it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.fails = False
        self.store = self

    async def feed(self, org: str, start: str) -> list[Happened]:
        self.asked.append((org, start))
        await asyncio.sleep(0)
        if self.fails:
            raise StoreUnavailable("away")
        return [Happened("7-1", org, 5, "document.done", "d1", {"pipeline": "notes"})]


def made() -> tuple[Looks, Feed]:
    feed = Feed()
    return Looks(cast(AsyncPerdure, feed)), feed


def test_streams_at_one_place_look_once() -> None:
    async def run() -> None:
        own, feed = made()
        found = await asyncio.gather(*(own.feed("a", "1-1") for _ in range(200)))
        assert feed.asked == [("a", "1-1")]
        assert {told[0].place for told in found} == {"7-1"}
        assert found[0][0].said.startswith(b"id: 7-1\nevent: document.done\ndata: {")

        await own.feed("b", "1-1")
        assert feed.asked == [("a", "1-1"), ("b", "1-1")]  # another organisation has its own

    asyncio.run(run())


def test_places_of_one_organisation_wait_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "PER_S", 0.001)  # the next look is in a quarter of an hour

    async def run() -> None:
        own, feed = made()
        many = [asyncio.create_task(own.feed("a", f"{n}-1")) for n in range(50)]
        await many[0]
        await own.feed("b", "1-1")
        assert feed.asked == [("a", "0-1"), ("b", "1-1")]
        for task in many:
            task.cancel()

    asyncio.run(run())


def test_an_answer_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "SAME_S", 0.0)

    async def run() -> None:
        own, feed = made()
        async with asyncio.timeout(20):
            for number in (1, 2, 3):
                await own.feed("a", "1-1")
                assert len(feed.asked) == number
                while own._known:
                    await asyncio.sleep(0)

    asyncio.run(run())


def test_a_stream_that_ends_does_not_end_the_look_of_others() -> None:
    async def run() -> None:
        own, feed = made()
        first, second = (asyncio.create_task(own.feed("a", "1-1")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert [told.name for told in await second] == ["document.done"]
        assert len(feed.asked) == 1

    asyncio.run(run())


def test_all_hear_that_the_store_is_away() -> None:
    async def run() -> None:
        own, feed = made()
        feed.fails = True
        found = await asyncio.gather(*(own.feed("a", "1-1") for _ in range(3)), return_exceptions=True)
        assert {type(one) for one in found} == {StoreUnavailable}

    asyncio.run(run())


def test_looks_end_with_the_streams_that_wait_for_them() -> None:
    async def run() -> None:
        own, feed = made()
        for n in range(2000):
            task = asyncio.create_task(own.feed("a", f"0-{n}"))
            await settle()
            task.cancel()
        await settle()
        assert len(own._known) <= 200
        assert len(asyncio.all_tasks()) <= 200
        began_s = asyncio.get_running_loop().time()
        await own.feed("a", "1-1")
        assert asyncio.get_running_loop().time() - began_s < 2  # the looks that ended gave their places up
        assert len(feed.asked) <= 200

    asyncio.run(run())


def test_an_organisation_waits_for_so_many_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "PER_S", 0.001)

    async def run() -> None:
        own, _ = made()
        many = [asyncio.create_task(own.feed("a", f"{n}-1")) for n in range(300)]
        await settle()
        refused = [task for task in many if task.done() and isinstance(task.exception(), Refused)]
        assert len(refused) >= 99
        many.append(asyncio.create_task(own.feed("a", "0-2")))  # the first one waits no more
        await settle()
        assert len(own._known) <= 201
        with pytest.raises(Refused) as error:
            own.check("a")
        assert error.value.status == 429
        own.check("b")
        await own.feed("b", "1-1")
        for task in many:
            task.cancel()
        await settle()
        own.check("a")
        assert own._paces["a"].waiting == 0

    asyncio.run(run())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
