"""Reads that may look at all documents of an organisation take turns: none of them keeps short reads waiting.

A store reads on few connections. A list by a name that no document has looks at every document and can hold one for
seconds, so each organisation has one such read at a time in a process, and all organisations together half of the
connections. The others answer reads that go by an index.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

#: Connections that a store reads on, at most; half of them are for walks.
READERS = 4


class Walks:
    """See the module."""

    def __init__(self, at_once: int = READERS // 2) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._own: WeakValueDictionary[str | None, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, org: str | None) -> AsyncIterator[None]:
        """Wait for the turn of this organisation; None is an operator, who looks at all."""
        async with self._own.setdefault(org, asyncio.Semaphore()), self._all:
            yield
