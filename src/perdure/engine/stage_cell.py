"""One run of a stage in a process of its own: what the runner sends there, and what happens there.

The cell never touches the store. It asks the runner to save items and answers with what the stage produced.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

from perdure.core.chunk import Connection
from perdure.core.frozen import frozen
from perdure.core.scope import MESSENGERS, PACKED, WORK, Work
from perdure.engine import cell, cell_messages, sandbox, wire
from perdure.engine.context import Context
from perdure.engine.crossing import crosses
from perdure.engine.document import Document
from perdure.engine.pipeline import AnyStage, find_target
from perdure.engine.result import Emitted, Produced
from perdure.engine.wiring import PREVIOUS
from perdure.errors import InputInvalid, PerdureError, PipelineInvalid
from perdure.settings import Settings, using

TARGET = "perdure.engine.stage_cell:run"
PROGRESS_S = 0.5


class SavedUnreadable(PerdureError):
    """What an earlier stage saved cannot be read as its type."""

    code = "saved_unreadable"

    def __init__(self, stage: str) -> None:
        super().__init__(f"the saved output of {stage} cannot be read")
        self.stage = stage


class StageAbsent(PerdureError):
    """A process of its own cannot find the stage."""

    code = "stage_absent"

    def __init__(self, target: str, why: str) -> None:
        super().__init__(
            f"a process of its own cannot find {target} ({why}); define the pipeline at the top of its module"
        )


crosses(SavedUnreadable, stage=str)
crosses(StageAbsent)


@frozen
class LocalFile:
    """A document's blob as a local file; the reader that Document wants."""

    path: Path | None

    def get_sync(self, digest: str) -> bytes:
        return self._file(digest).read_bytes()

    def path_sync(self, digest: str) -> Path | None:
        return self._file(digest)

    def _file(self, digest: str) -> Path:
        if self.path is None:
            raise FileNotFoundError(f"blob {digest} was not fetched")
        return self.path


@frozen
class Assignment:
    """Everything one run of a stage needs."""

    target: str
    document: dict[str, Any]
    file: str | None
    raws: dict[str, bytes]  # saved outputs of the stages it or its contracts read
    input: bytes | None
    items: dict[str, bytes]
    attempt: int
    generation: int
    input_hash: str
    work: Work
    known: dict[str, Any]  # by messengers
    room: (
        str | None
    )  # for its temporary files; the worker removes it, however the cell ends. None: a den has it
    settings: dict[str, Any] | None  # that the app was made with
    tells: bool = False  # say when the stage itself begins
    serves: Sequence[str] = ()  # the pipelines of the app, for a stage that could as well run there

    def packed(self) -> bytes:
        """For `run`."""
        values = [getattr(self, one.name) for one in fields(self)]
        return wire.encode([list(astuple(one)) if isinstance(one, Work) else one for one in values])

    @staticmethod
    def unpacked(payload: bytes) -> Assignment:
        """What was packed."""
        given = Assignment(*wire.decode(payload))
        plain: Any = given.work
        work = Work(*plain)
        return replace(given, work=replace(work, needs=tuple(work.needs)))


def run(payload: bytes, ask: Callable[[bytes], bytes]) -> bytes:
    """Called in the cell: run the stage and give back what it produced and emitted."""
    given = Assignment.unpacked(payload)
    with using(None if given.settings is None else Settings.model_construct(**given.settings)):
        return _run(given, ask)


def _run(given: Assignment, ask: Callable[[bytes], bytes]) -> bytes:
    try:
        stage = find_target(given.target)
    except Exception as error:
        raise StageAbsent(given.target, str(error)) from error
    room, file = given.room, given.file
    if room is None:
        sandbox.enter(cell.den)
        room, file = f"{cell.den}/{cell.TEMPORARY}", file and f"{cell.den}/{cell.DOCUMENT}"
    tempfile.tempdir = room
    document = Document.from_payload(given.document, LocalFile(Path(file) if file else None))
    context = Context(
        CellPort(ask, given.items), document, stage.name, version=stage.version, attempt=given.attempt,
        generation=given.generation, input_hash=given.input_hash, is_async=stage.is_async, serves=given.serves,
    )  # fmt: skip
    WORK.set(given.work)
    PACKED.update(given.known)
    for name in given.known.keys() & MESSENGERS.keys():
        MESSENGERS[name].unpack(given.known[name])
    if given.tells:
        ask(cell_messages.ask("begun"))
    try:
        values = load(stage, given.raws, {})
        arguments = stage.arguments(document, context, values, given.input)
        returned = asyncio.run(stage.fn(**arguments)) if stage.is_async else stage.fn(**arguments)
        produced, emitted, _ = conclude(stage, document, context, values, returned)
        return cell_messages.answer(produced, emitted)
    finally:
        document.close()
        reports = {name: told for name, one in MESSENGERS.items() if (told := one.report()) is not None}
        if given.work.requests or given.work.probed is not None or reports:
            ask(cell_messages.ask("calls", given.work.requests, given.work.probed, reports))


def load(stage: AnyStage, raws: Mapping[str, bytes], loaded: dict[str, Any]) -> dict[str, Any]:
    """The saved outputs of earlier stages as values, which are this stage's own: what is in `loaded` is taken out of
    it, the rest is read. SavedUnreadable names the one that is none; without what an earlier generation saved it
    simply runs as if it were the first."""
    values = {}
    for name, raw in raws.items():
        try:
            values[name] = loaded.pop(name) if name in loaded else stage.load(name, raw)
        except InputInvalid:
            if name != PREVIOUS:
                raise SavedUnreadable(name) from None
    return values


def conclude(
    stage: AnyStage, document: Document, context: Context | None, values: Mapping[str, Any], returned: Any
) -> tuple[Produced, list[Emitted], Any]:
    """What a finished stage gave, checked against its contracts: (produced, emitted on the way, its value)."""
    produced, value = stage.collect(returned)
    if stage.contracts:
        stage.verify(document, {**values, stage.name: value})
    return produced, context.take_emitted() if context is not None else [], value


class CellPort:
    """The context's port in a cell: everything goes to the runner."""

    def __init__(self, ask: Callable[[bytes], bytes], items: Mapping[str, bytes]) -> None:
        self._ask = ask
        self._items = items
        self._told_s = 0.0

    @property
    def revoked(self) -> bool:
        return False  # the runner kills the cell

    def saved_items(self) -> Mapping[str, bytes]:
        return self._items

    def save_item_sync(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        self._ask(cell_messages.item(key, value, emitted))
        if (work := WORK.get()) is not None:
            work.saved()

    async def save_item(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        self.save_item_sync(key, value, emitted)

    def nearest_sync(self, threshold: float, each: int) -> list[Connection]:
        return cell_messages.connections(self._ask(cell_messages.ask("nearest", threshold, each)))

    async def nearest(self, threshold: float, each: int) -> list[Connection]:
        return self.nearest_sync(threshold, each)

    def connect_sync(self, threshold: float, each: int) -> int:
        return int(self._ask(cell_messages.ask("connect", threshold, each)))

    async def connect(self, threshold: float, each: int) -> int:
        return self.connect_sync(threshold, each)

    async def keep(self, path: Path) -> str:
        raise PipelineInvalid("a stage in a process of its own cannot store a blob")

    def progress(self, done: float, total: float | None) -> None:
        if (now_s := time.monotonic()) - self._told_s >= PROGRESS_S:
            self._told_s = now_s
            self._ask(cell_messages.ask("progress"))
