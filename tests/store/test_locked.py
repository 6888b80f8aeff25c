"""A store that another process has locked: after two seconds people are told who has it."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

import apsw
import pytest

from perdure.errors import StoreBusy
from perdure.store import lock_holder, sqlite, turn
from perdure.store.sqlite import Busy
from perdure.store.turn import await_turn


def test_waiting_for_a_turn_is_said_once_with_who_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turn, "SAY_S", 0.3)
    path = tmp_path / "turn"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with caplog.at_level(logging.WARNING, "perdure.store"), pytest.raises(StoreBusy):
            await_turn(path, patience_s=1.0)
    finally:
        os.close(fd)
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the store is locked by process {os.getpid()}; waiting for it"]


def test_waiting_for_sqlites_own_lock_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "SAY_S", 0.1)
    monkeypatch.setattr(sqlite, "BUSY_MS", 500)
    path = tmp_path / "a.db"
    holder = apsw.Connection(str(path))
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    waiting = apsw.Connection(str(path))
    waiting.set_busy_handler(Busy(path))
    with caplog.at_level(logging.WARNING, "perdure.store"), pytest.raises(apsw.BusyError):
        waiting.execute("BEGIN IMMEDIATE")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the store is locked by another program; waiting for it"]


def test_the_wait_is_two_seconds() -> None:
    assert lock_holder.SAY_S == 2.0
