"""Long work of one document that nobody waits for gives way to the work of all others: it rests in between.

Threads of Python take turns at the interpreter, and SQLite has one writer at a time, so long work slows all others down
however the system ranks it: a thread of low priority would keep the others waiting even longer. So long work is done in
pieces, one at a time in a process, and after each piece there is time for others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from typing import ParamSpec, Protocol, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")
#: Seconds of rest for each second of work: while there are others, and while nobody knows of any.
REST, REST_ALONE = 4.0, 0.5
#: It rests no longer than this: the time in which it waited for others counts as work, too.
REST_MAX_S = 1.0
#: Characters of a text that is dealt with in about a millisecond.
SHORT = 8_000


class Worker(Protocol):
    """One that takes documents, as far as long work must know it."""

    @property
    def shared(self) -> bool:
        """Whether it had documents of several organisations lately."""


class Background:
    """The turns of all long work on one store in this process."""

    def __init__(self) -> None:
        self._alone = asyncio.Lock()
        self.workers: WeakSet[Worker] = WeakSet()

    @property
    def others(self) -> bool:
        """Whether documents of several organisations may be in work."""
        return not self.workers or any(worker.shared for worker in self.workers)

    @asynccontextmanager
    async def piece(self) -> AsyncIterator[None]:
        """A piece of long work: after the pieces of others that wait for their turn, and with a rest after it."""
        async with self._alone:
            now_s = asyncio.get_running_loop().time
            began_s = now_s()
            yield
            rest_s = (REST if self.others else REST_ALONE) * (now_s() - began_s)
            await asyncio.sleep(min(REST_MAX_S, rest_s))


async def beside(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it here if the text that it works on is short, else in a thread: to wait for one takes as long as a short
    text, and longer where many threads run."""
    if size <= SHORT:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


async def in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it in a thread that does one such thing at a time."""
    return await asyncio.get_running_loop().run_in_executor(
        _thread(os.getpid()), lambda: function(*args, **kwargs)
    )


@cache
def _thread(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "perdure-background")
