"""Blobs as rows of PostgreSQL, in pieces of 1 MiB: a fleet on many hosts needs nothing but its database.

`blob_head` (one row per blob, written in the transaction of its parts) decides whether a blob exists; every verb
takes its row first, so puts and deletes of one blob queue up behind each other and never deadlock. Each part is a
message of its own and has half a minute to arrive: a link of 40 kB/s is fast enough.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.errors import StoreBusy, StoreError, StoreUnavailable
from perdure.store.blobs.base import (
    CHUNK_BYTES,
    BlobCorrupt,
    changed,
    corrupt,
    hash_aside,
    hash_file,
    is_digest,
    missing,
    required,
    verified,
)
from perdure.store.blobs.owning import Mark
from perdure.store.postgres_transaction import transaction

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = asyncpg.Connection[Any] | PoolConnectionProxy[Any]

#: Gives a connection for the length of an `async with`; an asyncpg pool's `acquire` is one.
Connect: TypeAlias = "Callable[[], AbstractAsyncContextManager[Connection]]"

#: A put may take its time between two parts: it holds nothing but the row of this blob.
WAIT = "SET LOCAL lock_timeout = '30s'"  # for a put of the same blob, which may take its time, too
SENDING = (
    "set_config('idle_in_transaction_session_timeout', '30s', true), "
    "set_config('application_name', 'perdure sending', true)"
)

#: Puts at a time. One holds a connection for as long as its client sends, and whoever reads needs one, too.
WRITES_MAX = 2
#: Besides, puts of a single part: they do not wait for large ones.
SMALL_MAX = 2
#: Seconds of rest for each second in which a part was written, and at most in a put.
REST, REST_MAX_S = 2.0, 2.0

_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

_HEAD_PUT = f"""
INSERT INTO blob_head (hash, size, touched_ms) VALUES ($1, $2, {_NOW_MS})
ON CONFLICT (hash) DO UPDATE SET size = excluded.size, touched_ms = excluded.touched_ms
RETURNING {SENDING}"""

# A part that is already there and right is compared, not written again.
_PART_PUT = """
INSERT INTO blob_part (hash, part, data) VALUES ($1, $2, $3)
ON CONFLICT (hash, part) DO UPDATE SET data = excluded.data WHERE blob_part.data <> excluded.data"""

_PART_GET = "SELECT data FROM blob_part WHERE hash = $1 AND part = $2"

_AGES = f"""
SELECT hash, {_NOW_MS} - touched_ms FROM blob_head
WHERE hash > $1 AND touched_ms <= {_NOW_MS} - $2::bigint ORDER BY hash LIMIT 1000"""

_HEAD_DELETE = (
    f"DELETE FROM blob_head WHERE hash = $1 AND touched_ms <= {_NOW_MS} - $2::bigint RETURNING true"
)


class TableBlobs:
    """Blobs in the tables `blob_head` and `blob_part` of a PostgreSQL database."""

    where, inside, beside = "the database", True, True

    def __init__(self, connect: Connect, others: Callable[[], bool] = lambda: False) -> None:
        """`others`: whether large puts are to leave time to others."""
        self._connect = connect
        self._others = others
        self._large, self._small = asyncio.Semaphore(WRITES_MAX), asyncio.Semaphore(SMALL_MAX)

    async def mark(self) -> Mark | None:
        return None

    async def set_mark(self, mark: Mark, over: bool = False) -> Mark:
        return mark

    async def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        view = memoryview(data)
        async with self._putting(digest, len(data)) as putting:
            for start in range(0, len(data), CHUNK_BYTES):
                await putting.part(view[start : start + CHUNK_BYTES])
        return digest

    async def put_file(self, path: Path) -> tuple[str, int]:
        # The name must be known before the first row, so the file is read twice and must be the same both times.
        digest, size = await asyncio.to_thread(hash_file, path)
        stored = hashlib.sha256()
        with path.open("rb") as file:
            async with self._putting(digest, size) as putting:
                while piece := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    stored.update(piece)
                    await putting.part(piece)
                if stored.hexdigest() != digest:
                    raise changed(path)
        return digest, size

    async def get(self, digest: str) -> bytes:
        data = b"".join([piece async for piece in self._pieces(digest)])
        await self._verify(digest, await hash_aside(data))
        return data

    async def stream(self, digest: str) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(verified(self._pieces(digest), digest)) as pieces:
                async for piece in pieces:
                    yield piece
        except BlobCorrupt:
            if not await self.exists(digest):  # deleted while it was being read
                raise missing(digest) from None
            raise

    async def path(self, digest: str) -> Path | None:
        return None

    async def open_copy(self, digest: str, directory: Path) -> Path:
        partial = directory / f".{required(digest)}.{uuid.uuid4().hex}"
        found = hashlib.sha256()
        try:
            with partial.open("xb") as file:
                async for piece in self._pieces(digest):
                    found.update(piece)
                    await asyncio.to_thread(file.write, piece)
            await self._verify(digest, found.hexdigest())
            return partial.replace(directory / digest)
        finally:
            partial.unlink(missing_ok=True)

    async def exists(self, digest: str) -> bool:
        return is_digest(digest) and await self._size(digest) is not None

    async def list(self, older_than_ms: int = 0) -> AsyncIterator[tuple[str, int]]:
        after = ""
        while True:
            with _reported():
                async with self._connect() as connection:
                    rows = await connection.fetch(_AGES, after, older_than_ms)
            for digest, age_ms in rows:
                yield digest, max(0, age_ms)
            if not rows:
                return
            after = rows[-1][0]

    async def delete(self, digest: str, older_than_ms: int = 0) -> bool:
        async with self._transaction(self._large) as connection:
            deleted = await connection.fetchval(_HEAD_DELETE, digest, older_than_ms)
            if deleted:
                await connection.execute("DELETE FROM blob_part WHERE hash = $1", digest)
        return bool(deleted)

    async def tidy(self, older_than_ms: int) -> int:
        return 0  # an interrupted put is a rolled-back transaction

    async def _size(self, digest: str) -> int | None:
        with _reported():
            async with self._connect() as connection:
                size: int | None = await connection.fetchval(
                    "SELECT size FROM blob_head WHERE hash = $1", digest
                )
        return size

    async def _pieces(self, digest: str) -> AsyncGenerator[bytes, None]:
        """The stored parts in order, one of them in memory at a time, no connection held between them."""
        size = await self._size(required(digest))
        if size is None:
            raise missing(digest)
        for part in range(-(-size // CHUNK_BYTES)):
            with _reported():
                async with self._connect() as connection:
                    data = await connection.fetchval(_PART_GET, digest, part)
            if data is not None:  # else it is deleted meanwhile, which `_verify` reports
                yield data

    async def _verify(self, digest: str, found: str) -> None:
        if found == digest:
            return
        if not await self.exists(digest):  # deleted while it was being read
            raise missing(digest)
        raise corrupt(digest, found)

    @asynccontextmanager
    async def _putting(self, digest: str, size: int) -> AsyncIterator[Putting]:
        small = size <= CHUNK_BYTES
        async with self._transaction(self._small if small else self._large) as connection:
            if not small:
                await connection.execute(WAIT)
            await connection.fetchrow(_HEAD_PUT, digest, size)
            yield Putting(connection, digest, self._others)

    @asynccontextmanager
    async def _transaction(self, places: asyncio.Semaphore) -> AsyncIterator[Connection]:
        with _reported():
            async with places, self._connect() as connection, transaction(connection):
                yield connection


class Putting:
    """A blob that is being written, part by part.

    A commit waits until the log of all that was written before it is on the disk. Without rests a large blob would keep
    the commits of others waiting until its last part is there.
    """

    def __init__(self, connection: Connection, digest: str, others: Callable[[], bool]) -> None:
        self._connection, self._digest, self._others = connection, digest, others
        self._parts, self._rest_s = 0, REST_MAX_S

    async def part(self, piece: bytes | memoryview) -> None:
        """Write the next part; rest after a full one if others are at work."""
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        await self._connection.execute(_PART_PUT, self._digest, self._parts, piece)
        self._parts += 1
        rest_s = min(self._rest_s, REST * (now_s() - began_s))
        if len(piece) == CHUNK_BYTES and rest_s and self._others():
            self._rest_s -= rest_s
            await asyncio.sleep(rest_s)


@contextmanager
def _reported() -> Iterator[None]:
    """The driver's errors as ours: try again, not reachable, or refused."""
    import asyncpg

    busy = (asyncpg.TransactionRollbackError, asyncpg.LockNotAvailableError)
    away = (
        OSError,
        asyncpg.InterfaceError,
        asyncpg.PostgresConnectionError,
        asyncpg.OperatorInterventionError,
        asyncpg.InsufficientResourcesError,
    )
    try:
        yield
    except busy as error:
        raise StoreBusy(f"blobs in the database: {error}") from error
    except away as error:
        raise StoreUnavailable(f"blobs in the database: {error}") from error
    except asyncpg.PostgresError as error:
        raise StoreError(f"blobs in the database: {error}") from error
