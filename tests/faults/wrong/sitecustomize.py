"""Python imports this first where its directory is on the path: the wall clock is off by what a file says."""

from __future__ import annotations

import os
import time
from pathlib import Path

_true_ns = time.time_ns
_file = Path(os.environ["FAULTS_CLOCK"])


def _wrong_ns() -> int:
    return _true_ns() + int(_file.read_text()) * 1_000_000_000


time.time_ns = _wrong_ns
time.time = lambda: _wrong_ns() / 1e9
