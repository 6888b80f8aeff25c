"""Processes whose wall clock is wrong, and can be set while they run; their monotonic clock is as it is."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Has a `sitecustomize` that Python imports before anything else.
PATCH = Path(__file__).parent / "wrong"


class WallClock:
    """Off by so many seconds."""

    def __init__(self, file: Path, off_s: int = 0) -> None:
        self._file = file
        self.set(off_s)

    def set(self, off_s: int) -> None:
        """From now on it is off by so many seconds."""
        new = self._file.with_suffix(".new")
        new.write_text(str(off_s))
        new.rename(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """For a process of Python that shall go by it."""
        return {"FAULTS_CLOCK": str(self._file), "PYTHONPATH": os.pathsep.join((str(PATCH), str(ROOT)))}
