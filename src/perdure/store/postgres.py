"""PostgreSQL through asyncpg: one connection writes, a small pool reads, one direct connection holds locks and listens.

A worker's sign of life is a session advisory lock: the server frees it when the connection is gone. Sessions bound how
long a frozen client may keep locks. `direct_url` names the unpooled address where a pooler stands in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import asyncpg

from perdure.errors import SettingInvalid, StoreBusy, StoreError, StoreUnavailable
from perdure.store.base import DataRefused, Query, Row, Steps
from perdure.store.postgres_dialect import PostgresDialect

T = TypeVar("T")
LOCK_CLASSES = {
    "webhooks": 0x7065726B,
    "push": 0x7065726C,
    "worker": 0x70657264,
    "leader": 0x70657265,
    "migrate": 0x70657266,
    "vectors": 0x70657267,
    "relay": 0x70657268,
    "stuck": 0x70657269,
    "retention": 0x7065726A,
}
CHANNEL = "perdure"
SETTINGS = {
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "5s",
    "statement_timeout": "30s",
    "client_min_messages": "warning",
    "application_name": "perdure",
}
SESSION = "; ".join(f"SET {name} = '{value}'" for name, value in SETTINGS.items())
#: The writing connection repeats a few statements that all reach their rows by key; a planner that looks at young or
#: stale statistics each time would rather read whole tables, and planning costs more than a small flush.
WRITER_SESSION = (
    f"{SESSION}; SET jit = off; SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan"
)
#: A client that is frozen between the two messages of a statement (prepare, run) is not idle to the server: neither of
#: the timeouts above ends its transaction, so whoever lives does. Ours are those that go by our name.
END_FROZEN = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND usename = current_user AND application_name = 'perdure' AND state = 'active' "
    "AND wait_event = 'ClientRead' AND xact_start IS NOT NULL AND state_change < clock_timestamp() - interval '5 s'"
)
END_FROZEN_S = 1.0
CONNECT_S = 5.0
POOL_MAX = 4
#: A link that went silent tells nobody; without this the kernel would wait for a quarter of an hour.
SILENT_S = 40.0  # longer than the server lets a statement take


class PostgresDriver:
    """The database at `url`."""

    def __init__(self, url: str, direct_url: str | None = None) -> None:
        self.url = url
        self.direct_url = direct_url or url
        self._ended_s = 0.0
        self._pooled = self.direct_url != url
        # what is set on a pooler's connection stays there for whoever gets it next
        self._writer_session = SESSION if self._pooled else WRITER_SESSION
        self.dialect = PostgresDialect()
        self._writer: asyncpg.Connection | None = None
        self._pool: asyncpg.Pool | None = None
        self._direct: asyncpg.Connection | None = None
        self._writing = asyncio.Lock()  # the flusher and the operators' verbs share one connection
        self._directing = asyncio.Lock()
        self._held: set[tuple[str, int]] = set()
        self._heard: list[Callable[[], None]] = []

    async def open(self) -> None:
        self._writer = await self._connect(self.url, self._writer_session)
        with mapped():
            self._pool = await asyncpg.create_pool(
                self.url,
                min_size=0,
                max_size=POOL_MAX,
                timeout=CONNECT_S,
                # from the start of a session they outlive what the pool resets; a pooler would refuse them there
                server_settings=None if self._pooled else SETTINGS,
                setup=_set_up if self._pooled else None,
                reset=None if self._pooled else _leave,
                max_inactive_connection_lifetime=60,
            )

    async def close(self) -> None:
        for connection in (self._writer, self._direct):
            if connection is not None:
                with suppress(Exception):
                    await connection.close(timeout=2)
        if self._pool is not None:
            with suppress(Exception):
                await asyncio.wait_for(self._pool.close(), 2)
        self._writer = self._direct = self._pool = None
        self._held.clear()

    async def _connect(self, url: str, session: str = SESSION) -> asyncpg.Connection:
        try:
            with mapped():
                connection = await asyncpg.connect(url, timeout=CONNECT_S)
                await connection.execute(session)
                return connection
        except DataRefused as error:
            raise SettingInvalid(f"the address of PostgreSQL is malformed: {error}") from error

    def _check_open(self) -> asyncpg.Pool:
        if self._pool is None:
            raise StoreError("the store is closed; open it first", code="store_closed")
        return self._pool

    # --- transactions ----------------------------------------------------------------------------

    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        async with self._writing:
            self._check_open()
            if self._writer is None or self._writer.is_closed():
                self._writer = await self._connect(self.url, self._writer_session)
            connection = self._writer
            try:
                with mapped(), _watched(connection) as heard:
                    async with connection.transaction():
                        return await drive(connection, steps(), heard)
            except StoreUnavailable:
                # whatever its state, the next try starts on a connection that is certainly ours
                self._writer = None
                connection.terminate()
                raise

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        async with self.reading() as connection:
            with _watched(connection) as heard:
                try:
                    return await drive(connection, steps(), heard)
                except Exception:
                    if not connection.is_closed():  # a value that cannot be sent leaves a transaction open
                        with suppress(Exception):
                            await connection.reset(timeout=CONNECT_S)
                    raise

    async def snapshot(self, steps: Callable[[], Steps[T]]) -> T:
        async with self.reading() as connection:
            with _watched(connection) as heard:
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    return await drive(connection, steps(), heard)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        """A connection from the pool, for reads and blobs."""
        pool = self._check_open()
        with mapped():
            async with pool.acquire(timeout=CONNECT_S) as connection:
                yield connection

    async def script(self, text: str) -> None:
        connection = await self._connect(self.direct_url)
        try:
            with mapped():
                async with connection.transaction():
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
                connection = await self._connect(self.direct_url)
                try:
                    await self._restore(connection)
                except BaseException:
                    connection.terminate()
                    raise
                self._direct = connection
            with mapped(), _watched(self._direct):
                yield self._direct

    async def _restore(self, connection: asyncpg.Connection) -> None:
        with mapped():
            for name, number in list(self._held):
                taken = await connection.fetchval(
                    "SELECT pg_try_advisory_lock($1, $2)", LOCK_CLASSES[name], number
                )
                if (
                    not taken and name == "worker"
                ):  # the server has not noticed yet that our old session is gone
                    raise StoreUnavailable(f"the lock of worker {number} is not free yet")
                if not taken:
                    self._held.discard((name, number))  # somebody else leads by now
            if self._heard:
                await connection.add_listener(CHANNEL, self._notified)

    async def lock(self, name: str, number: int) -> bool:
        async with self._direct_connection() as connection:
            if (name, number) in self._held:
                return True
            taken = bool(
                await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", LOCK_CLASSES[name], number)
            )
        if taken:
            self._held.add((name, number))
        return taken

    async def unlock(self, name: str, number: int) -> None:
        if (name, number) in self._held:
            self._held.discard((name, number))
            async with self._direct_connection() as connection:
                await connection.fetchval("SELECT pg_advisory_unlock($1, $2)", LOCK_CLASSES[name], number)

    async def locked(self, name: str, numbers: Sequence[int]) -> set[int]:
        async with self._direct_connection() as connection:
            rows = await connection.fetch(
                "SELECT CAST(objid AS bigint) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted "
                "AND CAST(classid AS bigint) = $1 "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                LOCK_CLASSES[name],
            )
        return {row[0] for row in rows} & set(numbers)

    async def tend(self) -> None:
        async with self._direct_connection() as connection:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._ended_s >= END_FROZEN_S:
                self._ended_s = now_s
                await connection.execute(END_FROZEN)

    async def up_for_s(self) -> float:
        async with self._direct_connection() as connection:
            return float(
                await connection.fetchval(
                    "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())"
                )
            )

    # --- wake-ups --------------------------------------------------------------------------------

    async def wake(self) -> None:
        async with self.reading() as connection:
            await connection.execute(self.dialect.NOTIFY)

    async def listen(self, heard: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        self._heard.append(heard)
        async with self._direct_connection() as connection:
            if len(self._heard) == 1:
                await connection.add_listener(CHANNEL, self._notified)

        async def stop() -> None:
            self._heard.remove(heard)

        return stop

    def _notified(self, *_: object) -> None:
        for heard in self._heard:
            heard()


async def _leave(_: object) -> None:
    """Reads leave nothing behind in their session, so there is nothing to reset, which would be a round trip each."""


async def _set_up(connection: Any) -> None:
    await connection.execute(SESSION)


@contextmanager
def _watched(connection: Any) -> Iterator[Callable[[], None]]:
    """Cut the connection when the server is silent for too long; whoever waits on it gets an error then.

    Gives what is to be called at each answer.
    """
    loop = asyncio.get_running_loop()
    cut = loop.call_later(SILENT_S, connection.terminate)

    def heard() -> None:
        nonlocal cut
        cut.cancel()
        cut = loop.call_later(SILENT_S, connection.terminate)

    try:
        yield heard
    finally:
        cut.cancel()


async def drive(connection: asyncpg.Connection, steps: Steps[T], heard: Callable[[], None]) -> T:
    """Run the steps on this connection; `heard` is called at each answer."""
    try:
        query = next(steps)
        while True:
            rows = await _run(connection, query)
            heard()
            query = steps.send(rows)
    except StopIteration as stop:
        answer: T = stop.value
        return answer


async def _run(connection: asyncpg.Connection, query: Query) -> list[Row]:
    if query.rows is None:
        return [tuple(row) for row in await connection.fetch(query.sql, *query.params)]
    if not query.rows:
        return []
    if "unnest(" in query.sql:
        return [
            tuple(row)
            for row in await connection.fetch(
                query.sql, *query.params, *map(list, zip(*query.rows, strict=True))
            )
        ]
    await connection.executemany(query.sql, [(*query.params, *row) for row in query.rows])
    return []


class mapped:
    """PostgreSQL's errors as ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        match error:
            case None:
                return
            case asyncpg.PostgresError() if error.sqlstate:
                raise _by_state(error.sqlstate, error) from error
            case asyncpg.DataError() | OverflowError() | UnicodeEncodeError() | TypeError():
                raise DataRefused(str(error)) from error
            case asyncpg.ClientConfigurationError():
                raise DataRefused(str(error)) from error
            case (
                asyncpg.InterfaceError() | asyncpg.InternalClientError()
            ):  # the latter when cut in mid-sentence
                raise StoreUnavailable(f"the connection to PostgreSQL was lost: {error}") from error
            case OSError() | TimeoutError():
                raise StoreUnavailable(
                    f"cannot reach PostgreSQL: {str(error) or type(error).__name__}; check the address and that it runs"
                ) from error
            case ValueError():
                raise DataRefused(str(error)) from error
            case _:
                return


def _by_state(state: str, error: BaseException) -> Exception:
    if state in ("55P03", "57014"):
        return StoreBusy(f"PostgreSQL waited for too long ({state}): {error}", code="lock_timeout")
    if state.startswith("40"):
        return StoreBusy(f"PostgreSQL was busy ({state}): {error}")
    if state in ("28P01", "28000", "3D000"):
        return SettingInvalid(
            f"PostgreSQL refused the address ({state}): {error}; check user, password and database"
        )
    if state[:2] in ("08", "53", "57", "58", "25"):
        return StoreUnavailable(f"PostgreSQL is not available ({state}): {error}")
    if state[:2] in ("21", "22", "23", "54"):
        return DataRefused(f"{state}: {error}", foreign_key=state == "23503")
    if state == "42P01":
        return StoreError(f"a table is missing ({error}); run `perdure migrate`", code="schema_outdated")
    return StoreError(f"PostgreSQL {state}: {error}")
