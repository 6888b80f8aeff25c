"""SQLite among processes: one writes at a time; who never gives its turn back is named or ended."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from perdure.errors import StoreBusy
from perdure.store import turn
from perdure.store.descriptors import close_unshared
from perdure.store.lock_holder import lock_holder
from perdure.store.sqlite import mapped
from perdure.store.turn import Turn, await_turn
from tests.store.making import World, document

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
        assert lock_holder(mine.path) == os.getpid()
    assert lock_holder(mine.path) is None
    with other.taken():
        pass


def test_who_holds_the_turn_for_too_long_is_named_and_nobody_who_gave_up_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    with (
        held(path, "client") as process,
        pytest.raises(StoreBusy, match=f"process {process.pid} has held the database"),
    ):
        await_turn(path, patience_s=0.3)
    close_unshared(await_turn(path, patience_s=5))


def test_the_turn_is_given_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    path.touch()
    fd = await_turn(path, patience_s=5)
    other = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    close_unshared(fd)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_worker_that_is_frozen_in_its_turn_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    with held(path, "worker") as process:
        process.send_signal(signal.SIGSTOP)
        close_unshared(await_turn(path, patience_s=90))
        assert process.wait(90) == -signal.SIGKILL


def test_a_worker_that_runs_has_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "FROZEN_S", 0.1)
    monkeypatch.setattr(turn, "STUCK_S", 1.5)
    path = tmp_path / "turn"
    with held(path, "worker") as process:
        with pytest.raises(StoreBusy):
            await_turn(path, patience_s=0.6)
        assert process.poll() is None
        close_unshared(await_turn(path, patience_s=90))
        assert process.wait(90) == -signal.SIGKILL


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


def test_the_holder_of_another_file_with_the_same_inode_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inodes are unique only within a file system."""
    (theirs := tmp_path / "theirs").mkdir()
    (ours := tmp_path / "turn").touch()
    with held(theirs / "turn", "worker") as process:
        assert lock_holder(theirs / "turn") == process.pid
        real, inode = Path.stat, (theirs / "turn").stat().st_ino

        def stat(path: Path, **options: bool) -> os.stat_result:
            found = real(path, **options)
            return os.stat_result((found.st_mode, inode, -1, *found[3:])) if path == ours else found

        monkeypatch.setattr(Path, "stat", stat)
        assert lock_holder(ours) is None


FORKED = """
import os, sys, time
from pathlib import Path
import fcntl
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)  # as foreign code would: nothing drops it in the fork
fcntl.flock(fd, fcntl.LOCK_EX)
if (pid := os.fork()):
    print(pid, flush=True)
    os._exit(0)
time.sleep(60)
"""


def test_a_fork_that_keeps_the_turn_of_a_dead_process_is_named(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    arguments = [sys.executable, "-c", FORKED, str(path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        fork = int(process.stdout.readline())
        try:
            process.wait(60)
            with pytest.raises(StoreBusy, match=f"process {fork} has held the database"):
                await_turn(path, patience_s=0.5)
        finally:
            os.kill(fork, signal.SIGKILL)


LONG = """
import asyncio, sys
from perdure.errors import StoreBusy
from perdure.store import sqlite, turn
from perdure.store.base import Query
from perdure.store.open import open_store

turn.NOTE_S, sqlite.STATEMENT_S = 0.1, float(sys.argv[2])
turn.may_be_ended()
COUNT = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT $1) SELECT max(n) FROM c"

def steps():
    print("begun", flush=True)
    if sys.argv[3] == "one":
        yield Query(COUNT, (10**15,))
    else:
        yield Query(COUNT, rows=[(10**15,)])

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    try:
        await store.driver.write(steps)
    except StoreBusy as error:
        print(error.code, flush=True)

asyncio.run(main())
"""


@contextmanager
def writing(url: str, statement_s: float, how: str) -> Iterator[subprocess.Popen[str]]:
    """A worker whose statement has no end."""
    arguments = [sys.executable, "-c", LONG, url, str(statement_s), how]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_long_statement_that_makes_progress_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "STUCK_S", 2.5)
    with writing(f"sqlite:///{tmp_path}/perdure.db", 60, "many") as process:
        with pytest.raises(StoreBusy, match=f"process {process.pid} has held .* writes a lot"):
            await_turn(tmp_path / "perdure.db.d" / "turn", patience_s=4)
        assert process.poll() is None


def test_a_single_statement_without_end_is_interrupted(tmp_path: Path) -> None:
    """As PostgreSQL does it: the statement fails, not the worker."""
    with writing(f"sqlite:///{tmp_path}/perdure.db", 0.5, "one") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "lock_timeout\n"
        close_unshared(await_turn(tmp_path / "perdure.db.d" / "turn", patience_s=5))


async def test_a_lock_file_that_fails_once_delays_nobody_for_ever(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is tried again, and the turn is free for others meanwhile."""
    real, failures = os.pwrite, [OSError(errno.EIO, "Input/output error")] * 2

    def failing(fd: int, data: bytes, offset: int) -> int:
        if failures:
            raise failures.pop()
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)
    answers = await asyncio.gather(*(sqlite_world.store.add([document()]) for _ in range(3)))
    assert [one[0].answer for one in answers] == ["added"] * 3
    assert failures == []


def test_a_race_for_sqlites_own_locks_is_no_error_of_an_operation() -> None:
    with pytest.raises(StoreBusy), mapped():
        raise apsw.ProtocolError("locking protocol")
