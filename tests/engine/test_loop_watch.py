"""The watch over an event loop, with clocks that are turned by hand."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure.engine import loop_watch
from perdure.engine.loop_watch import SLICE_MS, LoopWatch, alarm, own_stack, stack_of, ticking
from perdure.engine.slate import Slate

LOOK_MS = 200


class Loop:
    """A loop that ticks when it is told to, and its observer's clock."""

    def __init__(self) -> None:
        self.ticks, self.now_ms = 1, 1_000_000
        self.watch = LoopWatch(lambda: self.ticks)
        self.watch.look(self.now_ms)

    def passes(self, ms: int, every_ms: int = LOOK_MS) -> int:
        """Time passes in which the observer looks this often."""
        for _ in range(ms // every_ms):
            self.now_ms += every_ms
            self.watch.look(self.now_ms)
        return self.watch.silent_ms


def test_silence_adds_up_and_ends_with_a_tick() -> None:
    loop = Loop()
    assert loop.passes(40_000) == 40_000
    loop.ticks += 1
    assert loop.passes(LOOK_MS) == 0
    assert loop.passes(3_000) == 3_000


def test_a_loop_that_has_not_begun_is_not_watched() -> None:
    loop = Loop()
    loop.ticks = 0
    assert loop.passes(3_600_000) == 0
    loop.ticks = 1
    assert loop.passes(LOOK_MS) == 0
    assert loop.passes(1_000) == 1_000


def test_time_in_which_the_observer_stood_still_itself_is_forgiven() -> None:
    loop = Loop()
    assert loop.passes(3_600_000, every_ms=3_600_000) == SLICE_MS
    loop.now_ms -= 5_000  # no clock of ours goes back, but a wrong one must not kill
    assert loop.watch.look(loop.now_ms) == SLICE_MS
    assert loop.passes(10_000) == SLICE_MS + 10_000


def test_it_ticks_while_the_loop_runs_and_not_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "TICK_S", 0.001)
    slate = Slate.private()

    async def run() -> int:
        async with ticking(slate.tick):
            while slate.ticks() < 5:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        ended = slate.ticks()
        await asyncio.sleep(0.02)
        return ended

    assert asyncio.run(run()) == slate.ticks() >= 5


HOLDING = """
import re, sys, threading
from perdure.engine.loop_watch import tell_stack_on
from perdure.engine.slate import Slate
slate = Slate.attached(int(sys.argv[1]))
tell_stack_on(slate)
def hopeless():
    slate.tick()
    re.match(r"(a+)+$", "a" * 64 + "b")
threading.Thread(target=hopeless).start()
"""


def test_the_stack_of_a_process_that_holds_its_interpreter_can_be_had() -> None:
    slate = Slate.shared()
    child = subprocess.Popen([sys.executable, "-c", HOLDING, str(slate.fd)], pass_fds=(slate.fd,))
    try:
        until_s = time.monotonic() + 60
        while not slate.ticks() and time.monotonic() < until_s:
            time.sleep(0.01)
        time.sleep(0.1)
        stack, again = (asyncio.run(stack_of(child, slate)) for _ in range(2))
    finally:
        child.kill()
        child.wait()
        os.close(slate.fd)
    assert "in hopeless" in stack
    assert again.count("in hopeless") == 1


def test_it_can_be_imported_where_there_are_no_real_time_signals() -> None:
    text = "import signal; del signal.SIGRTMAX; import perdure.engine.loop_watch"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_a_process_that_does_not_tick_yet_is_not_asked() -> None:
    slate = Slate.shared()
    child = subprocess.Popen(["/bin/sleep", "60"])
    try:
        assert asyncio.run(stack_of(child, slate)) == ""
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
        os.close(slate.fd)


def test_our_own_stack_names_where_we_are() -> None:
    assert "test_our_own_stack_names_where_we_are" in own_stack()


def test_a_server_whose_loop_is_held_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "ALARM_TICK_S", 0.01)
    told = []
    monkeypatch.setattr(loop_watch._log, "error", lambda *said: told.append(said[0] % said[1:]))

    def hold() -> None:
        time.sleep(0.3)

    async def run() -> None:
        watching = asyncio.create_task(alarm(0.1))
        await asyncio.sleep(0.03)
        hold()
        while not told:
            await asyncio.sleep(0.01)
        watching.cancel()

    with (tmp_path / "stderr").open("w+") as file:
        monkeypatch.setattr(sys, "__stderr__", file)
        asyncio.run(run())
        file.seek(0)
        assert "in hold" in file.read()
    assert "stood still" in told[0]
