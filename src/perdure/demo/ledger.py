"""What was paid for: every run of a stage writes itself down, as a bill for a call to a model would.

The demo is judged by this file and not by what the store says about itself. Processes share it: each line is one
write to a file opened for appending, and what was written survives the killing of its writer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

#: The file, and the number of the demo's worker that this process belongs to.
LEDGER_VARIABLE = "PERDURE_DEMO_LEDGER"
WORKER_VARIABLE = "PERDURE_DEMO_WORKER"

BEGAN, ENDED, FAILED = "began", "ended", "failed"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger; `item` is a paragraph's number where a run pays for one paragraph only."""

    at_ms: int
    worker: int
    document: str
    stage: str
    item: int | None
    what: str


def now_ms() -> int:
    """The ledger's time."""
    return time.time_ns() // 1_000_000


@contextmanager
def paid(document: str, stage: str, item: int | None = None) -> Iterator[None]:
    """Write down that a run began, and that it ended or failed; one that is killed leaves only its beginning."""
    _write(document, stage, item, BEGAN)
    try:
        yield
    except BaseException:
        _write(document, stage, item, FAILED)
        raise
    _write(document, stage, item, ENDED)


def _write(document: str, stage: str, item: int | None, what: str) -> None:
    path = os.environ.get(LEDGER_VARIABLE)
    if path is None:
        return
    worker = int(os.environ.get(WORKER_VARIABLE, "0"))
    line = json.dumps(asdict(Entry(now_ms(), worker, document, stage, item, what))) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


class Ledger:
    """The file as the demo reads it, while others write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self._read_bytes = 0

    def look(self) -> list[Entry]:
        """All entries so far."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            self.entries += [Entry(**json.loads(line)) for line in whole.splitlines()]
        return self.entries
