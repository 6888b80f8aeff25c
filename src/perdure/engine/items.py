"""The loops behind `ctx.items` and `ctx.aitems`: run an item, hand it out, save it when the next one is asked for.

An item is saved only after the loop's body is through with it, so what the body emitted commits with the item. On a
resume saved items are handed out without running, and what their bodies emit, long committed, is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.engine.annotations import return_type
from perdure.engine.codec import Codec, clean
from perdure.engine.result import Emitted
from perdure.errors import InputInvalid, Permanent, PipelineInvalid, Unstorable

if TYPE_CHECKING:
    from perdure.engine.context import Port

KEY_LENGTH_MAX = 500

Key = Callable[[Any], str | int] | None
Run = Callable[[Any], Any] | None

#: The item whose `run` is being executed here; concurrent runs each see their own.
item_running: ContextVar[str | None] = ContextVar("item_running", default=None)

_END: Any = object()
_DONE = b"null"  # what is saved for an item without `run`


class Pending:
    """What was emitted and is not committed yet, kept apart by the item whose `run` emitted it."""

    def __init__(self) -> None:
        self._pending: dict[str | None, list[Emitted]] = {}

    def add(self, one: Emitted) -> None:
        self._pending.setdefault(item_running.get(), []).append(one)

    def mark(self) -> int:
        """How much this loop's surroundings have emitted so far."""
        return len(self._pending.get(item_running.get(), ()))

    def drop_since(self, mark: int) -> None:
        del self._pending.get(item_running.get(), [])[mark:]

    def take(self, key: str) -> list[Emitted]:
        """What this item's run emitted, then what the loop's body did."""
        return self._pending.pop(key, []) + self._pending.pop(item_running.get(), [])

    def take_all(self) -> list[Emitted]:
        pending, self._pending = self._pending, {}
        return [one for emitted in pending.values() for one in emitted]


class _Item(NamedTuple):
    """An item with its key; `saved` by an earlier attempt, with its value, or still to be run."""

    key: str
    item: Any
    saved: bool
    value: Any = None


class Items:
    """The items of one run of a stage, over all its loops."""

    def __init__(self, port: Port, pending: Pending, check: Callable[[], None]) -> None:
        self.restored = False
        self._port = port
        self._pending = pending
        self._check = check
        self._keys: set[str] = set()

    def loop(self, items: Iterable[Any], key: Key, run: Run) -> Iterator[Any]:
        """Hand out the results in order."""
        codec = self._codec(run)
        for position, item in enumerate(items):
            known = self._known(item, position, key, run, codec)
            raw, value = (b"", known.value) if known.saved else self._run(known, run, codec)
            mark, around, self.restored = self._pending.mark(), self.restored, known.saved
            yield value
            self.restored = around
            if known.saved:
                self._pending.drop_since(mark)
            else:
                self._port.save_item_sync(known.key, raw, self._pending.take(known.key))

    async def aloop(
        self, items: AsyncIterator[Any], key: Key, run: Run, concurrency: int
    ) -> AsyncIterator[Any]:
        """Hand out the results in order, with up to `concurrency` runs going on."""
        codec = self._codec(run)
        ahead: deque[tuple[_Item, asyncio.Task[tuple[bytes, Any]] | None]] = deque()
        position, more = 0, True
        try:
            while True:
                while more and len(ahead) < concurrency:
                    item = await anext(items, _END)
                    if item is _END:
                        more = False
                        break
                    known = self._known(item, position, key, run, codec)
                    task = None if known.saved else asyncio.create_task(self._arun(known, run, codec))
                    ahead.append((known, task))
                    position += 1
                if not ahead:
                    return
                known, task = ahead[0]
                raw, value = await task if task else (b"", known.value)
                ahead.popleft()
                mark, around, self.restored = self._pending.mark(), self.restored, known.saved
                yield value
                self.restored = around
                if known.saved:
                    self._pending.drop_since(mark)
                else:
                    await self._port.save_item(known.key, raw, self._pending.take(known.key))
        finally:
            running = [task for _, task in ahead if task is not None]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _known(self, item: Any, position: int, key: Key, run: Run, codec: Codec) -> _Item:
        self._check()
        text = self._key_text(item, position, key)
        raw = self._port.saved_items().get(text)
        if raw is None:
            return _Item(text, item, saved=False)
        if run is None:
            return _Item(text, item, saved=True, value=item)
        try:
            return _Item(text, item, saved=True, value=codec.decode(raw))
        except InputInvalid:  # a save that cannot be read is as good as none
            return _Item(text, item, saved=False)

    def _key_text(self, item: Any, position: int, key: Key) -> str:
        value: Any = _index_of(item, position) if key is None else key(item)
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            message = f"the key of an item must be str or int, not {type(value).__name__}"
            raise Permanent("item_key_invalid", message)
        text = clean(str(value)).replace("\0", "�")
        if not 0 < len(text) <= KEY_LENGTH_MAX:
            message = f"the key of an item has 1 to {KEY_LENGTH_MAX} characters, not {len(text)}"
            raise Permanent("item_key_invalid", message)
        if text in self._keys:
            message = f"two items have the key {text!r}: give key= so that keys differ in the whole stage"
            raise Permanent("item_key_repeated", message)
        self._keys.add(text)
        return text

    def _run(self, known: _Item, run: Run, codec: Codec) -> tuple[bytes, Any]:
        if run is None:
            return _DONE, known.item
        token = item_running.set(known.key)
        try:
            value = run(known.item)
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                raise Permanent("context_misused", "items() needs a run that is not async")
            return codec.saved(value)
        finally:
            item_running.reset(token)

    async def _arun(self, known: _Item, run: Run, codec: Codec) -> tuple[bytes, Any]:
        if run is None:
            return _DONE, known.item
        item_running.set(known.key)  # this task's own
        value = run(known.item)
        return codec.saved(await value if inspect.isawaitable(value) else value)

    def _codec(self, run: Run) -> Codec:
        codec = Codec(Any if run is None else return_type(run), "the result of an item")
        try:
            codec.check()
        except PipelineInvalid as error:
            raise Unstorable(str(error)) from error
        return codec


async def each(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Any iterable as an async one."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def _index_of(item: Any, position: int) -> str | int:
    """Many types have an `index` method; only a plain number or text counts."""
    index = getattr(item, "index", None)
    return index if isinstance(index, (str, int)) and not isinstance(index, bool) else position
