"""Attempts that hang are cut off at their deadline, whatever else runs or is cancelled at that time."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from perdure.calls import cutoff
from perdure.calls.cutoff import cut_off


async def lasting(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


def test_what_ends_in_time_is_answered() -> None:
    assert asyncio.run(cut_off(lasting(0.0), 5.0)) == 0.0


@pytest.mark.parametrize("after_s", [0.02, 0.0, -1.0])
def test_what_hangs_is_cut_off(after_s: float) -> None:
    async def run() -> int:
        with pytest.raises(TimeoutError):
            await cut_off(lasting(60), after_s)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    began_s = time.monotonic()
    assert asyncio.run(run()) == 0
    assert time.monotonic() - began_s < 10


def test_each_of_many_is_cut_off_at_its_own_deadline() -> None:
    async def ended(after_s: float) -> float:
        began_s = time.monotonic()
        with contextlib.suppress(TimeoutError):
            await cut_off(lasting(60), after_s)
        return time.monotonic() - began_s

    async def run() -> list[float]:
        return await asyncio.gather(*(ended(after_s) for after_s in (0.3, 0.1, 0.2, 0.1)))

    took = asyncio.run(run())
    assert all(took_s >= after_s - 0.01 for took_s, after_s in zip(took, (0.3, 0.1, 0.2, 0.1), strict=True))
    assert max(took) < 10


def test_who_is_cancelled_by_others_stays_cancelled() -> None:
    async def run() -> tuple[bool, bool]:
        task = asyncio.ensure_future(cut_off(lasting(60), 30.0))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        both = asyncio.ensure_future(cut_off(lasting(60), 0.02))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, both.cancel)
        asyncio.get_running_loop().call_soon(time.sleep, 0.05)  # then both are due at once
        await asyncio.wait([both])
        return task.cancelled(), both.cancelled()

    assert asyncio.run(run()) == (True, True)


def test_what_ends_although_it_was_cut_off_leaves_its_task_as_it_was() -> None:
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "done"

    async def run() -> tuple[str, int]:
        answer = await cut_off(stubborn(), 0.01)
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0.02)
        return answer, task.cancelling()

    assert asyncio.run(run()) == ("done", 0)


def test_the_nearer_one_of_two_deadlines_counts() -> None:
    async def run() -> list[str]:
        seen = []
        try:
            async with asyncio.timeout(30):
                await cut_off(cut_off(lasting(60), 0.02), 20.0)
        except TimeoutError:
            seen.append("inner")
        try:
            await cut_off(cut_off(lasting(60), 20.0), 0.02)
        except TimeoutError:
            seen.append("outer")
        return seen

    assert asyncio.run(run()) == ["inner", "outer"]


def test_attempts_that_end_in_time_share_one_timer() -> None:
    async def run() -> tuple[int, int]:
        timers, running = set(), 0
        for _ in range(200):
            await cut_off(lasting(0), 30.0)
            watch = cutoff._watches.watch
            assert watch is not None
            timers.add(watch.timer)
            running += len(watch.attempts)
        return len(timers), running

    assert asyncio.run(run()) == (1, 0)


def test_the_timer_goes_on_to_those_that_still_run() -> None:
    async def run() -> list[str]:
        await cut_off(lasting(0), 0.02)  # its timer stays
        later = asyncio.ensure_future(cut_off(lasting(60), 0.5))
        await asyncio.sleep(0.05)  # and has fired by now
        assert not later.done()
        await asyncio.wait([later], timeout=10)
        return [type(later.exception()).__name__]

    assert asyncio.run(run()) == ["TimeoutError"]
    assert asyncio.run(run()) == ["TimeoutError"]  # a new loop, the same thread
