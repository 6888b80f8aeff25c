"""For flicker.py: a plain loop with as many slots as the workers have, that repeats each call until it succeeds."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable
from contextlib import suppress

import httpx2

from benchmarks.flicker_service import PATIENCE_S
from benchmarks.flickering import BACKOFF, CALLS, URL_VARIABLE, Caller


def plain(url: str, documents: int, slots: int, until: Callable[[], None] | None = None) -> float:
    """Seconds for the calls of all documents from one process; with `until`, it stops when that has ended."""
    os.environ[URL_VARIABLE] = url
    began_s = time.time()
    asyncio.run(_run(documents, slots, until))
    return time.time() - began_s


def fails_after(times: int = 3) -> float:
    """Seconds until a call fails now: the median of some, one after the other."""

    async def run() -> list[float]:
        caller, took = Caller(), []
        for _ in range(times):
            began_s = time.monotonic()
            with suppress(httpx2.HTTPError, TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await caller.ask()
            took.append(time.monotonic() - began_s)
        return took

    return statistics.median(asyncio.run(run()))


async def _run(documents: int, slots: int, until: Callable[[], None] | None) -> None:
    caller, left = Caller(), list(range(documents))

    async def slot() -> None:
        while left:
            left.pop()
            for _ in range(CALLS):
                await _call(caller)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(slot()) for _ in range(slots)]
        if until is not None:
            await asyncio.to_thread(until)
            for task in tasks:
                task.cancel()


async def _call(caller: Caller) -> None:
    tried = 0
    while True:
        wait_s = 0.0
        try:
            async with asyncio.timeout(PATIENCE_S):
                await caller.ask()
            return
        except httpx2.HTTPStatusError as error:
            wait_s = float(error.response.headers.get("retry-after") or 0)
        except (httpx2.HTTPError, TimeoutError):
            pass
        await asyncio.sleep(max(wait_s, BACKOFF.delay_s(tried, random.random)))
        tried += 1
