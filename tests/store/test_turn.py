"""SQLite among processes: one writes at a time; who never gives its turn back is named or ended."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.errors import StoreBusy
from perdure.store import turn
from perdure.store.turn import Turn, await_turn

HOLDER = """
import sys, time
from pathlib import Path
from perdure.store.turn import Turn, may_be_ended
if sys.argv[2] == "worker":
    may_be_ended()
with Turn(Path(sys.argv[1])).taken():
    print("taken", flush=True)
    time.sleep(60)
"""


@contextmanager
def held(path: Path, role: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has taken the turn and does not give it back."""
    arguments = [sys.executable, "-c", HOLDER, str(path), role]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_turn_is_given_back(tmp_path: Path) -> None:
    mine, other = Turn(tmp_path / "turn"), Turn(tmp_path / "turn")
    with mine.taken():
        assert turn.holder(mine.path) == os.getpid()
    assert turn.holder(mine.path) is None
    with other.taken():
        pass


def test_who_holds_the_turn_for_too_long_is_named_and_nobody_who_gave_up_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    with (
        held(path, "client") as process,
        pytest.raises(StoreBusy, match=f"process {process.pid} has held the database"),
    ):
        await_turn(path, patience_s=0.3)
    os.close(await_turn(path, patience_s=5))


def test_the_turn_is_given_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    path.touch()
    fd = await_turn(path, patience_s=5)
    other = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_worker_that_is_frozen_in_its_turn_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    with held(path, "worker") as process:
        process.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        os.close(await_turn(path, patience_s=10))
        assert process.wait(5) == -signal.SIGKILL
        assert time.monotonic() - began_s < turn.FROZEN_S + 2


def test_a_worker_that_runs_has_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "FROZEN_S", 0.1)
    monkeypatch.setattr(turn, "STUCK_S", 1.5)
    path = tmp_path / "turn"
    with held(path, "worker") as process:
        with pytest.raises(StoreBusy):
            await_turn(path, patience_s=0.6)
        assert process.poll() is None
        os.close(await_turn(path, patience_s=10))
        assert process.wait(5) == -signal.SIGKILL


def test_a_program_of_somebody_else_is_never_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "FROZEN_S", 0.1)
    monkeypatch.setattr(turn, "STUCK_S", 0.2)
    path = tmp_path / "turn"
    with held(path, "client") as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreBusy):
            await_turn(path, patience_s=1)
        process.send_signal(signal.SIGCONT)
        assert process.poll() is None
