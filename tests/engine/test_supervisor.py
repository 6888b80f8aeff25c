"""A supervisor whose children end before they work, and one that is told to stop while it waits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from perdure.cli import main
from perdure.core.stuck import StuckPolicy
from perdure.engine import supervisor as supervisors
from perdure.engine.child_process import Child
from perdure.engine.slate import Slate
from perdure.engine.supervisor import Supervisor


class Brief(Child):
    """A child that says hello and ends."""

    @classmethod
    def begun(cls, hello: dict[str, object]) -> Brief:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(json.dumps(hello).encode() + b"\n")
        ours.setblocking(False)
        lifeline = os.open(os.devnull, os.O_RDWR)
        process = subprocess.Popen(["/bin/true"])
        return cls(process, ours, Slate.shared(), lifeline, "", asyncio.get_running_loop().time())

    def _reap(self) -> None:
        """The children of the tests are not ours."""


class Fleeting(Supervisor):
    """One whose children end at once; it stops when it has started three."""

    def __init__(self, directory: Path) -> None:
        super().__init__("app", {})
        self.spawned, self.directory = 0, directory

    def _spawn(self) -> Child:
        self.spawned += 1
        if self.spawned == 3:
            self.stop()
        return Brief.begun({
            "store": f"sqlite:///{self.directory}/a.db", "direct_url": None, "queues": ["default"], "grace_s": 0.0,
            "loop_stall_s": 60.0,
            "retention_age_ms": None, "retention_count": None, "retention_calls_ms": 1000,
            "stuck": asdict(StuckPolicy()),
        })  # fmt: skip


def test_a_child_that_ends_before_it_has_its_number_is_started_again(tmp_path: Path) -> None:
    supervisor = Fleeting(tmp_path)
    assert asyncio.run(supervisor.run()) == 0
    assert supervisor.spawned == 3


def test_it_stops_at_once_while_it_waits_to_start_another_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisors, "RESTART_S", (0.0, 0.0, 120.0))
    supervisor = Fleeting(tmp_path)

    async def run() -> int:
        running = asyncio.create_task(supervisor.run())
        while supervisor.spawned < 2:
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(1.0, supervisor.stop)
        return await asyncio.wait_for(running, 60)

    assert asyncio.run(run()) == 0
    assert supervisor.spawned == 2


def test_a_signal_that_was_blocked_while_it_started_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, masks = Fleeting(tmp_path), []
    monkeypatch.setattr(os, "execv", lambda *_: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        main.worker("app:app")
        # to this thread: others, left by earlier tests, do not block it
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert asyncio.run(supervisor.run()) == 0
    finally:
        previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGTERM, previous)
    assert {signal.SIGTERM, signal.SIGINT} <= masks[0]
    assert supervisor.spawned == 1
