"""Sessions of PostgreSQL that wait for a lock: how tests bring two transactions into the middle of each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from perdure.store.sql_store import SqlStore
from tests.store.making import World

#: Long enough for any machine; the tests wait for conditions.
WAIT_S = 60.0

WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@asynccontextmanager
async def locked(world: World, query: str, *params: object) -> AsyncIterator[asyncpg.Connection]:
    """Rows that another session has locked until the block ends."""
    connection = await asyncpg.connect(world.url)
    try:
        async with connection.transaction():
            await connection.execute(f"{query} FOR UPDATE", *params)
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def uncommitted(
    world: World, store: SqlStore, writing: Coroutine[Any, Any, Any]
) -> AsyncIterator[asyncpg.Connection]:
    """A flush that has made all of its changes and waits for its counters before it commits: at the end of the block.

    The flush must count something, and the store must have counted before.
    """
    query = "SELECT 1 FROM counter WHERE client = $1"
    async with locked(world, query, store.flusher.client) as connection:
        task = asyncio.create_task(writing)
        await until_waiting(connection, 1)
        yield connection
    await task


async def until_waiting(connection: asyncpg.Connection, number: int) -> None:
    """Until so many sessions wait for a lock."""
    async with asyncio.timeout(WAIT_S):
        while await connection.fetchval(WAITING) < number:
            await asyncio.sleep(0.01)


async def waits(connection: asyncpg.Connection, task: asyncio.Task[Any], number: int = 1) -> bool:
    """Whether the task comes to wait for a lock (so many sessions do then), and not to its end."""
    waiting = asyncio.create_task(until_waiting(connection, number))
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return not task.done()
