"""Settings of the interpreter and of numpy for a process that serves many documents at a time."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import TypeVar

#: Seconds after which a thread that computes gives the interpreter up. The usual 5 ms add up: a small document passes
#: between threads dozens of times.
SWITCH_S = 0.001
E = TypeVar("E", bound=MutableMapping[str, str])


def switch_threads_soon() -> None:
    """Make a thread that computes give the interpreter up sooner."""
    sys.setswitchinterval(SWITCH_S)


def compute_in_one_thread(environment: E) -> E:
    """Set numpy to one thread, unless the environment names a number: documents run side by side already, and numpy's
    threads burn the processor while they wait for each other. The same environment is returned."""
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    return environment
