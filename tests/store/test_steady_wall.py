"""Wall time that never goes back, whatever the machine's clock does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure.store.sqlite_clock import APART_MS, Mark, SteadyWall
from tests.faults.wall import WallClock

HOUR_MS = 3_600_000
#: A process that says the time of the store for each line that it is given, and then what its wall clock says.
ASKED = """
import asyncio, sys, time
from perdure.store.open import open_store

async def answer():
    store = open_store(sys.argv[1])
    await store.open()
    for _ in sys.stdin:
        print(await store.now_ms(), time.time_ns() // 1_000_000, flush=True)
    await store.close()

asyncio.run(answer())
"""


class Machine:
    """Two clocks, one of which can be set."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1_000_000, 0
        self.steady = self.process()

    def process(self, mark: Path | None = None, boot: str = "boot") -> SteadyWall:
        """The time of a process that starts now; processes with the same mark are of one store."""
        shared = None if mark is None else Mark(mark, boot)
        return SteadyWall(lambda: self.wall, lambda: self.monotonic * 1_000_000, shared)

    def pass_ms(self, count: int) -> int:
        self.wall += count
        self.monotonic += count
        return self.steady.now_ms()


def test_it_is_the_wall_clock_and_follows_it_ahead() -> None:
    machine = Machine()
    assert machine.pass_ms(10) == machine.wall
    machine.wall += 3_600_000
    assert machine.pass_ms(10) == machine.wall


def test_a_clock_set_back_delays_nothing_by_more_than_a_tenth() -> None:
    machine = Machine()
    before = machine.pass_ms(10)
    machine.wall -= 600_000
    assert machine.pass_ms(500) == before + 450
    assert machine.pass_ms(500) == before + 900


def test_it_meets_the_wall_clock_again_and_never_goes_back() -> None:
    machine = Machine()
    last = machine.pass_ms(10)
    machine.wall -= 1_000
    for _ in range(120):
        now = machine.pass_ms(100)
        assert now > last
        last = now
    assert last == machine.wall


def test_processes_agree_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """One that ran before, one that starts afterwards, and one that nobody asked for the time meanwhile."""
    machine, mark = Machine(), tmp_path / "clock"
    early, idle = machine.process(mark), machine.process(mark)
    first = early.now_ms()
    assert idle.now_ms() == first
    machine.wall -= HOUR_MS
    late = machine.process(mark)
    for _ in range(1_000):
        machine.pass_ms(700)
        assert abs(early.now_ms() - late.now_ms()) <= APART_MS
    assert late.now_ms() > first
    assert abs(idle.now_ms() - late.now_ms()) <= APART_MS


def test_a_process_whose_clock_is_behind_goes_by_the_time_of_the_others(tmp_path: Path) -> None:
    ahead, behind, mark = Machine(), Machine(), tmp_path / "clock"
    ahead.wall += HOUR_MS
    one, other = ahead.process(mark), behind.process(mark)
    for _ in range(100):
        ahead.pass_ms(300)
        behind.pass_ms(300)
        assert abs(one.now_ms() - other.now_ms()) <= 1_000


def test_an_hour_ahead_is_a_quarter_of_an_hour_after_two_hours_and_no_delay_doubles(tmp_path: Path) -> None:
    machine = Machine()
    process = machine.process(tmp_path / "clock")
    last = process.now_ms()
    machine.wall -= HOUR_MS
    for _ in range(7_200):
        machine.pass_ms(1_000)
        now = process.now_ms()
        assert 500 <= now - last <= 1_000
        last = now
    assert 0 <= last - machine.wall <= SteadyWall.NEAR_MS


def test_the_time_of_the_store_goes_on_after_a_reboot(tmp_path: Path) -> None:
    """The monotonic clock begins anew, or is ahead: it says nothing of the time that has passed."""
    for monotonic in (0, 50 * HOUR_MS):
        machine, mark = Machine(), tmp_path / f"clock-{monotonic}"
        machine.monotonic = HOUR_MS
        last = machine.process(mark).now_ms()
        machine.wall -= 60_000
        machine.monotonic = monotonic
        process = machine.process(mark, "another boot")
        assert process.now_ms() == last
        machine.pass_ms(1_000)
        assert process.now_ms() == last + 900


def test_a_mark_that_was_torn_is_written_again(tmp_path: Path) -> None:
    machine, mark = Machine(), tmp_path / "clock"
    process = machine.process(mark)
    first = process.now_ms()
    whole = mark.read_bytes()
    for torn in (b"", whole[:10], bytes(len(whole)), b"\xff" + whole[1:]):
        mark.write_bytes(torn)
        assert first <= process.now_ms() <= machine.wall
        assert machine.process(mark).now_ms() == process.now_ms()
        assert mark.read_bytes() != torn


class Asked:
    """A process of its own that has the store open."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def times(self) -> tuple[int, int]:
        """The store's time and the wall clock's."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        store_ms, wall_ms = self._process.stdout.readline().split()
        return int(store_ms), int(wall_ms)


@contextmanager
def asked(url: str, clock: WallClock) -> Iterator[Asked]:
    pipe = subprocess.PIPE
    environment = {**os.environ, **clock.environment}
    with subprocess.Popen(
        [sys.executable, "-c", ASKED, url], stdin=pipe, stdout=pipe, text=True, env=environment
    ) as process:
        yield Asked(process)


def test_a_process_that_starts_after_the_clock_was_set_back_has_the_time_of_the_store(tmp_path: Path) -> None:
    clock, url = WallClock(tmp_path / "off", HOUR_MS // 1_000), f"sqlite:///{tmp_path / 'perdure.db'}"
    with asked(url, clock) as early:
        store_ms, wall_ms = early.times()
        assert store_ms <= wall_ms
        clock.set(0)
        with asked(url, clock) as late:
            before, _ = early.times()
            between, wall_ms = late.times()
            after, _ = early.times()
    assert before - APART_MS <= between <= after + APART_MS
    assert between > wall_ms + HOUR_MS // 2
