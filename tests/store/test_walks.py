"""A list that looks at all documents of an organisation keeps short reads of others waiting for nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure.errors import InputInvalid, StoreBusy
from perdure.store import sqlite
from perdure.store.base import Query, Steps
from perdure.store.listing import NAME_PART_MAX
from perdure.store.walks import READERS
from tests.store.making import ORG, World, document


class Held:
    """Reads of the driver that begin while walks are under way, and end when they are let go."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read, self.free = read, asyncio.Event()
        self.now = self.most = 0

    async def __call__(self, steps: Callable[[], Steps[Any]]) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.free.wait()
        self.now -= 1
        return await self._read(steps)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_organisation_walks_once_at_a_time_and_all_take_half_of_the_connections(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.add(document(org="one"), document(org="two"), document(org="three"))
    held = Held(world.store.driver.read)
    monkeypatch.setattr(world.store.driver, "read", held)

    def begin(org: str, count: int) -> list[asyncio.Task[Any]]:
        return [asyncio.create_task(world.store.documents(org, name="x")) for _ in range(count)]

    walks = begin("one", 5)
    await settled()
    assert held.now == 1
    walks += [*begin("two", 5), *begin("three", 5)]
    await settled()
    assert held.now == READERS // 2
    held.free.set()
    assert await asyncio.gather(*walks) == [[]] * 15
    assert held.most == READERS // 2


async def test_a_plain_list_and_a_status_wait_for_no_walk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id_,) = await world.add(document())
    walking = asyncio.Event()

    @asynccontextmanager
    async def turn(_org: str | None) -> AsyncIterator[None]:
        await walking.wait()
        yield

    monkeypatch.setattr(world.store.walks, "turn", turn)
    walk = asyncio.create_task(world.store.documents(ORG, name="x"))
    await settled()
    assert [one.id for one in await world.store.documents(ORG)] == [id_]
    assert await world.store.status(ORG, id_) is not None
    assert not walk.done()
    walking.set()
    assert await walk == []


async def test_parts_of_names_are_found_as_they_are_and_bounded(world: World) -> None:
    names = ["Report 100%.pdf", "report_1.PDF", "other", "a" * 2_000]
    ids = dict(zip(names, await world.add(*(document(name=name) for name in names)), strict=True))

    async def named(part: str) -> list[str]:
        return sorted(one.id for one in await world.store.documents(ORG, name=part))

    assert await named("REPORT") == sorted([ids[names[0]], ids[names[1]]])
    assert await named("0%.") == [ids[names[0]]]
    assert await named("t_1") == [ids[names[1]]]
    assert await named("!") == await named("a" * 99 + "b") == []
    assert await named("a" * NAME_PART_MAX) == [ids[names[3]]]
    with pytest.raises(InputInvalid, match="at most 200 characters"):
        await named("a" * (NAME_PART_MAX + 1))


async def test_letters_beyond_ascii_are_found_in_either_case(world: World) -> None:
    (id_,) = await world.add(document(name="Übersicht ÉTÉ.pdf"))
    for part in ("Übersicht", "übersicht", "ÜBERSICHT", "été", "ÉTÉ"):
        assert [one.id for one in await world.store.documents(ORG, name=part)] == [id_], part


async def test_a_list_by_state_waits_for_no_walk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def turn(_org: str | None) -> AsyncIterator[None]:
        asked.append(True)
        yield

    asked: list[bool] = []
    monkeypatch.setattr(world.store.walks, "turn", turn)
    assert not await world.store.documents(ORG, "dead")
    assert not asked


async def test_a_read_that_was_given_up_leaves_its_connection_soon(sqlite_world: World) -> None:
    def endless() -> Steps[Any]:
        yield Query("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")

    for _ in range(READERS):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await sqlite_world.store.driver.read(endless)
    async with asyncio.timeout(sqlite.STATEMENT_S / 3):  # a read that goes on takes all of it
        await sqlite_world.store.now_ms()


async def test_a_read_that_takes_too_long_is_ended_and_the_connection_serves_on(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless() -> Steps[Any]:
        yield Query("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")

    def short() -> Steps[Any]:
        return (yield Query("SELECT 1"))

    monkeypatch.setattr(sqlite, "STATEMENT_S", 0.2)
    began_s = time.monotonic()
    for _ in range(READERS):
        with pytest.raises(StoreBusy, match="took longer"):
            await sqlite_world.store.driver.read(endless)
    assert time.monotonic() - began_s < 20 * READERS * 0.2
    answers = Counter([(await sqlite_world.store.driver.read(short))[0][0] for _ in range(2 * READERS)])
    assert answers == {1: 2 * READERS}
