"""A thread for long computations that nobody waits for: one at a time in a process, and behind all other threads."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
NICE = 10


async def in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it in that thread, after whatever others want there."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread(os.getpid()), lambda: function(*args, **kwargs))


@cache
def _thread(_pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "perdure-background", _step_back)


def _step_back() -> None:
    """Linux has a priority for each thread; elsewhere it would be that of the whole process."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
