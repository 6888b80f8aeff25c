"""`ctx.aitems`: the same promises as `ctx.items`, with several runs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.engine.context import Context
from perdure.engine.result import Row
from perdure.errors import Permanent
from tests.engine.port import PAGES, FakePort, Page, aread, collect, context, key, read


@pytest.mark.parametrize("concurrency", [1, 2, 10])
@pytest.mark.parametrize("run", [read, aread, lambda page: aread(page)])
def test_results_come_in_order_and_saved_ones_without_running(run: Any, concurrency: int) -> None:
    port = FakePort({"8": b'"saved 8"'})
    ctx = context(port, is_async=True)
    results = asyncio.run(collect(ctx.aitems(PAGES, key=key, run=run, concurrency=concurrency)))
    assert results == ["page 7", "saved 8", "page 9"]
    assert [name for name, _, _ in port.saves] == ["7", "9"]


def test_rows_ride_with_their_item_also_with_runs_ahead() -> None:
    port = FakePort({"0": b"0"})
    ctx = context(port, is_async=True)

    async def run(number: int) -> int:
        await asyncio.sleep(0)
        ctx.emit(Row("run", n=number))
        return number

    async def stage() -> None:
        async for number in ctx.aitems(range(4), run=run, concurrency=3):
            ctx.emit(Row("body", n=number))
            for _ in range(5):
                await asyncio.sleep(0)  # the others run on meanwhile
            ctx.emit(Row("after", n=number))

    asyncio.run(stage())
    assert [(name, rows) for name, _, rows in port.saves] == [
        (str(n), [f'{{"n":{n}}}'] * 3) for n in (1, 2, 3)
    ]
    assert ctx.take_emitted() == []


def test_as_many_runs_go_on_as_asked_for() -> None:
    going = most = 0

    async def run(number: int) -> int:
        nonlocal going, most
        going += 1
        most = max(most, going)
        await asyncio.sleep(0.001)
        going -= 1
        return number

    for concurrency in (1, 3):
        most = 0
        results = context(is_async=True).aitems(range(7), run=run, concurrency=concurrency)
        assert asyncio.run(collect(results)) == list(range(7))
        assert most == concurrency


def test_after_an_error_or_a_break_no_run_goes_on() -> None:
    port = FakePort()
    cancelled: list[int] = []

    async def run(number: int) -> int:
        try:
            await asyncio.sleep(0 if number < 2 else 60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        if number == 1:
            raise ValueError("second")
        return number

    async def broken() -> None:
        ctx = context(port, is_async=True)
        with pytest.raises(ValueError, match="second"):
            await collect(ctx.aitems(range(9), run=run, concurrency=4))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async for _ in context(port, is_async=True).aitems([0, 2, 3], run=run, concurrency=3):
            break
        async with asyncio.timeout(60):  # the loop closes what a `break` left when it gets to it
            while asyncio.all_tasks() != {asyncio.current_task()}:
                await asyncio.sleep(0)

    asyncio.run(broken())
    assert port.saves == [("0", b"0", [])]
    assert cancelled == [2, 3, 2, 3]


def test_an_early_break_of_an_async_loop_loses_no_row() -> None:
    async def stage(ctx: Context) -> None:
        async for _ in ctx.aitems(PAGES, key=key, run=read):
            ctx.emit(Row("texts"))
            break
        ctx.emit(Row("summary"))

    for saved in ({}, {"7": b'"x"'}):
        ctx = context(FakePort(saved), is_async=True)
        asyncio.run(stage(ctx))
        assert [row.name for row in ctx.take_emitted()] == ["texts", "summary"]


def test_async_iterables_and_missing_run_work_too() -> None:
    async def pages() -> AsyncIterator[Page]:
        for page in PAGES:
            yield page

    port = FakePort()
    assert asyncio.run(collect(context(port, is_async=True).aitems(pages(), key=key))) == PAGES
    assert port.saves[0] == ("7", b"null", [])


def test_both_loops_give_the_same() -> None:
    plain, awaited = context(), context(is_async=True)
    assert list(plain.items(PAGES, key=key, run=read)) == asyncio.run(
        collect(awaited.aitems(PAGES, key=key, run=read))
    )
    assert list(context().items(PAGES)) == asyncio.run(collect(context(is_async=True).aitems(PAGES)))


def test_each_kind_of_loop_belongs_to_its_kind_of_stage() -> None:
    with pytest.raises(Permanent, match="aitems") as caught:
        context(is_async=True).items(PAGES)
    assert caught.value.code == "context_misused"
    with pytest.raises(Permanent, match=r"ctx\.items"):
        context().aitems(PAGES)
    with pytest.raises(Permanent, match="async run"):
        context().items(PAGES, run=aread)
    with pytest.raises(Permanent, match="not async"):
        list(context().items(PAGES, key=key, run=lambda page: aread(page)))
    with pytest.raises(Permanent, match="at least 1"):
        context(is_async=True).aitems(PAGES, concurrency=0)
