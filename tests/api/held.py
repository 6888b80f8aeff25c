"""Work for processes that read JSON: it begins, ends when it is told to, fails, or takes its process over."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any


def until(begun: Path, end: Path) -> int:
    """Say that it has begun, and wait for the other file; the process."""
    begun.touch()
    until_s = time.monotonic() + 90
    while not end.exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    return os.getpid()


def fail() -> None:
    raise ZeroDivisionError("a bug")


def take_over(answer: bytes) -> None:
    """Have the process answer this, whatever it is asked."""
    from perdure.api import answers

    def forged(*_: Any) -> bytes:
        return answer

    answers.encode = pickle.dumps = forged  # type: ignore[assignment]


class Touching:
    """A value that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)
