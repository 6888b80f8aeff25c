"""A cell that the kernel killed for the memory of others is nobody's fault."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from perdure.engine import call as calls
from perdure.engine import verdict
from perdure.engine.isolate import CellCrashed, Limits, NurseryLost
from perdure.engine.oom import TOGETHER_S, OomKills
from tests.engine.cells import call

GIB = 1 << 30
KILLED = int(signal.SIGKILL)


@pytest.fixture
def vmstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's counters, for the test to set."""
    file = tmp_path / "vmstat"
    file.write_text("pgfault 7\noom_kill 3\n")
    monkeypatch.setattr(calls, "oom_kills", OomKills(file))
    return file


def test_a_small_cell_that_was_killed_when_memory_ran_out_is_not_blamed(vmstat: Path) -> None:
    vmstat.write_text("pgfault 9\noom_kill 4\n")
    with pytest.raises(NurseryLost, match="ran out of memory"):
        call("killing", str(KILLED).encode())
    with pytest.raises(CellCrashed, match="SIGKILL"):  # the kernel killed nobody since
        call("killing", str(KILLED).encode())


def test_each_cell_that_was_killed_at_once_is_excused(tmp_path: Path) -> None:
    file, now = tmp_path / "vmstat", [100.0]
    file.write_text("oom_kill 3\n")
    kills = OomKills(file, lambda: now[0])
    file.write_text("oom_kill 5\n")
    assert [kills.rose() for _ in range(3)] == [True, True, False]
    file.write_text("oom_kill 7\n")
    assert kills.rose()
    now[0] += TOGETHER_S + 1
    assert not kills.rose()  # it was another process that the kernel killed then


def test_another_signal_is_the_calls_own_doing(vmstat: Path) -> None:
    vmstat.write_text("oom_kill 4\n")
    with pytest.raises(CellCrashed, match="SIGSEGV"):
        call("segfault")


@pytest.mark.parametrize(("peak", "blamed"), [(GIB // 4, False), (GIB // 2, True), (2 * GIB, True)])
def test_a_cell_that_used_half_of_its_memory_is_blamed(peak: int, blamed: bool) -> None:
    found = verdict.crash(Limits(memory_bytes=GIB), verdict.End(KILLED, peak, 0.1), lambda: True)
    assert isinstance(found, CellCrashed) is blamed


def test_where_the_kernel_counts_nothing(tmp_path: Path) -> None:
    assert not OomKills(tmp_path / "none").rose()
