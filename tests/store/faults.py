"""Faults that the flusher's writes meet, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.errors import SettingInvalid, StoreBusy, StoreUnavailable
from perdure.store.base import Steps
from tests.store.making import Fault, Faulty, World, Write

Given = Callable[[], Steps[Any]]


async def reply_lost(write: Write, steps: Given) -> Any:
    """The transaction commits and the connection breaks before we hear of it."""
    await write(steps)
    raise StoreUnavailable("the connection was lost after COMMIT")


async def never_sent(_: Write, __: Given) -> Any:
    """The connection breaks before anything is written."""
    raise StoreUnavailable("the connection was lost before BEGIN")


async def busy(_: Write, __: Given) -> Any:
    raise StoreBusy("deadlock detected")


async def refused(_: Write, __: Given) -> Any:
    """A server that is being replaced turns the new connection away."""
    raise SettingInvalid("no pg_hba.conf entry for this host (28000)")


async def lock_timeout(_: Write, __: Given) -> Any:
    raise StoreBusy("waited for too long", code="lock_timeout")


async def well(write: Write, steps: Given) -> Any:
    return await write(steps)


def break_writes(world: World, faults: list[Fault]) -> Faulty:
    """From here on the flusher's writes meet these faults, one after the other."""
    driver = Faulty(world.store.driver, faults)
    world.store.flusher._driver = driver
    return driver
