"""Planted bugs in the order of things: who runs when, what is written down, what is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any
from unittest import mock

from perdure.core.outcome import Later, Orphaned
from perdure.engine import recovery
from perdure.engine.availability import Availability
from perdure.engine.keeper import Keeper
from perdure.store import apply, entering, rows
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import Counting
from perdure.store.fairness import Flow
from perdure.store.operations import Claim, Kind, Settle
from perdure.store.sql_store import SqlStore
from tests.sim.planting import breaks, sql

KINDS: Callable[[Claim], list[Kind]] = Claim.kinds.fget  # type: ignore[attr-defined]


@breaks("orphan")
def children_before_their_parent() -> Iterator[None]:
    """Child documents are added first, the stage that made them is saved afterwards."""
    whole = SqlStore.settle

    async def settle(self: SqlStore, op: Settle) -> bool:
        if op.save is not None and op.save.documents:
            await self.add(op.save.documents)
        return await whole(self, op)

    with mock.patch.object(SqlStore, "settle", settle):
        yield


@breaks("orphan")
def prune_takes_the_dead() -> Iterator[None]:
    """Those that an operator should look at are cleared away with the done."""
    ended, dead = "IN ('done', 'cancelled')", "IN ('done', 'cancelled', 'dead')"
    with (
        sql("PRUNE_AGED", ended, dead),
        sql("PRUNE_BEYOND", ended, dead),
        sql("PRUNE_JOB", ended, dead),
    ):
        yield


@breaks("orphan")
def prune_leaves_items() -> Iterator[None]:
    """Items stay when their job is cleared away."""
    with sql("PRUNE_ITEM", "WHERE", "WHERE FALSE AND"):
        yield


@breaks("orphan")
def the_dead_stay_registered() -> Iterator[None]:
    """What a dead worker had in hand is taken back, but nobody forgets the worker."""

    async def bury(self: Keeper, worker: int) -> None:
        lost = [(job, Orphaned(job.stage, "dead")) for job in await self.store.in_hand(worker)]
        await recovery.recover(self.store, self.events, lost, "dead")

    with mock.patch.object(Keeper, "_bury", bury):
        yield


@breaks("size")
def a_stage_makes_documents_small() -> Iterator[None]:
    """The lane of the next stage is that of small documents."""
    with mock.patch.object(rows, "like", lambda lane, other: lane):
        yield


@breaks("size")
def small_when_requeued() -> Iterator[None]:
    """Nobody asks how large a document is that is requeued."""
    with mock.patch.object(apply.Flush, "job_of", lambda self, op: op.job):
        yield


@breaks("converges")
def large_documents_are_claimed_by_nobody() -> Iterator[None]:
    """A claim asks for small documents only."""
    with mock.patch.object(Claim, "kinds", property(lambda op: [k for k in KINDS(op) if not k.large])):
        yield


@breaks("service")
def held_lanes_are_claimed() -> Iterator[None]:
    """A claim does not look whether the lane is down."""
    with sql("_FLOWS", "AND l.down_ms IS NULL", ""):
        yield


@breaks("service")
def paused_queues_are_claimed() -> Iterator[None]:
    """A claim does not look whether the queue is paused."""
    with sql("_FLOWS", "AND NOT q.paused", ""):
        yield


@breaks("service")
def what_operators_hold_is_lent() -> Iterator[None]:
    """Whoever holds a dependency passes for the breaker."""
    with sql("DEPENDENCIES_HELD", "held_by,", "'breaker',"):
        yield


@breaks("service")
def what_was_lent_stays_lent() -> Iterator[None]:
    """The end of its claim does not bring a document back to its lane."""
    with sql("UNLEND", "probe = NULL, home = NULL", "probe = probe"):
        yield


@breaks("converges")
def nobody_is_lent() -> Iterator[None]:
    """What the breaker took down stays down for ever."""

    async def lend(self: SqlStore) -> int:
        return 0

    with mock.patch.object(SqlStore, "lend", lend):
        yield


@breaks("limit")
def limits_let_everybody_in() -> Iterator[None]:
    """What runs already does not count."""
    with sql("SLOT_USED", "count(*)", "0 * count(*)"):
        yield


@breaks("limit")
def gates_let_everybody_in() -> Iterator[None]:
    """What runs already does not count for its organisation or dependency."""
    with sql("IN_USE", "count(*)", "0 * count(*)"):
        yield


@breaks("limit")
def stages_enter_past_their_gate() -> Iterator[None]:
    """A worker goes on to a stage whose dependency has a limit, without a claim."""
    with mock.patch.object(Availability, "_limited", return_value=False):
        yield


@breaks("limit")
def credit_is_never_spent() -> Iterator[None]:
    """A rate lets everybody in who comes while there is credit."""
    with sql("SLOT_CREDIT", "credit = $2", "credit = max(1, $2)"):
        yield


@breaks("history")
def postponements_without_history() -> Iterator[None]:
    """Only claims that succeeded or failed are written down."""
    whole = apply.Flush.ended

    def ended(self: apply.Flush, settles: Sequence[Settle]) -> Steps[None]:
        yield from whole(self, [op for op in settles if not isinstance(op.outcome, Later)])

    with mock.patch.object(apply.Flush, "ended", ended):
        yield


@breaks("history")
def acts_not_written_down() -> Iterator[None]:
    """Nobody knows who did it."""
    values = "$1, $2, $3, $4, $5, $6, $7"
    with sql("ACT_ADD_FLUSHED", f"VALUES ({values})", f"SELECT {values} WHERE $4 NOT IN ('cancel', 'raise')"):
        yield


@breaks("counters")
def refused_writes_forgotten() -> Iterator[None]:
    """What a worker counted goes with the worker."""
    with sql("TALLY_ADD", "VALUES ($1, $2)", "VALUES ($1, 0 * $2)"):
        yield


@breaks("counters")
def held_counted_as_queued() -> Iterator[None]:
    """The tally does not know of lanes."""
    with sql("COUNTS", "'', '', down_ms FROM lane", "'', '', NULL FROM lane"):
        yield


@breaks("counters")
def promoted_and_not_counted() -> Iterator[None]:
    """What falls due is counted as waiting for ever."""
    whole = entering._promote

    def promote(
        sql: Any, due: Sequence[Row], turns: Iterator[float], keys: set[str], _: Counting
    ) -> Steps[None]:
        return whole(sql, due, turns, keys, Counting())

    with mock.patch.object(entering, "_promote", promote):
        yield


@breaks("fair")
def one_queue_for_all_organisations() -> Iterator[None]:
    """Whoever comes with a crowd is served before all that come after it."""

    numbers = count(1)

    def assign(sql: Any, wanted: Sequence[tuple[Flow, str, int]]) -> Steps[list[float]]:
        yield Query("SELECT 1")
        return [float(next(numbers)) for _ in wanted]

    with mock.patch.object(entering, "assign", assign):
        yield


@breaks("fair")
def last_come_first_served() -> Iterator[None]:
    """The newest are claimed before the oldest."""
    with (
        sql("_READY", "SELECT vt, -priority, id", "SELECT -vt, -priority, id"),
        sql("_READY", "BY vt,", "BY -vt,"),
    ):
        yield


@breaks("history")
def history_tells_another_story() -> Iterator[None]:
    """What was put off is written down as dead."""
    whole = rows._told

    def told(op: Settle) -> tuple[str, bool, int | None, str]:
        name, *rest = whole(op)
        return ("dead" if name == "later" else name, *rest)  # type: ignore[return-value]

    with mock.patch.object(rows, "_told", told):
        yield
