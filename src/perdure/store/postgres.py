"""PostgreSQL through asyncpg: one connection writes, a small pool reads, one direct connection holds locks and listens.

A worker's sign of life is a session advisory lock: the server frees it when the connection is gone. Sessions bound how
long a frozen client may keep locks. `direct_url` names the unpooled address where a pooler stands in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg

from perdure.errors import StoreError, StoreUnavailable
from perdure.store.base import OldestWriter, Query, Row, Steps
from perdure.store.postgres_dialect import PostgresDialect
from perdure.store.postgres_errors import mapped
from perdure.store.postgres_sending import LARGE_BYTES, Allow, allow, weight
from perdure.store.postgres_session import CONNECT_S, WRITER_LOCAL, Heard, Sessions, watched
from perdure.store.postgres_transaction import transaction

T = TypeVar("T")
#: Where our tables are, or will be: locks are the database's, and each of its schemas may hold a store.
SCOPE = (
    "SELECT coalesce((SELECT CAST(relnamespace AS bigint) FROM pg_class WHERE oid = to_regclass('migration')), "
    "(SELECT CAST(oid AS bigint) FROM pg_namespace WHERE nspname = current_schema()), 0)"
)
CHANNEL = "perdure"
#: A migration may rewrite a large table; only its wait for locks stays short, because everybody waits behind it.
UNLIMITED = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
#: A client that is frozen between the two messages of a statement (prepare, run) is not idle to the server: neither of
#: the timeouts above ends its transaction, so whoever lives does. Ours are those that go by our name.
END_FROZEN = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND usename = current_user AND application_name = 'perdure' AND state = 'active' "
    "AND wait_event = 'ClientRead' AND xact_start IS NOT NULL AND state_change < clock_timestamp() - interval '5 s'"
)
END_FROZEN_S = 1.0
#: By its number, because that is what readers of the feed go by. Other users' sessions are seen by a superuser or with
#: pg_read_all_stats only.
OLDEST_WRITER = (
    "SELECT t.pid, t.name, t.database, CAST(extract(epoch FROM clock_timestamp() - t.began) * 1000 AS bigint) FROM ("
    "SELECT pid, coalesce(nullif(application_name, ''), usename) AS name, datname AS database, xact_start AS began, "
    "age(backend_xid) AS age FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() "
    "UNION ALL SELECT NULL, gid, database, prepared, age(transaction) FROM pg_prepared_xacts) AS t "
    "ORDER BY t.age DESC LIMIT 1"
)


@dataclass(slots=True)
class Writing:
    """A connection that writes, one transaction at a time: the flusher and the operators' verbs share one."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: asyncpg.Connection | None = None


class PostgresDriver:
    """The database at `url`."""

    lost: StoreError | None = None  # the server cares for its files

    def __init__(self, url: str, direct_url: str | None = None) -> None:
        self._sessions = Sessions(url, direct_url)
        self._ended_s = 0.0
        self._interrupted_s = -math.inf  # when the connection that holds locks had to be made again
        self.dialect = PostgresDialect()
        self._writer, self._aside = Writing(), Writing()
        self._pool: asyncpg.Pool | None = None
        self._direct: asyncpg.Connection | None = None
        self._directing = asyncio.Lock()
        self._scope = 0  # the schema's number, once a direct connection is open
        self._held: set[tuple[str, int]] = set()
        self._heard: list[Callable[[], None]] = []

    async def open(self) -> None:
        self._writer.connection = await self._sessions.writer()
        self._pool = await self._sessions.pool()

    async def close(self) -> None:
        for connection in (self._writer.connection, self._aside.connection, self._direct):
            if connection is not None:
                with suppress(Exception):
                    await connection.close(timeout=2)
        if self._pool is not None:
            with suppress(Exception):
                await asyncio.wait_for(self._pool.close(), 2)
        self._writer.connection = self._aside.connection = self._direct = self._pool = None
        self._held.clear()

    def _check_open(self) -> asyncpg.Pool:
        if self._pool is None:
            raise StoreError("the store is closed; open it first", code="store_closed")
        return self._pool

    # --- transactions ----------------------------------------------------------------------------

    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._write(self._writer, steps)

    async def write_aside(self, steps: Callable[[], Steps[T]]) -> T:
        return await self._write(self._aside, steps)

    async def _write(self, writing: Writing, steps: Callable[[], Steps[T]]) -> T:
        async with writing.turn:
            self._check_open()
            if writing.connection is None or writing.connection.is_closed():
                writing.connection = await self._sessions.writer()
            connection = writing.connection
            try:
                with mapped(), watched(connection) as heard:
                    async with self._sessions.transaction(connection, WRITER_LOCAL):
                        return await drive(connection, steps(), heard, large=allow)
            except StoreUnavailable:
                # whatever its state, the next try starts on a connection that is certainly ours
                writing.connection = None
                connection.terminate()
                raise

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        async with self.reading() as connection:
            with watched(connection) as heard:
                try:
                    return await drive(connection, steps(), heard)
                except Exception:
                    # a value that cannot be sent leaves a transaction open
                    if not self._sessions.pooled:
                        with suppress(Exception):  # it may be closed
                            await connection.reset(timeout=CONNECT_S)
                    raise

    async def snapshot(self, steps: Callable[[], Steps[T]]) -> T:
        async with self._acquired() as connection:
            with watched(connection) as heard:
                async with self._sessions.transaction(connection, isolation="repeatable_read", readonly=True):
                    return await drive(connection, steps(), heard)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        """A connection from the pool, for reads and blobs; behind a pooler, one transaction of it."""
        async with self._acquired() as connection:
            if not self._sessions.pooled:
                yield connection
                return
            async with self._sessions.transaction(connection):
                yield connection

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator[Any]:
        pool = self._check_open()
        with mapped():
            async with pool.acquire(timeout=CONNECT_S) as connection:
                yield connection

    async def script(self, text: str) -> None:
        connection = await self._sessions.direct()
        try:
            with mapped():
                async with transaction(connection):
                    await connection.execute(UNLIMITED)
                    await connection.execute(text)
        finally:
            await connection.close()

    # --- locks that die with their connection ----------------------------------------------------

    @asynccontextmanager
    async def _direct_connection(self) -> AsyncIterator[asyncpg.Connection]:
        """The connection that holds locks and listens; if it was lost, a new one that holds and listens the same."""
        async with self._directing:
            self._check_open()
            if self._direct is None or self._direct.is_closed():
                connection = await self._sessions.direct()
                try:
                    with mapped():
                        self._scope = await connection.fetchval(SCOPE)
                    await self._restore(connection)
                except BaseException:
                    connection.terminate()
                    raise
                if self._direct is not None:
                    self._interrupted_s = asyncio.get_running_loop().time()
                self._direct = connection
            with mapped(), watched(self._direct):
                yield self._direct

    async def _restore(self, connection: asyncpg.Connection) -> None:
        with mapped():
            for name, number in list(self._held):
                taken = await connection.fetchval(
                    "SELECT pg_try_advisory_lock($1, $2)", self._lock_class(name), number
                )
                if (
                    not taken and name == "worker"
                ):  # the server has not noticed yet that our old session is gone
                    raise StoreUnavailable(f"the lock of worker {number} is not free yet")
                if not taken:
                    self._held.discard((name, number))  # somebody else leads by now
            if self._heard:
                await connection.add_listener(CHANNEL, self._notified)

    def _lock_class(self, name: str) -> int:
        """What sets locks of this name and of our schema apart from all others in the database."""
        hashed = hashlib.sha256(f"perdure {name} {self._scope}".encode()).digest()
        return int.from_bytes(hashed[:4]) >> 1  # PostgreSQL shows it without its sign

    async def lock(self, name: str, number: int) -> bool:
        async with self._direct_connection() as connection:
            if (name, number) in self._held:
                return True
            taken = bool(
                await connection.fetchval(
                    "SELECT pg_try_advisory_lock($1, $2)", self._lock_class(name), number
                )
            )
        if taken:
            self._held.add((name, number))
        return taken

    async def unlock(self, name: str, number: int) -> None:
        if (name, number) in self._held:
            self._held.discard((name, number))
            async with self._direct_connection() as connection:
                await connection.fetchval("SELECT pg_advisory_unlock($1, $2)", self._lock_class(name), number)

    async def locked(self, name: str, numbers: Sequence[int]) -> set[int]:
        async with self._direct_connection() as connection:
            rows = await connection.fetch(
                "SELECT CAST(objid AS bigint) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted "
                "AND CAST(classid AS bigint) = $1 "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                self._lock_class(name),
            )
        return {row[0] for row in rows} & set(numbers)

    async def tend(self) -> None:
        async with self._direct_connection() as connection:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._ended_s >= END_FROZEN_S:
                self._ended_s = now_s
                await connection.execute(END_FROZEN)

    async def location(self) -> str:
        async with self._direct_connection() as connection:
            database = await connection.fetchval(
                "SELECT CAST(oid AS bigint) FROM pg_database WHERE datname = current_database()"
            )
            may = await connection.fetchval("SELECT has_function_privilege('pg_control_system()', 'execute')")
            cluster = (
                await connection.fetchval("SELECT system_identifier FROM pg_control_system()") if may else ""
            )
        return f"cluster {cluster} database {database} schema {self._scope}"

    async def oldest_writer(self) -> OldestWriter | None:
        async with self.reading() as connection:
            row = await connection.fetchrow(OLDEST_WRITER)
        return None if row is None else OldestWriter(*row)

    def exposed(self) -> None:
        return None  # the server cares for its files

    async def durability(self) -> dict[str, str]:
        async with self._direct_connection() as connection:
            # what the session began with; ours may have changed it since
            rows = await connection.fetch(
                "SELECT name, reset_val FROM pg_settings WHERE name IN ('synchronous_commit', 'fsync') ORDER BY name"
            )
        return {row[0]: row[1] for row in rows}

    async def up_for_s(self) -> float:
        async with self._direct_connection() as connection:
            server_s = float(
                await connection.fetchval(
                    "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())"
                )
            )
            return min(server_s, asyncio.get_running_loop().time() - self._interrupted_s)

    # --- wake-ups --------------------------------------------------------------------------------

    async def wake(self) -> None:
        async with self.reading() as connection:
            await connection.execute(self.dialect.NOTIFY)

    async def listen(self, heard: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        self._heard.append(heard)
        try:
            async with self._direct_connection() as connection:
                await connection.add_listener(CHANNEL, self._notified)  # once, however often it is added
        except BaseException:
            self._heard.remove(heard)
            raise

        async def stop() -> None:
            self._heard.remove(heard)

        return stop

    def _notified(self, *_: object) -> None:
        for heard in self._heard:
            heard()


async def drive(
    connection: asyncpg.Connection, steps: Steps[T], heard: Heard, large: Allow | None = None
) -> T:
    """Run the steps on this connection; `heard` is called at each answer, `large` before a message of many bytes."""
    try:
        query = next(steps)
        while True:
            rows = await _run(connection, query, heard, large)
            heard()
            query = steps.send(rows)
    except StopIteration as stop:
        answer: T = stop.value
        return answer


async def _run(connection: asyncpg.Connection, query: Query, heard: Heard, large: Allow | None) -> list[Row]:
    columns: list[list[Any]] = []
    if query.rows is not None:
        if not query.rows:
            return []
        columns = list(map(list, zip(*query.rows, strict=True)))
    if large is not None and (size := weight(query.params) + weight(columns)) > LARGE_BYTES:
        await large(connection, size, heard)
    if query.rows is None or "unnest(" in query.sql:
        return [tuple(row) for row in await connection.fetch(query.sql, *query.params, *columns)]
    await connection.executemany(query.sql, [(*query.params, *row) for row in query.rows])
    return []
