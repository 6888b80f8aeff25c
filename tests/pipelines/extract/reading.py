"""Documents read in cells, as the document pipeline reads them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from perdure.engine.isolate import Limits, Nursery
from perdure.pipelines.extract import MODULES
from tests.engine.cells import unasked
from tests.pipelines.extract import celled

LIMITS = Limits(memory_bytes=512 << 20, wall_s=200, cpu_s=10)

Answer = dict[str, Any] | BaseException


class Cells:
    """A warm process and its event loop; every document is read in a cell of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._nursery = Nursery([celled.__name__, *MODULES])

    def read(
        self, source: Path, name: str = "", media_type: str = "", limits: Limits = LIMITS
    ) -> dict[str, Any]:
        """The words and the text that a cell finds in it; raises what the cell raised."""
        (answer,) = self.read_all([source], name, media_type, limits)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def read_all(
        self, sources: list[Path], name: str = "", media_type: str = "", limits: Limits = LIMITS
    ) -> list[Answer]:
        """The answers of cells that run at the same time."""
        answers: list[Answer] = []

        async def work(source: Path) -> dict[str, Any]:
            payload = json.dumps({"path": str(source), "name": name, "media_type": media_type}).encode()
            return dict(
                json.loads(await self._nursery.run(f"{celled.__name__}:read", payload, unasked, limits))
            )

        async def main() -> None:  # returns nothing: the runner takes the repr of what it is about to return
            readings = asyncio.gather(*map(work, sources), return_exceptions=True)
            answers.extend(await asyncio.wait_for(readings, 60))

        self._runner.run(main())
        return answers

    def close(self) -> None:
        self._runner.run(self._nursery.close())
        self._runner.close()
