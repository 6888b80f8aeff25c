"""Planted bugs that show in the worlds that have a scene, see `scenes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from perdure.engine.runner import Runner
from perdure.store.archive import Archive
from perdure.store.base import Query, Row, Steps
from perdure.store.dead import Key
from perdure.store.operations import Added, NewDocument
from perdure.store.sql_store import SqlStore
from tests.sim.planting import breaks, sql


@breaks("acknowledged")
def exists_under_an_id_that_is_purged() -> Iterator[None]:
    """What is in the way of a new document is looked up first, and its id in another transaction."""
    whole = SqlStore.add

    async def add(self: SqlStore, documents: Sequence[NewDocument]) -> list[Added]:
        async def same(d: NewDocument) -> list[Row]:
            asked = [(0, d.org, d.id, d.job.pipeline, d.dedupe)]

            def steps() -> Steps[list[Row]]:
                return (yield Query(self.sql.DOCUMENT_SAME, rows=asked))

            return await self._read(steps)

        if documents and all([await same(d) for d in documents]):
            found = [await same(d) for d in documents]
            return [Added(f[0][1] if f else d.id, "exists") for f, d in zip(found, documents, strict=True)]
        return await whole(self, documents)

    with mock.patch.object(SqlStore, "add", add):
        yield


@breaks("fair")
def released_documents_keep_their_old_turns() -> Iterator[None]:
    """After an outage the backlog of one organisation comes before all others."""
    with sql("FLOW_SHIFT", "WHERE", "WHERE FALSE AND"):
        yield


@breaks("acknowledged")
def retention_looks_once() -> Iterator[None]:
    """What has ended again since retention looked at it goes all the same."""
    whole = Archive.purge

    async def purge(
        self: Archive, which: Sequence[Key], states: tuple[str, ...] = ("dead",),
        generations: Mapping[Key, int] | None = None, act: tuple[str, str] | None = None,
    ) -> dict[Key, str]:  # fmt: skip
        return await whole(self, which, states, None, act)

    with mock.patch.object(Archive, "purge", purge):
        yield


@breaks("history")
def earlier_acts_pass_for_this_one() -> Iterator[None]:
    """When a reply is lost, what the same operator did before is taken for what it asked for."""
    with sql("ACTED_AGAIN", "AND flush = $5", "AND $5 <> ''"):
        yield


@breaks("service")
def held_stages_run_in_new_workers() -> Iterator[None]:
    """A worker that has not asked yet what is down takes everything for up."""
    whole = Runner.__init__

    def init(self: Runner, *given: Any) -> None:
        whole(self, *given)
        self.availability.down = frozenset()

    with mock.patch.object(Runner, "__init__", init):
        yield
