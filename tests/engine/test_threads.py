"""Threads for plain stages: reused, abandoned when cancelled, gone when closed."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from perdure.engine.threads import Threads

word: ContextVar[str] = ContextVar("word", default="")


def alive() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("perdure-stage-")}


async def until(condition: Any) -> None:
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0.005)


def test_values_errors_and_context_cross_over() -> None:
    async def scene() -> None:
        threads = Threads()
        word.set("outside")
        assert await threads.run(lambda: (word.get(), threading.current_thread().daemon)) == ("outside", True)
        for error in (ValueError("x"), StopIteration("y")):
            with pytest.raises((ValueError, RuntimeError), match=str(error)):
                await threads.run(partial(_raise, error))
        threads.close()

    asyncio.run(scene())


def _raise(error: BaseException) -> None:
    raise error


def test_one_thread_serves_one_after_the_other() -> None:
    async def scene() -> None:
        threads = Threads()
        for n in range(20):
            assert await threads.run(partial(int, n)) == n
            await until(lambda: threads._idle == 1)
        assert threads.started == 1
        threads.close()

    asyncio.run(scene())


def test_as_many_threads_as_run_at_once() -> None:
    async def scene() -> None:
        threads, together = Threads(), threading.Barrier(8, timeout=90)
        await asyncio.gather(*(threads.run(together.wait) for _ in range(8)))
        assert threads.started == 8
        threads.close()

    asyncio.run(scene())


def test_a_cancelled_run_is_abandoned_and_its_late_answer_dropped() -> None:
    async def scene() -> None:
        threads, go, over = Threads(), threading.Event(), threading.Event()

        def hang() -> None:
            go.wait(90)
            over.set()

        future = threads.run(hang)
        future.cancel()
        assert await threads.run(lambda: "others go on") == "others go on"
        go.set()
        await until(over.is_set)
        assert future.cancelled()
        threads.close()

    asyncio.run(scene())


def test_closing_lets_idle_threads_go_and_busy_ones_when_they_are_through() -> None:
    async def scene() -> None:
        before = alive()
        threads, go = Threads(), threading.Event()
        busy = threads.run(lambda: go.wait(90))
        await threads.run(lambda: None)
        await until(lambda: threads._idle == 1)
        assert len(alive() - before) == 2
        threads.close()
        await until(lambda: len(alive() - before) == 1)
        go.set()
        assert await busy
        await until(lambda: not alive() - before)

    asyncio.run(scene())


def test_a_loop_that_is_gone_does_not_trouble_the_thread() -> None:
    go, over = threading.Event(), threading.Event()

    def hang() -> None:
        go.wait(90)

    async def scene() -> Threads:
        threads = Threads()
        threads.run(hang)
        threads.run(over.set)
        return threads

    threads = asyncio.run(scene())
    go.set()
    assert over.wait(90)
    threads.close()
