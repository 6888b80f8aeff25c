"""Who read which page: a line for every page that a reader opens, written before it is read.

What the demo says about pages read twice is counted here, and not taken from what the store says about itself.
Processes share the file: each line is one write to a file opened for appending, so it survives its writer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

#: The file, and the number of the demo's worker that this process belongs to.
FILE_VARIABLE = "PERDURE_DEMO_TURNSTILE"
WORKER_VARIABLE = "PERDURE_DEMO_WORKER"


@dataclass(frozen=True, slots=True)
class Read:
    """A page was opened."""

    worker: int
    document: str
    page: int


def counted(read: Callable[..., Any], document: Callable[[], str]) -> Callable[..., Any]:
    """`read(reader, page)` that writes itself down first."""

    @wraps(read)
    def read_and_count(reader: Any, page: int) -> Any:
        line = f"{os.environ[WORKER_VARIABLE]} {document()} {page}\n"
        descriptor = os.open(os.environ[FILE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
        return read(reader, page)

    return read_and_count


def reads(path: Path) -> list[Read]:
    """All so far, in order."""
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0].splitlines()
    return [Read(int(worker), document, int(page)) for worker, document, page in map(str.split, whole)]
