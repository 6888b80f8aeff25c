"""Blobs of a store whose place may be unreachable when it is opened: the owner of the place is checked before the first
write or deletion there, and nothing is written or deleted while it cannot be checked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import BLOBS_REFUSED, StoreUnavailable
from perdure.store.blobs.base import UNAVAILABLE, Blobs
from perdure.store.blobs.owning import Mark, own

if TYPE_CHECKING:
    from perdure.store.sql_store import SqlStore

START_S = 5.0  # that an app waits for the place of its blobs when it starts
_log = logging.getLogger("perdure.blobs")


class CheckedBlobs:
    """See the module. Reads need no owner: a blob is named by its hash."""

    def __init__(self, store: SqlStore, blobs: Blobs) -> None:
        self._store, self._blobs = store, blobs
        self._checked = False
        self.where, self.inside, self.beside = blobs.where, blobs.inside, blobs.beside

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    async def check(self) -> None:
        """Make sure, once, that the place is ours. Raises: SettingInvalid, StoreUnavailable."""
        if not self._checked:
            await own(self._store, self._blobs)
            self._checked = True

    async def check_if_reachable(self) -> None:
        """Check the owner now, or before the first write if the place is unreachable. Raises: SettingInvalid."""
        try:
            async with asyncio.timeout(START_S):
                await self.check()
        except TimeoutError:
            _log.warning("the owner of the blobs is checked later: no answer from %s", self.where)
        except StoreUnavailable as error:
            if error.code not in (UNAVAILABLE, BLOBS_REFUSED):
                raise
            _log.warning("the owner of the blobs is checked later: %s", error)

    async def mark(self) -> Mark | None:
        return await self._blobs.mark()

    async def set_mark(self, mark: Mark, over: bool = False) -> Mark:
        return await self._blobs.set_mark(mark, over)

    async def put(self, data: bytes) -> str:
        await self.check()
        return await self._blobs.put(data)

    async def put_file(self, path: Path) -> tuple[str, int]:
        await self.check()
        return await self._blobs.put_file(path)

    async def get(self, digest: str) -> bytes:
        return await self._blobs.get(digest)

    def stream(self, digest: str) -> AsyncGenerator[bytes, None]:
        return self._blobs.stream(digest)

    async def path(self, digest: str) -> Path | None:
        return await self._blobs.path(digest)

    async def open_copy(self, digest: str, directory: Path) -> Path:
        return await self._blobs.open_copy(digest, directory)

    async def exists(self, digest: str) -> bool:
        return await self._blobs.exists(digest)

    def list(self, older_than_ms: int = 0) -> AsyncIterator[tuple[str, int]]:
        return self._blobs.list(older_than_ms)

    async def delete(self, digest: str, older_than_ms: int = 0) -> bool:
        await self.check()
        return await self._blobs.delete(digest, older_than_ms)

    async def tidy(self, older_than_ms: int) -> int:
        await self.check()
        return await self._blobs.tidy(older_than_ms)
