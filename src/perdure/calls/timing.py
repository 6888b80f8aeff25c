"""Clock, sleep and chance of all calls; one object, so that tests may exchange it in one place."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Timing:
    """What a policy knows of time and chance; exchange a part to play with it."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rand: Callable[[], float] = random.random


#: Of every policy that was not given one of its own.
TIMING = Timing()


@contextmanager
def no_wait() -> Iterator[list[float]]:
    """Policies do not wait while this lasts; the waits they would have made are collected."""
    waits: list[float] = []
    sleep, asleep = TIMING.sleep, TIMING.asleep

    async def at_once(seconds: float) -> None:
        waits.append(seconds)

    TIMING.sleep, TIMING.asleep = waits.append, at_once
    try:
        yield waits
    finally:
        TIMING.sleep, TIMING.asleep = sleep, asleep
