"""How a process that serves many documents at a time shares what it has among its threads."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import TypeVar

#: Seconds after which a thread that computes gives the interpreter up. The usual 5 ms add up: a small document passes
#: between threads dozens of times.
SWITCH_S = 0.001
E = TypeVar("E", bound=MutableMapping[str, str])


def share_interpreter() -> None:
    """Let threads that only wait for a moment of it go on soon."""
    sys.setswitchinterval(SWITCH_S)


def share_processors(environment: E) -> E:
    """The environment, changed so that numpy computes in one thread, unless it says how many: documents run side by
    side already, and threads that wait for each other spin."""
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    return environment
