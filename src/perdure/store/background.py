"""A thread for long computations that nobody waits for: one at a time in a process, and at rest half of the time.

Threads of Python take turns at the interpreter, so a long computation slows all others down, however they are ranked
by the system: a thread of low priority would keep the others waiting even longer. So it stops in between.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
#: Seconds of rest for each second of work.
REST = 1.0


async def in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it in that thread, after whatever others want there, and rest as long as it took."""

    def run() -> tuple[T, float]:
        began_s = time.thread_time()
        return function(*args, **kwargs), time.thread_time() - began_s

    answer, worked_s = await asyncio.get_running_loop().run_in_executor(_thread(os.getpid()), run)
    await asyncio.sleep(REST * worked_s)
    return answer


@cache
def _thread(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "perdure-background")
