"""Work for processes that read JSON: it begins, and ends when it is told to."""

from __future__ import annotations

import os
import time
from pathlib import Path


def until(begun: Path, end: Path) -> int:
    """Say that it has begun, and wait for the other file; the process."""
    begun.touch()
    until_s = time.monotonic() + 90
    while not end.exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    return os.getpid()


def fail() -> None:
    raise ZeroDivisionError("a bug")
