"""Planted bugs where two features meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from perdure.core import outcome as rules
from perdure.core.model import Job, repairs
from perdure.core.outcome import Failure, Later, Outcome
from perdure.engine import saving
from perdure.engine.supervisor import Supervisor
from perdure.engine.sweeper import Sweeper
from perdure.engine.worker import Worker
from perdure.store import rows
from perdure.store.base import Row
from perdure.store.operations import Settle
from perdure.store.records import SavedStage
from perdure.store.sql_store import SqlStore
from tests.sim.planting import breaks, sql


@breaks("converges", "counters")
def answers_park_what_is_past_its_limit() -> Iterator[None]:
    """The answer for the last stage that counts sends the job back under its limit, and then lets it go."""
    whole = rows.settle_fence

    def settle_fence(ordinal: int, op: Settle, lanes_down: set[str]) -> Row:
        if op.save is not None and op.save.frees:
            op = replace(op, save=replace(op.save, frees=False))
        return whole(ordinal, op, lanes_down)

    with mock.patch.object(rows, "settle_fence", settle_fence):
        yield


@breaks("immutable")
def prune_takes_the_items_of_a_repair() -> Iterator[None]:
    """Items go with the job that is pruned, although a repair has saved some of them and is at work."""
    with sql("PRUNE_ITEM", "AND NOT EXISTS", "OR FALSE AND NOT EXISTS"):
        yield


@breaks("service")
def claims_after_a_migration() -> Iterator[None]:
    """A worker does not look what the store needs once it is open."""
    with sql("GUARD", "(SELECT max(needs) FROM migration)", "(SELECT 0 * max(needs) FROM migration)"):
        yield


@breaks("converges", "reason")
def outages_counted_as_postponements() -> Iterator[None]:
    """A stage that says that its dependency is down may say so only so often."""

    def doubtful(job: Job, failure: Failure, rand: Any) -> Outcome:
        return rules._given_back(job, Later(1_000, failure.message, failure, job.suspect))

    with mock.patch.object(rules, "_dependency_doubtful", doubtful):
        yield


@breaks("fence", "progress")
def finished_after_it_was_cancelled() -> Iterator[None]:
    """The end of a stage counts although an operator has cancelled the document meanwhile."""
    with sql("_FINISH", "AND token = $5 AND state = 'running'", "AND $5 IS NOT NULL"):
        yield


@breaks("service")
def claims_what_it_does_not_have() -> Iterator[None]:
    """A worker of one release claims the pipelines of another."""
    with mock.patch.object(Worker, "serves", None):
        yield


@breaks("lease")
def clocks_end_leases() -> Iterator[None]:
    """A clock that is set ahead ends the lease of everybody who lives."""

    async def lost(self: Sweeper, expired: list[Job]) -> list[Job]:
        return expired

    with mock.patch.object(Sweeper, "_lost", lost):
        yield


@breaks("lease")
def late_claims_wait_for_their_lease() -> Iterator[None]:
    """What a worker process claimed with a commit that arrived after its death is left where it is."""

    async def nothing(self: Supervisor) -> None: ...

    with mock.patch.object(Supervisor, "_give_back_late_claims", nothing):
        yield


@breaks("immutable")
def repairs_begin_with_the_first_stage() -> Iterator[None]:
    """A repair takes up nothing that an earlier generation saved."""
    whole = saving.usable

    def usable(saves: Sequence[SavedStage], job: Job, pipeline: Any) -> dict[str, SavedStage]:
        if repairs(job.key):
            saves = [save for save in saves if save.generation == job.generation and save.degraded]
        return whole(saves, job, pipeline)

    with mock.patch.object(saving, "usable", usable):
        yield


@breaks("converges")
def renamed_stages_stay_degraded() -> Iterator[None]:
    """A repair takes the mark away of stages that it knows, and of no others."""
    with sql("SAVED_REPAIRED", "AND degraded", "AND degraded AND FALSE"):
        yield


@breaks("whole", "converges")
def gathered_before_all_has_ended() -> Iterator[None]:
    """A stage gathers what there is."""
    whole = SqlStore.gathered

    async def gathered(self: SqlStore, job: Job, since: int) -> Any:
        with sql("SPAWNED", "WHERE", "WHERE FALSE AND"):
            return await whole(self, job, since)

    with mock.patch.object(SqlStore, "gathered", gathered):
        yield
