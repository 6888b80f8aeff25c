"""A supervisor whose children end before they work, and one that is told to stop while it waits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from perdure.cli import main
from perdure.core.model import Job
from perdure.core.stuck import StuckPolicy
from perdure.core.token import new_token
from perdure.engine import supervisor as supervisors
from perdure.engine.child_process import Child
from perdure.engine.keeper import monotonic_ms
from perdure.engine.slate import Slate
from perdure.engine.supervisor import Supervisor
from perdure.store.operations import Claim, NewDocument, NewJob
from perdure.store.records import Attempt


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
        return Brief.begun(self.hello)

    @property
    def hello(self) -> dict[str, object]:
        return {
            "store": f"sqlite:///{self.directory}/a.db", "direct_url": None, "queues": ["default"], "grace_s": 0.0,
            "loop_stall_s": 60.0,
            "retention_age_ms": None, "retention_count": None, "retention_calls_ms": 1000,
            "stuck": asdict(StuckPolicy()),
        }  # fmt: skip


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


class Held(Brief):
    """A child that lives until it is killed; the test writes its slate. `on_kill` is what it still does before that."""

    on_kill: Callable[[], None] = staticmethod(lambda: None)

    @classmethod
    def begun(cls, hello: dict[str, object]) -> Held:
        ours, theirs = socket.socketpair()
        theirs.sendall(json.dumps(hello).encode() + b"\n")
        ours.setblocking(False)
        lifeline = os.open(os.devnull, os.O_RDWR)
        process = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
        child = cls(process, ours, Slate.shared(), lifeline, "", asyncio.get_running_loop().time())
        child.theirs = theirs
        return child

    theirs: socket.socket

    def send_signal(self, number: int) -> None:
        if number == signal.SIGKILL and self.lives:
            self.on_kill()
        super().send_signal(number)


class Watching(Fleeting):
    """It takes its child for one that stands still: the stage of the first document is past its timeout. The child goes
    on at the last moment, ends that stage and begins another one."""

    def __init__(self, directory: Path, goes_on: str) -> None:
        super().__init__(directory)
        self.goes_on, self.told = goes_on, 0
        self.jobs: list[Job] = []
        self.attempts: list[Attempt] = []

    def _spawn(self) -> Child:
        self.spawned += 1
        if self.spawned > 1:
            self.stop()
            return Brief.begun(self.hello)
        self.held = Held.begun(self.hello)
        return self.held

    async def _give_back_late_claims(self) -> None:
        await super()._give_back_late_claims()
        if self._store is None or self.jobs:
            return
        job = NewJob("p", "default", "read")
        await self._store.add([NewDocument(name, "acme", job) for name in ("slow", "next")])
        claimed = await self._store.claim(Claim(self._worker, ("default",), new_token(), 2))
        self.jobs = sorted((one.job for one in claimed), key=lambda job: job.document_id, reverse=True)
        self.slot = self._begins(self.jobs[0], deadline_ms=1)
        self.held.slate.tick()

    async def _watch(self, child: Child) -> int:
        assert self._store is not None
        status = await super()._watch(child)
        for job in self.jobs:
            self.attempts += await self._store.attempts(job.org, job.document_id)
        self.stop()
        return status

    async def _tell(self, child: Child, *told: Any) -> None:
        self.told += 1
        if self.goes_on == "while it is told of":
            self._goes_on()
            asyncio.get_running_loop().call_later(1.0, child.process.kill)
        elif self.goes_on == "before it is killed":
            self.held.on_kill = self._goes_on

    def _begins(self, job: Job, deadline_ms: int) -> int:
        assert job.token is not None
        slot = self.held.slate.take(job.id, job.token, 30_000, monotonic_ms())
        self.held.slate.start(slot, deadline_ms, 30_000)
        return slot

    def _goes_on(self) -> None:
        self.held.slate.pause(self.slot)
        self._begins(self.jobs[1], monotonic_ms() + 600_000)
        self.held.slate.tick()


@pytest.mark.parametrize("goes_on", ["while it is told of", "before it is killed"])
def test_a_child_that_goes_on_at_the_last_moment_proves_nothing(tmp_path: Path, goes_on: str) -> None:
    supervisor = Watching(tmp_path, goes_on)
    asyncio.run(supervisor.run())

    assert supervisor.told == 1
    assert {a.document_id: (a.charged, a.error_code) for a in supervisor.attempts} == {
        "slow": (False, "worker_lost"),
        "next": (False, "worker_lost"),
    }


def test_a_child_that_does_not_go_on_proves_who_held_it(tmp_path: Path) -> None:
    supervisor = Watching(tmp_path, "never")
    asyncio.run(supervisor.run())

    assert {a.document_id: (a.charged, a.error_code) for a in supervisor.attempts} == {
        "slow": (True, "stage_timeout"),
        "next": (False, "worker_lost"),
    }
