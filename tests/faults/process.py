"""One `perdure worker` under test: a supervisor, and through it the child that runs stages, nursery and cells."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet

PATIENCE_S = 90
LOG_TAIL = 3_000


def alive(process: psutil.Process) -> bool:
    """Whether this very process still runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stopped(pid: int) -> bool:
    """Whether it is frozen by now, or gone."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def send(pids: Iterable[int], number: int) -> None:
    """A signal for those of these processes that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class WorkerProcess:
    """Made by `Fleet.start`."""

    def __init__(self, fleet: Fleet, number: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.fleet, self.number, self.process, self.log = fleet, number, process, log
        self.pid = process.pid

    @property
    def processes(self) -> list[psutil.Process]:
        """All that live: the supervisor and whatever came from it."""
        return [p for p, number in self.fleet.processes() if number == self.number]

    @property
    def child(self) -> int | None:
        """The pid of the process that runs stages."""
        for process in self.processes:
            with suppress(psutil.Error):
                said = process.cmdline()  # its title, or how it was started while it has none yet
                if "perdure.cli.child" in said or " ".join(said).rstrip().endswith(": stages"):
                    return process.pid
        return None

    @property
    def id(self) -> int:
        """The number under which the store knows it."""
        workers = self.fleet.ask(self.fleet.app.store.workers())
        return next(w.id for w in workers if w.kind == "worker" and w.name.endswith(f":{self.pid}"))

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> float:
        """SIGKILL for the supervisor only; when that was."""
        os.kill(self.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        self.process.wait()
        return killed_s

    def kill_child(self, within_s: float = 90) -> float:
        """SIGKILL for the process that runs stages, which takes its nursery and cells along; when that was."""
        child = self.child
        assert child is not None, f"no child to kill\n{self.said}"
        doomed = [p for p in self.processes if p.pid != self.pid]
        os.kill(child, signal.SIGKILL)
        killed_s = time.monotonic()
        self.fleet.wait(
            lambda: not any(alive(p) for p in doomed), "the cells of a killed worker to be gone", within_s
        )
        return killed_s

    def signal(self, number: int, pids: Iterable[int] | None = None) -> None:
        send([p.pid for p in self.processes] if pids is None else pids, number)

    def stop(self, within_s: float = PATIENCE_S) -> int:
        """SIGTERM; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.exit(within_s)

    def exit(self, within_s: float = PATIENCE_S) -> int:
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s:g} s\n{self.said[-LOG_TAIL:]}") from None
