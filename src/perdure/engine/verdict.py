"""How a call in a cell can end, and the limits that may end it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from perdure.core.frozen import frozen
from perdure.errors import PerdureError, SettingInvalid

#: Of a cell without a limit.
LITTLE_BYTES = 2 << 30


class CellCrashed(PerdureError):
    """The cell ended without an answer: `reason` is the signal's name, `exit:N`, `memory_exceeded`, `cpu_exceeded` …"""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or f"the process of this call ended: {reason}", code=f"crashed:{reason}")
        self.reason = reason


class CellOverdue(PerdureError):
    """The cell was killed for its time: `code` is `stage_timeout` or `no_progress`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)


class NurseryLost(PerdureError):
    """The call ended through no fault of its own: the process that forks cells is gone, or the machine ran out of
    memory. Repeat the call."""

    code = "nursery_lost"


class CellDoubtful(PerdureError):
    """A cell that had served other calls before ended without an answer: whose fault that was, a new one tells."""

    code = "cell_doubtful"


class PreloadFailed(PerdureError):
    """A module that every call needs cannot be imported; no call can run until that is mended."""

    code = "preload_failed"


class SandboxUnavailable(SettingInvalid):
    """PERDURE_SANDBOX is `require` and the kernel does not allow it; no file is read here."""

    code = "sandbox_unavailable"


@frozen
class Limits:
    """What one call may use; None is no limit. Memory and processes count the cell and everything it started.

    `stall_s` is the longest silence: the cell must send a message at least that often. Time that the parent takes to
    answer does not count as silence.
    """

    memory_bytes: int | None = 2 << 30
    cpu_s: int | None = None
    wall_s: float | None = None
    stall_s: float | None = None
    file_bytes: int | None = None
    processes: int | None = 256
    behind: bool = False  # other processes go first, from its start


@frozen
class End:
    """How a cell ended, as the kernel tells it."""

    status: int
    peak_bytes: int
    cpu_s: float


def overdue(limits: Limits, running_s: float, silent_s: float) -> CellOverdue | None:
    """Why a cell's time is up, if it is."""
    if limits.wall_s is not None and running_s > limits.wall_s:
        return CellOverdue("stage_timeout", f"still running after {limits.wall_s:g} s")
    if limits.stall_s is not None and silent_s > limits.stall_s:
        return CellOverdue("no_progress", f"no message for {limits.stall_s:g} s")
    return None


def oversized(limits: Limits, held_bytes: int, processes: int) -> CellCrashed | None:
    """Why a cell must go for what it holds, if it must."""
    if limits.memory_bytes is not None and held_bytes > limits.memory_bytes:
        return memory_exceeded(f"held {_mib(held_bytes)}, allowed are {_mib(limits.memory_bytes)}")
    if limits.processes is not None and processes > limits.processes:
        return CellCrashed("processes_exceeded", f"{processes} processes, allowed are {limits.processes}")
    return None


def crash(limits: Limits, end: End, out_of_memory: Callable[[], bool] = lambda: False) -> PerdureError:
    """What a cell died of that nobody here killed; `out_of_memory` tells whether the kernel killed for lack of it.

    The kernel chooses whom it kills. A cell that used little of the memory it may have did not cause the lack.
    """
    used = f"peak memory {_mib(end.peak_bytes)}, {end.cpu_s:.1f} s of CPU"
    if os.WIFEXITED(end.status):
        code = os.WEXITSTATUS(end.status)
        return CellCrashed(f"exit:{code}", f"exited with status {code} and without an answer; {used}")
    number = os.WTERMSIG(end.status)
    killed = number == signal.SIGKILL
    # A cell that ignores SIGXCPU is killed by the kernel; one that grows between two looks may be as well.
    if number == signal.SIGXCPU or (killed and limits.cpu_s is not None and end.cpu_s >= limits.cpu_s):
        return CellCrashed("cpu_exceeded", f"used its {limits.cpu_s} s of CPU time; {used}")
    if killed and limits.memory_bytes is not None and end.peak_bytes >= limits.memory_bytes:
        return memory_exceeded(f"killed, {used}, allowed are {_mib(limits.memory_bytes)}")
    if killed and end.peak_bytes < (limits.memory_bytes or LITTLE_BYTES) // 2 and out_of_memory():
        return NurseryLost(f"the kernel killed it because the machine ran out of memory; {used}")
    name = signal_name(number)
    return CellCrashed(name, f"killed by {name}; {used}")


def memory_exceeded(message: str) -> CellCrashed:
    """The one way in which too much memory is told, whoever noticed it."""
    return CellCrashed("memory_exceeded", message)


def signal_name(number: int) -> str:
    """SIGSEGV and the like; numbers without a name are told as SIG64."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
