"""Planted bugs in what documents are found by: chunks and connections."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

from perdure.core.model import Job
from perdure.store import indexing
from perdure.store.base import Row, Steps
from perdure.store.dialect import Dialect
from tests.sim.planting import breaks, sql


@breaks("indexed")
def late_follow_ups_connect() -> Iterator[None]:
    """What a follow-up found counts although its document has other chunks by now."""
    whole = indexing._lock

    def lock(sql: Dialect, job: Job) -> Steps[Row]:
        revision, _, collection = yield from whole(sql, job)
        return revision, 0, collection

    with mock.patch.object(indexing, "_lock", lock):
        yield


@breaks("indexed")
def superseded_chunks_stay() -> Iterator[None]:
    """New chunks come, and those that they replace do not go."""
    with sql("CHUNK_DROP", "WHERE", "WHERE FALSE AND"):
        yield
