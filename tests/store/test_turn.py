"""SQLite among processes: one writes at a time; who never gives the turn back is named, and nobody hangs for it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from perdure.errors import StoreBusy
from perdure.store.sqlite import await_turn


def test_who_holds_the_turn_for_too_long_is_named(tmp_path: Path) -> None:
    turn = tmp_path / "turn"
    turn.write_text("4711")
    holder = os.open(turn, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(StoreBusy, match="process 4711 has held the database"):
        await_turn(turn, patience_s=0.2)
    os.close(holder)
    waited = await_turn(turn, patience_s=5)  # whoever gave up has not kept it
    os.close(waited)


def test_the_turn_is_given_when_it_is_free(tmp_path: Path) -> None:
    turn = tmp_path / "turn"
    turn.touch()
    fd = await_turn(turn, patience_s=5)
    other = os.open(turn, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
