"""What stage code of the fault tests writes down and waits for: a ledger of its own, independent of the store.

One line per event, appended with O_APPEND in a single write, so that lines of many processes never mix and every line
written before a SIGKILL is there afterwards. A gate is a file: stage code that reaches it waits until it is gone.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from perdure import Context, Document, Result, Row
from perdure.engine.result import SpawnDocument

DIRECTORY_VARIABLE = "FAULTS_DIRECTORY"
WORKER_VARIABLE = "FAULTS_WORKER"
LOOK_S = 0.01
INSERT_EFFECT = "INSERT INTO effect (document, stage, run) VALUES ($1, $2, $3)"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """One event of one run of a stage. `at_s` is monotonic, which all processes of a machine share."""

    at_s: float
    worker: int
    pid: int
    document: str
    stage: str
    run: str
    event: str


def directory() -> Path:
    """Where this test's ledger and gates are."""
    return Path(os.environ[DIRECTORY_VARIABLE])


def gate_path(within: Path, document: str, place: str) -> Path:
    return within / f"gate {document} {place}"


def read_ledger(within: Path) -> list[Line]:
    """Every line so far, in the order they were written; of one that is just being written nothing."""
    path = within / "ledger"
    if not path.exists():
        return []
    lines = []
    whole, _, _ = path.read_text().rpartition("\n")
    for text in whole.splitlines():
        at_s, worker, pid, document, stage, run, event = text.split("\t")
        lines.append(Line(float(at_s), int(worker), int(pid), document, stage, run, event))
    return lines


class Run:
    """One run of a stage on one document; made at its first line."""

    def __init__(self, doc: Document, stage: str) -> None:
        self.document = doc.name
        self.stage = stage
        self.id = uuid.uuid4().hex[:12]
        self.note("start")

    def note(self, event: str) -> None:
        who = f"{os.environ[WORKER_VARIABLE]}\t{os.getpid()}"
        line = f"{time.monotonic():.6f}\t{who}\t{self.document}\t{self.stage}\t{self.id}\t{event}\n"
        fd = os.open(directory() / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    def at(self, place: str) -> None:
        """Note the place; wait while its gate is shut. For stages that are plain functions."""
        self.note(place)
        while self.shut(place):
            time.sleep(LOOK_S)

    async def at_async(self, place: str) -> None:
        """The same for async stages."""
        self.note(place)
        while self.shut(place):
            await asyncio.sleep(LOOK_S)

    def emit(self, ctx: Context, what: str) -> None:
        """A row under a natural key, that names this run."""
        ctx.emit(Row("effect", stage=what, data=self.id))

    def finish(
        self, ctx: Context, value: T, *, spawn: Sequence[SpawnDocument] = (), sql: Sequence[str] = ()
    ) -> Result[T]:
        """The stage's value, with a row and a statement on a table that would show any duplicate."""
        self.emit(ctx, self.stage)
        self.note("end")
        effect = (INSERT_EFFECT, (self.document, self.stage, self.id))
        return Result(value, spawn=spawn, sql=[effect, *((statement, ()) for statement in sql)])

    def shut(self, place: str) -> bool:
        """Whether the gate at this place is shut for the document."""
        return gate_path(directory(), self.document, place).exists()
