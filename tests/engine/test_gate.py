"""Memory of cells: no more at a time than there is, in turns between organisations, and nobody is lost at the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import pytest

from perdure.engine.gate import Gate, memory_bytes


def looped(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test runs in an event loop."""

    def plain() -> None:
        asyncio.run(test())

    return plain


class Visitor:
    """Something that wants to go through the gate, and stays until it is told to go."""

    def __init__(self, gate: Gate, org: str, size: int = 1) -> None:
        self.org, self.inside, self.leave = org, False, asyncio.Event()
        self.task = asyncio.create_task(self._visit(gate, size))

    async def _visit(self, gate: Gate, size: int) -> None:
        async with gate.enter(self.org, size):
            self.inside = True
            await self.leave.wait()
        self.inside = False


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def go(visitor: Visitor) -> None:
    visitor.leave.set()
    await visitor.task
    await settled()


@looped
async def test_no_more_is_let_in_than_there_is_room_for() -> None:
    gate = Gate(3)
    visitors = [Visitor(gate, "a") for _ in range(5)]
    await settled()
    assert [one.inside for one in visitors] == [True] * 3 + [False] * 2
    assert (gate.used.total(), gate.waiting) == (3, 2)

    for one in visitors:
        await go(one)

    assert (gate.used.total(), gate.waiting, dict(gate.used)) == (0, 0, {})


@looped
async def test_one_that_is_larger_than_the_room_runs_alone() -> None:
    gate = Gate(3)
    small, huge, later = Visitor(gate, "a", 1), Visitor(gate, "b", 100), Visitor(gate, "c", 1)
    await settled()
    assert [small.inside, huge.inside, later.inside] == [True, False, False]
    await go(small)
    assert [huge.inside, later.inside] == [True, False]
    await go(huge)
    assert later.inside
    await go(later)


@looped
async def test_who_holds_least_is_next() -> None:
    gate = Gate(2)
    first = [Visitor(gate, "a") for _ in range(2)]
    waiting = [Visitor(gate, "a") for _ in range(3)]
    await settled()
    newcomer = Visitor(gate, "b")
    await settled()
    await go(first[0])

    assert newcomer.inside
    assert not any(one.inside for one in waiting)
    for one in (first[1], newcomer, *waiting):
        await go(one)


@looped
async def test_organisations_that_hold_the_same_take_turns() -> None:
    gate = Gate(1)
    holder = Visitor(gate, "x")
    visitors = [Visitor(gate, org) for org in "aaabbbccc"]
    await settled()
    order = []
    await go(holder)
    for _ in visitors:
        [inside] = [one for one in visitors if one.inside]
        order.append(inside.org)
        await go(inside)

    assert order == list("abcabcabc")


@looped
async def test_who_gives_up_waiting_leaves_no_trace() -> None:
    gate = Gate(1)
    holder, waits, behind = Visitor(gate, "a"), Visitor(gate, "b"), Visitor(gate, "c")
    await settled()
    waits.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits.task
    await go(holder)
    assert behind.inside
    await go(behind)
    assert (gate.used.total(), gate.waiting) == (0, 0)


@looped
async def test_who_gave_up_and_has_not_heard_of_it_is_not_let_in() -> None:
    gate = Gate(1)
    holder, waits, behind = Visitor(gate, "a"), Visitor(gate, "b"), Visitor(gate, "c")
    await settled()
    waits.task.cancel()  # at the same moment
    await go(holder)
    assert behind.inside
    await go(behind)
    assert (gate.used.total(), gate.waiting) == (0, 0)


@looped
async def test_who_is_cancelled_at_the_moment_of_being_let_in_gives_the_room_back() -> None:
    gate = Gate(1)
    async with gate.enter("a", 1):
        waits, behind = Visitor(gate, "b"), Visitor(gate, "c")
        await settled()
    waits.task.cancel()  # it was let in just now, and has not heard of it
    with pytest.raises(asyncio.CancelledError):
        await waits.task
    await settled()
    assert (waits.inside, behind.inside) == (False, True)
    await go(behind)
    assert gate.used.total() == 0


@looped
async def test_without_a_bound_nobody_waits() -> None:
    gate = Gate(inf)
    visitors = [Visitor(gate, "a", 1 << 60) for _ in range(9)]
    await settled()
    assert all(one.inside for one in visitors)
    for one in visitors:
        await go(one)


def test_the_memory_of_this_machine_is_known() -> None:
    assert 1 << 26 < memory_bytes() < inf
