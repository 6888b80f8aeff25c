"""Blobs that take long to write leave connections of the pool to those who read."""

from __future__ import annotations

import asyncio
import os

import asyncpg
import pytest

from perdure import AsyncPerdure
from perdure.store.blobs.table import SMALL_MAX, WRITES_MAX
from perdure.store.walks import READERS

pytestmark = pytest.mark.full


def test_whoever_reads_does_not_wait_for_blobs_that_are_written(postgres_store_url: str) -> None:
    async def run() -> None:
        app = AsyncPerdure(postgres_store_url)
        await app.start()
        holder = await asyncpg.connect(postgres_store_url)
        try:
            async with holder.transaction():
                await holder.execute("LOCK TABLE blob_head IN EXCLUSIVE MODE")  # whoever writes waits
                writes = [
                    asyncio.create_task(app.blobs.put(os.urandom(size))) for size in READERS * [99, 2 << 20]
                ]
                waiting = (
                    "SELECT count(*) FROM pg_locks WHERE relation = 'blob_head'::regclass AND NOT granted"
                )
                while await holder.fetchval(waiting) < WRITES_MAX + SMALL_MAX:
                    await asyncio.sleep(0.01)
                async with asyncio.timeout(20):
                    assert await app.store.keys() == []
                    assert not await app.blobs.exists("0" * 64)
            assert len(set(await asyncio.gather(*writes))) == 2 * READERS
        finally:
            await holder.close()
            await app.close()

    asyncio.run(run())
