"""Whether an event loop still runs, seen from outside of it.

A task of the loop ticks four times a second. Code that blocks the loop, or holds the interpreter, stops the ticks, and
so does a signal that stops the process. The supervisor (for its child) and the keeper (for an embedded app) look.

    async with ticking(slate.tick): ...                  # in the watched process
    watch = LoopWatch(slate.ticks); watch.look(now_ms)   # outside: for how long it has been silent
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from perdure.engine.slate import SIZE, Slate

TICK_S = 0.25
#: Of the time between two looks no more than this counts: if the observer itself stood still (a machine that was
#: suspended, a stopped process group), the loop is not to blame.
SLICE_MS = 1_000
SILENT_MS = 10_000  # of silence, after which operators are told; shorter pauses are usual on a busy machine
#: A real-time signal that neither Python nor a library uses; macOS has none.
STACK_SIGNAL = signal.SIGRTMAX - 7 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1
STACK_BYTES_MAX = 32_000
STACK_S = 1.0  # for a process to write where it stands; a stopped one cannot
LOOK_S = 0.02
ALARM_TICK_S = 1.0

_log = logging.getLogger("perdure.loop")


class LoopWatch:
    """Adds up for how long a counter of ticks has not changed. A counter at 0 has not begun and is not watched."""

    def __init__(self, ticks: Callable[[], int]) -> None:
        self._ticks = ticks
        self._seen = 0
        self._looked_ms = 0
        self.silent_ms = 0

    def look(self, now_ms: int) -> int:
        """For how long it has been silent, as far as we were awake ourselves; call it more often than SLICE_MS."""
        gap_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        if (seen := self._ticks()) == 0 or seen != self._seen:
            self._seen, self.silent_ms = seen, 0
        else:
            self.silent_ms += min(max(gap_ms, 0), SLICE_MS)
        return self.silent_ms


@asynccontextmanager
async def ticking(tick: Callable[[], None]) -> AsyncIterator[None]:
    """Tick from the event loop, and from nowhere else, until this is left."""

    async def forever() -> None:
        while True:
            tick()
            await asyncio.sleep(TICK_S)

    task = asyncio.create_task(forever(), name="perdure-tick")
    try:
        yield
    finally:
        task.cancel()


# --- where it stands -----------------------------------------------------------------------------


def tell_stack_on(slate: Slate) -> None:
    """In the child: at STACK_SIGNAL, write the stacks of all threads behind the slate; that needs no interpreter."""
    os.lseek(slate.fd, SIZE, os.SEEK_SET)
    faulthandler.register(STACK_SIGNAL, slate.fd, all_threads=True)


async def stack_of(child: subprocess.Popen[bytes], slate: Slate) -> str:
    """In the supervisor: where the threads of its child stand; empty if it cannot tell."""
    if not slate.ticks():
        return ""  # it does not know the signal yet, and would die of it
    begin = size = os.fstat(slate.fd).st_size  # behind what it told when it stood still before
    with suppress(ProcessLookupError):
        os.kill(child.pid, STACK_SIGNAL)
    until_s = time.monotonic() + STACK_S
    while time.monotonic() < until_s:
        await asyncio.sleep(LOOK_S)
        before, size = size, os.fstat(slate.fd).st_size
        if begin < size == before:
            break
    return os.pread(slate.fd, STACK_BYTES_MAX, begin).decode(errors="replace").strip()


def own_stack() -> str:
    """Where the threads of this process stand."""
    frames = sys._current_frames().items()
    told = (f"Thread {number}:\n{''.join(traceback.format_stack(frame))}" for number, frame in frames)
    return "\n".join(told)[:STACK_BYTES_MAX]


async def alarm(after_s: float) -> None:
    """Write the stacks of all threads to standard error whenever the loop that runs this stands still for that long.

    For a process of ours that is not ended for it. A thread of C code writes them, so a held interpreter is seen, too.
    """
    try:
        while True:
            faulthandler.dump_traceback_later(after_s, file=sys.__stderr__ or sys.stderr)
            armed_s = time.monotonic()
            await asyncio.sleep(ALARM_TICK_S)
            if (stood_s := time.monotonic() - armed_s) > after_s:
                _log.error(
                    "the event loop of this server stood still for %.0f s; its stacks were written above",
                    stood_s,
                )
    finally:
        faulthandler.cancel_dump_traceback_later()
