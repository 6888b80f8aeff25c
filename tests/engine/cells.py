"""What the tests of cells share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from perdure.engine.isolate import Limits, Nursery
from tests.engine import cellwork

T = TypeVar("T")
WORK = cellwork.__name__
MIB = 1 << 20


async def unasked(message: bytes) -> bytes:
    raise AssertionError(f"asked {message!r}")


@asynccontextmanager
async def nursery(*preload: str) -> AsyncIterator[Nursery]:
    made = Nursery(preload or [WORK])
    try:
        yield made
    finally:
        await made.close()


def run(work: Coroutine[Any, Any, T], loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> T:
    """Run it in a loop of its own, for a minute at most."""
    results: list[T] = []

    async def main() -> None:  # returns nothing: the runner takes the repr of what it is about to return
        results.append(await asyncio.wait_for(work, 60))

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    return results[0]


def call(
    function: str,
    payload: bytes = b"",
    limits: Limits = Limits(),  # noqa: B008 - frozen
    on_message: Callable[[bytes], Awaitable[bytes]] = unasked,
) -> bytes:
    """One call of a function of cellwork, in a nursery of its own."""

    async def work() -> bytes:
        async with nursery() as cells:
            return await cells.run(f"{WORK}:{function}", payload, on_message, limits)

    return run(work())


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what another process or task does."""
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it exits while it is read
        return False


def all_gone(pids: Iterable[int], within_s: float = 90) -> bool:
    """Whether all these processes are dead or die in time."""
    late = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > late:
            return False
        time.sleep(0.01)
    return True


def host_pid(cells: Nursery) -> int:
    return cells._hosts[False, False].result().process.pid
