"""Operations of the real store on the real PostgreSQL, held before each of their statements until they are let go.

A `Side` is one operation, with a connection of its own. Its driver runs the statements of a transaction as the
product's driver does, and waits for leave before each statement and before COMMIT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from perdure.store.base import Query, Row, Steps
from perdure.store.postgres import PostgresDriver, drive
from perdure.store.postgres_errors import mapped
from perdure.store.reading import one

T = TypeVar("T")
COMMIT = "COMMIT"
#: PostgreSQL looks for a deadlock after this time; the default of a second would be most of the time of a run.
SESSION = "SET deadlock_timeout = '10ms'; SET synchronous_commit = off"
LOOK_S = 0.003
PATIENCE_S = 60.0


class Side:
    """One operation. It stands before the statement `at`, or is under way, or has ended with `answer` or `error`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.at = ""
        self.stands = asyncio.Event()
        self.ended = False
        self.blocked = False
        self.answer: Any = None
        self.error: Exception | None = None
        self.deadlocks: list[str] = []
        self.steps = 0
        self._leave = asyncio.Event()

    async def run(self, operation: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.answer = await operation()
        except Exception as error:
            self.error = error
        self.ended = True
        self.stands.set()

    async def before(self, statement: str) -> None:
        """Wait for leave to run this statement."""
        self.at = statement
        self._leave.clear()
        self.stands.set()
        await self._leave.wait()

    def go(self) -> None:
        """Let it run the statement that it stands before."""
        self.steps += 1
        self.stands.clear()
        self._leave.set()


class SteppedDriver(PostgresDriver):
    """The product's driver; while it has a side, each statement waits for leave."""

    side: Side | None = None

    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        if self.side is None:
            return await super().write(steps)
        async with self._writer.turn:
            assert self._writer.connection is not None
            with mapped():
                return await self._transaction(self._writer.connection, self.side, steps)

    async def _transaction(
        self, connection: asyncpg.Connection, side: Side, steps: Callable[[], Steps[T]], **how: Any
    ) -> T:
        transaction = connection.transaction(**how)
        await transaction.start()
        try:
            answer = await _drive(connection, steps(), side)
            await side.before(COMMIT)
        except asyncpg.DeadlockDetectedError:
            side.deadlocks.append(side.at)
            await transaction.rollback()
            raise
        except BaseException:
            await transaction.rollback()
            raise
        await transaction.commit()
        return answer

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        if self.side is None:
            return await super().read(steps)
        async with self.reading() as connection:
            return await _drive(connection, steps(), self.side)

    async def snapshot(self, steps: Callable[[], Steps[T]]) -> T:
        if self.side is None:
            return await super().snapshot(steps)
        async with self.reading() as connection:
            return await self._transaction(
                connection, self.side, steps, isolation="repeatable_read", readonly=True
            )

    async def session(self) -> int:
        """Set the writing session up; its process id."""
        assert self._writer.connection is not None
        await self._writer.connection.execute(SESSION)
        pid: int = await self._writer.connection.fetchval("SELECT pg_backend_pid()")
        return pid


async def _drive(connection: asyncpg.Connection, steps: Steps[T], side: Side) -> T:
    try:
        query: Query = next(steps)
        while True:
            await side.before(query.sql)
            found: list[Row] = await drive(connection, one(query)(), _heard)
            query = steps.send(found)
    except StopIteration as stop:
        answer: T = stop.value
        return answer


def _heard(more_s: float = 0.0) -> None:
    """Nobody cuts the connection here."""


class Watch:
    """Says whether a session waits for a lock, by PostgreSQL's word."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def blocked(self, pid: int) -> bool:
        return bool(await self._connection.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", pid))

    async def settled(self, side: Side, pid: int) -> None:
        """Wait until the side stands before its next statement, has ended, or waits for a lock of the other."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + PATIENCE_S
        while True:
            try:
                await asyncio.wait_for(side.stands.wait(), LOOK_S)
            except TimeoutError:
                if await self.blocked(pid) and not side.stands.is_set():
                    side.blocked = True
                    return
                assert loop.time() < give_up_s, f"{side.name} does not get on: {side.at}"
            else:
                side.blocked = False
                return
