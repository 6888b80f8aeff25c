"""Planted bugs in what is told, asked for once, counted, requeued, purged and swept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from perdure.engine import recovery
from perdure.engine import stuck as sweeping
from perdure.store import archive, feed, once, stuck
from perdure.store.base import Query, Steps
from perdure.store.counting import Counting
from perdure.store.operations import Add, Added, NewDocument, Once, Settle
from perdure.store.sql_store import SqlStore
from tests.sim.planting import breaks, sql


@breaks("feed")
def ends_told_afterwards() -> Iterator[None]:
    """A document ends in one transaction, and the feed tells of it in the next."""
    whole, told = SqlStore.settle, feed.ended

    async def settle(self: SqlStore, op: Settle) -> bool:
        kept = await whole(self, op)
        for row in told([op], await self.now_ms()) if kept else ():
            await self._change(Query(self.sql.FEED_ADD, row))
        return kept

    with mock.patch.object(SqlStore, "settle", settle), mock.patch.object(feed, "ended", return_value=[]):
        yield


@breaks("once")
def keys_beside_the_transaction() -> Iterator[None]:
    """Whether a key was used is looked up before, and that it was is written afterwards."""

    async def add_once(self: SqlStore, key: Once, documents: Sequence[NewDocument]) -> once.Answer:
        if known := await self._rows(once.GET, key.org, key.key):
            if known[0][0] != key.request:
                raise once.KeyReused(key.key)
            return await self._read(lambda: once.again(key))
        added: list[Added] = await self.flusher.submit(Add(tuple(documents)))

        def steps() -> Steps[None]:
            yield Query(once.ADD, (key.org, key.key, key.request, 0))
            yield from once.end(key, documents, added)

        await self._write(steps)
        return once.Answer(added, False)

    with mock.patch.object(SqlStore, "add_once", add_once):
        yield


@breaks("counters")
def requeued_and_still_listed_as_dead() -> Iterator[None]:
    """A document goes on, and stays in the list of the dead."""
    with sql("DEAD_DROP", "WHERE", "WHERE FALSE AND"):
        yield


@breaks("orphan")
def purged_without_its_chunks() -> Iterator[None]:
    """What a document was found by is left behind."""

    def unindexed(*_: Any) -> Steps[int]:
        yield from ()
        return 0

    with mock.patch.object(archive, "_unindexed", unindexed):
        yield


@breaks("counters")
def cancelled_documents_uncounted() -> Iterator[None]:
    """Whoever counts forgets one state."""
    whole = Counting.document

    def document(self: Counting, org: str, collection: str, was: str | None, state: str | None) -> None:
        whole(self, org, collection, was, None if state == "cancelled" else state)

    with mock.patch.object(Counting, "document", document):
        yield


@breaks("lease", "fence")
def swept_from_living_hands() -> Iterator[None]:
    """A stuck sweep takes what is old, whether or not somebody has it in hand."""
    whole, lease = recovery.taking_back, "coalesce(j.lease_until_ms, j.beat_ms) <= $5"
    assert lease in stuck.STUCK

    def taking_back(job: Any, ending: Any, expired_only: bool = False) -> Settle:
        return whole(job, ending)

    with (
        mock.patch.object(stuck, "STUCK", stuck.STUCK.replace(lease, "TRUE")),
        mock.patch.object(sweeping, "taking_back", taking_back),
    ):
        yield
