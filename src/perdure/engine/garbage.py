"""Blobs that no row names. One may be about to be named, so only what was not touched for a day is collected."""

from __future__ import annotations

from perdure.store.blobs import Blobs, own
from perdure.store.sql_store import SqlStore

DAY_MS = 86_400_000


async def collect(store: SqlStore, blobs: Blobs, older_than_ms: int = DAY_MS, limit: int = 10_000) -> int:
    """Delete nameless blobs of that age, `limit` at most, and leftovers of broken uploads; how many blobs went."""
    await own(store, blobs)  # the mark may have changed since we began
    if not await store.schema_fits():
        return 0  # a newer release may name blobs in rows that we do not know of
    gone = 0
    async for digest, _ in blobs.list(older_than_ms):
        if gone >= limit:
            break
        if not await store.blob_named(digest):
            gone += await blobs.delete(digest, older_than_ms)
    await blobs.tidy(older_than_ms)
    return gone
