"""The engine's side of a running stage, as a fake that remembers what it was asked to save; and things to loop over."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from perdure.core.chunk import Connection
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.result import Emitted, SpawnJob
from perdure.store.records import DocumentRecord

RECORD = DocumentRecord("d1", "o1", "c", "books", "text", "a.txt", "", "h", 3, b"a b", None, b"{}", None, 0)
DOC = Document(RECORD)


@dataclass
class FakePort:
    """Remembers saves in order: (key, value, row keys)."""

    saved: dict[str, bytes] = field(default_factory=dict)
    saves: list[tuple[str, bytes, list[str]]] = field(default_factory=list)
    revoked: bool = False
    progressed: list[tuple[float, float | None]] = field(default_factory=list)

    def saved_items(self) -> Mapping[str, bytes]:
        return self.saved

    def save_item_sync(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        self.saves.append((key, value, [one.key for one in emitted if not isinstance(one, SpawnJob)]))

    async def save_item(self, key: str, value: bytes, emitted: list[Emitted]) -> None:
        await asyncio.sleep(0)
        self.save_item_sync(key, value, emitted)

    def nearest_sync(self, threshold: float, each: int) -> list[Connection]:
        return []

    async def nearest(self, threshold: float, each: int) -> list[Connection]:
        return []

    def connect_sync(self, threshold: float, each: int) -> int:
        return 0

    async def connect(self, threshold: float, each: int) -> int:
        return 0

    async def keep(self, path: Path) -> str:
        return path.name

    def progress(self, done: float, total: float | None) -> None:
        self.progressed.append((done, total))


def context(port: FakePort | None = None, **options: Any) -> Context:
    return Context(port or FakePort(), DOC, "embed", **options)


@dataclass
class Page:
    number: int


def read(page: Page) -> str:
    return f"page {page.number}"


T = TypeVar("T")
PAGES = [Page(7), Page(8), Page(9)]


def key(page: Page) -> int:
    return page.number


async def aread(page: Page) -> str:
    await asyncio.sleep(0)
    return read(page)


async def collect(results: AsyncIterator[T]) -> list[T]:
    return [result async for result in results]


def name_of(value: object) -> str:
    """A test case's name that is the same in every process: no addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
