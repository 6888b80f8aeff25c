"""A slow link to PostgreSQL: the limit on idle transactions is for clients that are frozen, not for those that send."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perdure import Pipeline
from perdure.app import AsyncPerdure
from perdure.store.blobs.table import TableBlobs
from perdure.store.open import open_store
from tests.faults.bouncer import Bouncer
from tests.faults.proxy import Proxy
from tests.store.making import document

pytestmark = pytest.mark.full

MEGABYTE = 1_000_000
#: What a server waits for an idle client, as our sessions set it.
IDLE_S = 5
pipeline = Pipeline("slow")


@pipeline.stage
async def keep(doc: object) -> int:
    return 1


@pytest.fixture
def slow(postgres_store_url: str) -> Iterator[Proxy]:
    """A link that carries 1 MB/s."""
    with Proxy(postgres_store_url, {}) as proxy:
        proxy.bytes_per_s = MEGABYTE
        yield proxy


def test_a_document_of_more_than_the_link_carries_in_the_limit(slow: Proxy, tmp_path: Path) -> None:
    """Ten megabytes take twice as long as a server waits for an idle client."""
    file = tmp_path / "large"
    file.write_bytes(os.urandom(2 * IDLE_S * MEGABYTE))

    async def add() -> bytes:
        app = AsyncPerdure(slow.url, pipelines=[pipeline])
        await app.start()
        try:
            await app.add(path=file, pipeline=pipeline)
            return await app.blobs.get(hashlib.sha256(file.read_bytes()).hexdigest())
        finally:
            await app.close()

    assert asyncio.run(add()) == file.read_bytes()


def test_a_part_of_a_blob_has_half_a_minute(slow: Proxy) -> None:
    """One part over a link of 100 kB/s takes ten seconds."""
    data = os.urandom(MEGABYTE)

    async def put() -> None:
        store = open_store(slow.url)
        await store.open()
        slow.bytes_per_s = MEGABYTE / 10
        digest = await TableBlobs(store.driver.reading).put(data)  # type: ignore[attr-defined]
        slow.bytes_per_s = 100 * MEGABYTE
        assert await TableBlobs(store.driver.reading).get(digest) == data  # type: ignore[attr-defined]
        await store.close()

    asyncio.run(put())


def test_a_flush_of_more_than_the_link_carries_in_the_limit(slow: Proxy, postgres_store_url: str) -> None:
    _add_in_one_flush(slow.url, postgres_store_url)


def test_a_flush_over_a_slow_link_to_a_pooler(postgres_store_url: str) -> None:
    """There statement and values come in one go: to the server the client is not idle, and might be frozen."""
    with Bouncer(postgres_store_url) as bouncer, Proxy(bouncer.url, {}) as slow:
        slow.bytes_per_s = MEGABYTE
        _add_in_one_flush(slow.url, postgres_store_url)


def _add_in_one_flush(url: str, postgres_store_url: str) -> None:
    """300 documents with their content in their rows, while another client ends the sessions of frozen ones."""
    documents = [replace(document(f"n{n}"), inline=b"x" * 30_000) for n in range(300)]

    async def add() -> None:
        store, other = open_store(url), open_store(postgres_store_url)
        await other.open()
        await store.open()
        adding = asyncio.create_task(store.add(documents))
        while not adding.done():
            await other.tend()
            await asyncio.wait({adding}, timeout=0.5)
        assert {added.answer for added in adding.result()} == {"added"}
        assert store.flusher.flushes == 1
        await store.close()
        await other.close()

    asyncio.run(add())
