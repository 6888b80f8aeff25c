"""The document pipeline as it is, with a ledger and gates around its stages: `perdure worker …documents.watched:app`.

Only workers of the fault tests import this: it changes the pipeline of the process it is in. What was read and what was
embedded is written down when it is in hand and not saved yet. Two names of documents do harm: see `Listened`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from perdure import Perdure
from perdure.engine.address import register
from perdure.engine.pipeline import AnyStage
from perdure.pipelines import document, indexing
from perdure.pipelines.connect import detect_connections
from perdure.pipelines.embed import Embedder, embedder
from perdure.pipelines.extract import Part, Reader, open_reader
from tests.faults.documents.places import (
    BATCH,
    BATCH_VARIABLE,
    CRASHES,
    HANGS,
    LINGER_VARIABLE,
    STALL_VARIABLE,
)
from tests.faults.record import Run
from tests.faults.stages import STORE_VARIABLE, hold_interpreter

LINGER_S = float(os.environ.get(LINGER_VARIABLE, "0"))

running: ContextVar[Run] = ContextVar("running")
batches: ContextVar[dict[str, int]] = ContextVar("batches")
EMBEDDED = int(os.environ.get(BATCH_VARIABLE, BATCH))


def listen(stage: AnyStage) -> None:
    """Note where it begins and ends, and wait there while a gate is shut."""
    fn, name = stage.fn, stage.name

    def begun(given: dict[str, Any]) -> Run:
        run = Run(given["doc"] if "doc" in given else given["ctx"].document, name)
        running.set(run)
        if name == "embed":
            firsts = given["chunk"][::EMBEDDED]
            batches.set({chunk.read: number for number, chunk in enumerate(firsts)})
        return run

    async def run_async(**given: Any) -> Any:
        run = begun(given)
        await run.at_async(f"{name}:begin")
        result = await fn(**given)
        await run.at_async(f"{name}:end")
        if name == "connect":
            await asyncio.sleep(random.uniform(0, LINGER_S))
        return result

    def run_here(**given: Any) -> Any:
        run = begun(given)
        run.at(f"{name}:begin")
        result = fn(**given)
        run.at(f"{name}:end")
        return result

    stage.fn = run_async if stage.is_async else run_here
    register(__name__, stage.pipeline)  # for cells: they look for it where its functions are


class Listened:
    """A reader whose every part is noted; it crashes or hangs over documents that are called so."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._run = reader, running.get()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def read(self, key: int) -> Part:
        if self._run.document.startswith(CRASHES):
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._run.document.startswith(HANGS):
            hold_interpreter()
        part = self._reader.read(key)
        self._run.at(f"extract:item-{key}")
        return part


@contextmanager
def open_listened(content: Path | bytes, media_type: str, name: str) -> Iterator[Listened]:
    with open_reader(content, media_type, name) as reader:
        yield Listened(reader)


class ListenedEmbedder:
    """An embedder that notes each batch that it has vectors for."""

    def __init__(self, inner: Embedder) -> None:
        self._inner, self.name, self.batch = inner, inner.name, EMBEDDED

    async def aembed(self, texts: Sequence[str]) -> list[bytes]:
        vectors = await self._inner.aembed(texts)
        await running.get().at_async(f"embed:item-{batches.get()[texts[0]]}")
        return vectors


for each in (*document.documents.stages, *detect_connections.stages):
    listen(each)
patched: Any = document
patched.open_reader = open_listened
patched = indexing
patched.embedder = lambda: ListenedEmbedder(embedder())
document.extract.backoff_s = 0.1
document.extract.sandbox = False  # it writes down where it is
document.extract.stall = float(os.environ.get(STALL_VARIABLE, document.STALL_S))

app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///not-opened.db"), pipelines=[document.documents])
