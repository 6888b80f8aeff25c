"""A process with a heavy document stands behind those that serve everybody: the kernel is told so in two ways.

A higher niceness gives it less of a busy processor. That alone does not end its turn when another process wakes up, and
a small document that passes from process to process wakes them dozens of times. So it also asks for long turns: Linux
6.12 and newer cuts them short for a process with the usual ones. Neither starves it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import suppress

BEHIND = 5  # levels of niceness that any cell stands behind the worker
FAR_BEHIND = 10  # and besides, if its document is heavy
LONG_TURN_NS = 100_000_000
#: The number of the call sched_setattr; the C library has no name for it.
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
#: size, policy, flags, niceness, priority, runtime (of usual processes: the turn), deadline, period, two clamps
ATTRIBUTES = struct.Struct("=IIQiIQQQII")


def stand_behind(pid: int = 0) -> None:
    """Let this process give way to others; where the kernel knows no turns, by its niceness alone."""
    with suppress(OSError):
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, pid) + FAR_BEHIND)
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        _ask_long_turns(pid, niceness)


def _ask_long_turns(pid: int, niceness: int) -> None:
    number = SCHED_SETATTR.get(platform.machine())
    if number is not None and hasattr(os, "SCHED_OTHER"):
        asked = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, LONG_TURN_NS, 0, 0, 0, 0)
        with suppress(AttributeError):
            ctypes.CDLL(None).syscall(number, pid, asked, 0)
