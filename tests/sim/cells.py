"""Cells without processes: a stage runs where its worker runs, told that it is alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from perdure.core.chunk import Connection
from perdure.engine import cell_messages
from perdure.engine.cell_env import passes
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.gate import Gate
from perdure.engine.isolate import CellOverdue, Limits, NurseryLost
from perdure.engine.pipeline import find_target
from perdure.engine.result import Emitted
from perdure.engine.stage_cell import Assignment, LocalFile, conclude, load
from tests.sim.documents import in_cell
from tests.sim.world import World

LOOK_S = 0.5
CELLS_BYTES = 5 << 30  # two cells at a time, by the limit that stages have unless they say otherwise
OnMessage = Callable[[bytes], Awaitable[bytes]]


class SimNursery:
    """What the runner asks for a cell."""

    boxes = False
    passes = staticmethod(passes(""))

    def __init__(self, world: World) -> None:
        self.world = world
        self.gate = Gate(CELLS_BYTES)

    async def warm(self, trusted: bool = False) -> None: ...
    async def close(self) -> None: ...

    async def run(
        self,
        target: str,
        payload: bytes,
        on_message: OnMessage,
        limits: Limits,
        started: Any = None,
        reuse: int = 1,
        whose: str = "",
        accept: Any = None,
        box: Any = None,
        trusted: bool = False,
    ) -> Any:
        if self.world.rng.random() < self.world.faults.nursery_lost:
            self.world.happened("nursery lost")
            raise NurseryLost("simulated")
        work = Assignment.unpacked(payload)
        stage = find_target(work.target)
        document = Document.from_payload(work.document, LocalFile(None))
        context = Context(
            CellPort(on_message, work.items), document, stage.name, version=stage.version, attempt=work.attempt,
            generation=work.generation, input_hash=work.input_hash, is_async=True,
        )  # fmt: skip
        values = load(stage, work.raws, {})
        token = in_cell.set(True)
        try:
            running = stage.fn(**stage.arguments(document, context, values, work.input))
            returned = await self._within(limits.wall_s, running)
        finally:
            in_cell.reset(token)
        produced, rows, _ = conclude(stage, document, context, values, returned)
        return await accept(cell_messages.answer(produced, rows))

    async def _within(self, wall_s: float | None, running: Coroutine[Any, Any, Any]) -> Any:
        """What the cell gives within its time; a cell is frozen with its worker here, and that time does not count."""
        task = asyncio.ensure_future(running)
        left_s = math.inf if wall_s is None else wall_s
        try:
            while not task.done() and left_s > 0:
                looked_s = min(left_s, LOOK_S) if wall_s is not None else None
                await asyncio.wait({task}, timeout=looked_s)
                left_s -= looked_s or 0.0
            if task.done():
                return task.result()
            raise CellOverdue("stage_timeout", "simulated")
        finally:
            task.cancel()


class CellPort:
    """The context's port in a cell: everything goes to the runner."""

    revoked = False

    def __init__(self, on_message: OnMessage, items: dict[str, bytes]) -> None:
        execution: Any = on_message.__self__  # type: ignore[attr-defined]
        self.job = execution.job
        self._on_message, self._items = on_message, items

    def saved_items(self) -> dict[str, bytes]:
        return self._items

    def save_item_sync(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        raise AssertionError("stages here are async")

    async def save_item(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        await self._on_message(cell_messages.item(key, value, emitted))

    def nearest_sync(self, threshold: float, each: int) -> list[Connection]:
        raise AssertionError("stages here are async")

    async def nearest(self, threshold: float, each: int) -> list[Connection]:
        return cell_messages.connections(
            await self._on_message(cell_messages.ask("nearest", threshold, each))
        )

    def connect_sync(self, threshold: float, each: int) -> int:
        raise AssertionError("stages here are async")

    async def connect(self, threshold: float, each: int) -> int:
        raise AssertionError("stages here bring their connections themselves")

    async def keep(self, path: Path) -> str:
        raise AssertionError("stages here fetch nothing")

    def progress(self, done: float, total: float | None) -> None: ...
