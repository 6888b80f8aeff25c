"""Matrices of an organisation's vectors, read from the store once and then only where documents have changed.

A look for changes is one indexed read. All matrices together take no more than `room_bytes`: those that were not used
for longest go first, and an organisation that is larger than that is read through block by block at each search, which
is exact too and slow.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from perdure.core.frozen import frozen
from perdure.store.base import Driver, Query, Row, Steps
from perdure.store.matrix import Floats, Matrix, unit
from perdure.store.near import Among, Near, Which

T = TypeVar("T")
ROOM_BYTES = 512 * 1024 * 1024
#: Chunks that are read at a time.
READ = 4_096


@frozen
class Changed:
    """A document whose chunks are others than at the last look."""

    id: str
    change: str
    collection: str
    expected: int


class Vectors:
    """The vectors of a store, searched exactly."""

    def __init__(self, driver: Driver, room_bytes: int = ROOM_BYTES) -> None:
        self._driver = driver
        self.room_bytes = room_bytes
        self.matrices: OrderedDict[Which, Matrix] = OrderedDict()
        self._locks: dict[Which, asyncio.Lock] = {}

    async def nearest(
        self, which: Which, wanted: Sequence[bytes], limit: int | None, among: Among, least: float = -1.0
    ) -> list[list[Near]]:
        """For each vector the most similar chunks that are committed, best first."""
        rows = unit(wanted, which.dimensions)
        async with self._locks.setdefault(which, asyncio.Lock()):
            matrix = await self._fresh(which)
            if matrix is None:
                return await self._read_through(which, rows, limit, among, least)
            return await asyncio.to_thread(matrix.nearest, rows, limit, among, least)

    async def _fresh(self, which: Which) -> Matrix | None:
        """The matrix with every change so far; None if there is no room for it."""
        # it stays where it is while we read: a search that is cancelled must not cost the next one all vectors
        matrix = self.matrices.get(which) or Matrix(which.dimensions)
        mark, server, changed = await self._changed(which, matrix.mark)
        if matrix.mark and server != matrix.server:
            # a standby that was promoted may lack changes, and gives their numbers to others
            matrix = Matrix(which.dimensions)
            mark, server, changed = await self._changed(which, 0)
        changed = [one for one in changed if matrix.changes.get(one.id) != one.change]
        row_bytes = which.dimensions * 4 + 12
        if matrix.size + sum(one.expected for one in changed) * row_bytes > self.room_bytes:
            self.matrices.pop(which, None)
            return None
        async for documents, found in self._blocks(which, changed):
            await asyncio.to_thread(_put, matrix, documents, found)
        matrix.mark, matrix.server = mark, server
        self.matrices[which] = matrix
        self.matrices.move_to_end(which)
        while sum(one.size for one in self.matrices.values()) > self.room_bytes and len(self.matrices) > 1:
            self.matrices.popitem(last=False)
        return matrix

    async def _read_through(
        self, which: Which, wanted: Floats, limit: int | None, among: Among, least: float
    ) -> list[list[Near]]:
        best: list[list[Near]] = [[] for _ in wanted]
        _, _, everything = await self._changed(which, 0)
        async for documents, found in self._blocks(which, everything):
            block = Matrix(which.dimensions)
            await asyncio.to_thread(_put, block, documents, found)
            more = await asyncio.to_thread(block.nearest, wanted, limit, among, least)
            best = [
                sorted([*b, *m], key=lambda near: (-near.score, near.num))[:limit]
                for b, m in zip(best, more, strict=True)
            ]
        return best

    async def _changed(self, which: Which, mark: int) -> tuple[int, str, list[Changed]]:
        """The mark for the next time, the server that gave it, and documents that may have changed since the mark."""
        sql = self._driver.dialect

        def steps() -> Steps[tuple[int, str, list[Changed]]]:
            # the mark first: what commits between the two reads is then seen twice, not never
            following, server = (yield Query(sql.INDEXED_MARK, (which.org,)))[0]
            found = yield Query(sql.INDEXED_SINCE, (which.org, mark))
            return following, server, [Changed(*row) for row in found]

        return await self._driver.read(steps)

    async def _blocks(
        self, which: Which, changed: Sequence[Changed]
    ) -> AsyncIterator[tuple[list[Changed], list[Row]]]:
        """The vectors of these documents, some thousand at a time."""
        block: list[Changed] = []
        size = 0
        for n, one in enumerate(changed, 1):
            block.append(one)
            size += one.expected + 1
            if size >= READ or n == len(changed):
                yield block, await self._driver.read(_reading(self._driver.dialect, which, block))
                block, size = [], 0


def _reading(sql: Any, which: Which, documents: list[Changed]) -> Callable[[], Steps[list[Row]]]:
    def steps() -> Steps[list[Row]]:
        params = (which.org, which.model, which.dimensions * 4)
        return (yield Query(sql.CHUNK_VECTORS, params, rows=[(one.id,) for one in documents]))

    return steps


def _put(matrix: Matrix, documents: Sequence[Changed], found: Sequence[Row]) -> None:
    nums: dict[str, list[int]] = {one.id: [] for one in documents}
    vectors: dict[str, list[bytes]] = {one.id: [] for one in documents}
    for document_id, num, vector in found:
        nums[document_id].append(num)
        vectors[document_id].append(vector)
    for one in documents:
        matrix.put(one.id, one.collection, one.change, nums[one.id], vectors[one.id])
