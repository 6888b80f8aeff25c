"""What a stage may ask of the engine while it runs: items, rows, progress, keys. One Context per run of a stage.

The runner gives it a `Port`; in a process of its own the port speaks to the runner through a pipe.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

from perdure.core.chunk import Connection
from perdure.core.fingerprint import digest
from perdure.engine.document import Document
from perdure.engine.items import Items, Pending, each, item_running
from perdure.engine.result import Emitted, Row, Spawn, SpawnDocument, SpawnJob
from perdure.errors import LeaseLost, Permanent

T = TypeVar("T")
R = TypeVar("R")


class Port(Protocol):
    """The engine's side of a running stage. Saving resets the stall clock and raises LeaseLost when fenced."""

    @property
    def revoked(self) -> bool:
        """Whether another worker owns the job by now, or the worker is to stop."""
        ...

    def saved_items(self) -> Mapping[str, bytes]:
        """What earlier attempts saved for this stage, loaded before it started."""
        ...

    def save_item_sync(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        """Returns after the commit; for stages that are plain functions."""
        ...

    async def save_item(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        """Returns after the commit; for stages that are coroutines."""
        ...

    async def keep(self, path: Path) -> str:
        """Store a file as a blob."""
        ...

    def progress(self, done: float, total: float | None) -> None:
        """The stage is getting on."""
        ...

    def nearest_sync(self, threshold: float, each: int) -> list[Connection]:
        """What the document's stored chunks are like; for stages that are plain functions."""
        ...

    async def nearest(self, threshold: float, each: int) -> list[Connection]:
        """The same for stages that are coroutines."""
        ...

    def connect_sync(self, threshold: float, each: int) -> int:
        """Connect the document's stored chunks; for stages that are plain functions."""
        ...

    async def connect(self, threshold: float, each: int) -> int:
        """The same for stages that are coroutines."""
        ...


class Context:
    """Handed to stages that ask for it (a parameter named `ctx` or annotated Context)."""

    def __init__(
        self,
        port: Port,
        document: Document,
        stage: str,
        *,
        version: int = 1,
        attempt: int = 1,
        generation: int = 1,
        input_hash: str = "",
        is_async: bool = False,
        serves: Iterable[str] = (),
    ) -> None:
        self.document = document
        self.stage = stage
        self.version = version
        self.attempt = attempt
        self.generation = generation
        self._serves = frozenset(serves)
        self._port = port
        self._input_hash = input_hash
        self._is_async = is_async
        self._pending = Pending()
        self._items = Items(port, self._pending, self.check)

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Writes log lines that name document, stage and attempt."""
        document = self.document
        facts = {
            "document_id": document.id,
            "org_id": document.org,
            "stage": self.stage,
            "attempt": self.attempt,
        }
        return logging.LoggerAdapter(logging.getLogger("perdure.stage"), facts)

    def serves(self, pipeline: str) -> bool:
        """Whether the app at work has a pipeline of this name."""
        return pipeline in self._serves

    @property
    def restored(self) -> bool:
        """Whether the item in the loop's body was saved by an earlier attempt."""
        return self._items.restored

    @property
    def cancelled(self) -> bool:
        """Whether this run is for nothing: another worker owns the document, or it was cancelled."""
        return self._port.revoked

    def check(self) -> None:
        """Call it now and then in a long loop: LeaseLost when this run is for nothing."""
        if self._port.revoked:
            raise LeaseLost(f"stage {self.stage} of document {self.document.id} was taken away")

    def progress(self, done: float, total: float | None = None) -> None:
        """The stage is getting on: the no-progress limit counts from now."""
        self._port.progress(done, total)

    def emit(self, one: Row | Spawn) -> None:
        """Store the row, or spawn the job or child document: with the item whose loop body or `run` emits it,
        otherwise with the stage."""
        given: object = one
        if not isinstance(given, Row | SpawnJob | SpawnDocument):
            message = (
                f"emit takes a Row, `pipeline.job(...)` or `pipeline.child(...)`, not {type(one).__name__}"
            )
            raise Permanent("row_invalid", message)
        self._pending.add(one.emitted() if isinstance(one, Row) else one)

    async def akeep(self, path: Path) -> str:
        """Store a file, of any size, as a blob; its name, for the output of the pipeline's `content_stage`, which must
        be async and run in the worker. A blob that no output names is deleted some time later."""
        if not self._is_async:
            raise self._misused("is not async")
        return await self._port.keep(path)

    def take_emitted(self) -> list[Emitted]:
        """For the runner: what no item took, to be committed with the stage."""
        return self._pending.take_all()

    def idempotency_key(self, item: str | int | None = None, ordinal: int | None = None) -> str:
        """A key for a call to the outside that is the same in every attempt; inside `run` it names the item too."""
        which = item_running.get() if item is None else str(item)
        return digest(self.document.id, self.stage, self.version, self._input_hash, which, ordinal)

    def nearest(self, *, threshold: float = 0.6, each: int = 5) -> list[Connection]:
        """For each stored chunk of the document the most similar ones in other documents of its organisation, at most
        `each`, none below the threshold. `Result(connections=…)` stores them."""
        if self._is_async:
            raise self._misused("is async: use `await ctx.anearest()`")
        return self._port.nearest_sync(threshold, each)

    async def anearest(self, *, threshold: float = 0.6, each: int = 5) -> list[Connection]:
        """Like `nearest`, for async stages."""
        if not self._is_async:
            raise self._misused("is not async: use `ctx.nearest()`")
        return await self._port.nearest(threshold, each)

    def connect(self, *, threshold: float = 0.6, each: int = 20) -> int:
        """Store what the document's chunks are near in other documents, from both sides, and durably; how many. If a
        follow-up of every document does so, each chunk has its `each` nearest, whatever the order."""
        if self._is_async:
            raise self._misused("is async: use `await ctx.aconnect()`")
        return self._port.connect_sync(threshold, each)

    async def aconnect(self, *, threshold: float = 0.6, each: int = 20) -> int:
        """Like `connect`, for async stages."""
        if not self._is_async:
            raise self._misused("is not async: use `ctx.connect()`")
        return await self._port.connect(threshold, each)

    @overload
    def items(self, items: Iterable[T], *, key: Callable[[T], str | int] | None = None) -> Iterator[T]: ...
    @overload
    def items(
        self, items: Iterable[T], *, key: Callable[[T], str | int] | None = None, run: Callable[[T], R]
    ) -> Iterator[R]: ...
    def items(
        self,
        items: Iterable[Any],
        *,
        key: Callable[[Any], str | int] | None = None,
        run: Callable[[Any], Any] | None = None,
    ) -> Iterator[Any]:
        """The results of `run`, one by one; each is saved when the loop asks for the next, with the rows its body
        emitted. What an earlier attempt saved comes back without running. Without `run` the items themselves come.

        `key` names an item the same way in every attempt; by default its `index`, or its position.
        """
        if self._is_async:
            raise self._misused("is async: use `async for result in ctx.aitems(...)`")
        if inspect.iscoroutinefunction(run):
            raise self._misused("gave items() an async run: make the stage async and use ctx.aitems")
        return self._items.loop(items, key, run)

    @overload
    def aitems(
        self,
        items: Iterable[T] | AsyncIterable[T],
        *,
        key: Callable[[T], str | int] | None = None,
        concurrency: int = 1,
    ) -> AsyncIterator[T]: ...
    @overload
    def aitems(
        self,
        items: Iterable[T] | AsyncIterable[T],
        *,
        key: Callable[[T], str | int] | None = None,
        run: Callable[[T], Awaitable[R]],
        concurrency: int = 1,
    ) -> AsyncIterator[R]: ...
    @overload
    def aitems(
        self,
        items: Iterable[T] | AsyncIterable[T],
        *,
        key: Callable[[T], str | int] | None = None,
        run: Callable[[T], R],
        concurrency: int = 1,
    ) -> AsyncIterator[R]: ...
    def aitems(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        key: Callable[[Any], str | int] | None = None,
        run: Callable[[Any], Any] | None = None,
        concurrency: int = 1,
    ) -> AsyncIterator[Any]:
        """Like `items`, for async stages: the results in the order of the items. `concurrency` runs go on at a time;
        after a crash up to that many are repeated."""
        if not self._is_async:
            raise self._misused("is not async: use `for result in ctx.items(...)`")
        if concurrency < 1:
            raise self._misused(f"asks for a concurrency of {concurrency}; at least 1 is needed")
        return self._items.aloop(each(items), key, run, concurrency)

    def _misused(self, problem: str) -> Permanent:
        return Permanent("context_misused", f"stage {self.stage} {problem}")
