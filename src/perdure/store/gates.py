"""Limits of organisations and dependencies. Steps used by `apply` and `entering`.

Every job passes these gates when it is claimed. What a gate lets through is counted from the jobs that run, so no slot
can leak. A job that finds its gate full is `parked` under the gate's key; its own key, if it has one, is kept in
`limit_own`, and takes no room meanwhile. Claims let the first of those in again, before they look for jobs.

A store without such limits has no row to look at: the guard of a flush tells so, and nothing here runs.
All rows of gates are locked together, after those of other limits; a key's own limit is only tried after that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from perdure.core.limit_key import gates_of
from perdure.store import fairness, ranks, rotation
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import Counting
from perdure.store.dialect import Dialect
from perdure.store.operations import Claim, Kind

#: Jobs that wait at one gate and are looked at in one flush.
LET_IN_MAX = 100
#: Jobs that a claim looks at beyond those that it asks for.
WINDOW = 64
#: How often a claim looks again after it has parked jobs of full gates.
ROUNDS = 8


@dataclass(slots=True)
class Gate:
    """The limit of one organisation or dependency."""

    key: str
    concurrency: int | None
    rate: float | None
    credit: float
    had: str | None  # see `ranks`
    waits: bool  # somebody waits for room
    used: int = 0
    spent: int = 0  # let through by this flush

    @property
    def room(self) -> int:
        room = LET_IN_MAX if self.concurrency is None else self.concurrency - self.used
        return room if self.rate is None else min(room, int(self.credit))


@dataclass(slots=True)
class Gates:
    """All gates as one flush sees them. `locked`: nobody else lets a job through until it is committed."""

    gates: dict[str, Gate]
    locked: bool
    parked: int = 0  # jobs that this flush parked
    own: set[str] = field(default_factory=set)  # limits of keys that may have room now

    def full(self, org: str, lane: str) -> str | None:
        """The first gate of such a job that has no room."""
        return next((g.key for g in self._of(org, lane) if g.room <= 0), None)

    def touches(self, org: str, lane: str) -> bool:
        return any(True for _ in self._of(org, lane))

    def through(self, org: str, lane: str, number: int = 1) -> None:
        """Such a job begins, or (-1) does not after all."""
        for gate in self._of(org, lane):
            gate.used += number
            gate.spent += number
            gate.credit -= number

    def _of(self, org: str, lane: str) -> Iterable[Gate]:
        return (self.gates[key] for key in gates_of(org, lane) if key in self.gates)


def look(sql: Dialect, now_ms: int, lock: bool) -> Steps[Gates]:
    """The gates with what they have let through."""
    gates = {}
    for key, concurrency, rate, credit, credit_ms, had, waits in (
        yield Query(sql.GATES_LOCK if lock else sql.GATES)
    ):
        earned = (now_ms - credit_ms) * (rate or 0) / 1000 if credit_ms else 0.0
        grown = min(max(1.0, rate or 0), credit + max(0.0, earned))
        gates[key] = Gate(key, concurrency, rate, grown, had, bool(waits))
    found = Gates(gates, lock)
    for org, lane, number in (yield Query(sql.IN_USE)):
        for gate in found._of(org, lane):
            gate.used += number
    return found


def open_(sql: Dialect, now_ms: int, counting: Counting) -> Steps[Gates]:
    """The gates, at the begin of the claims of a flush: where there is room, those that wait are let in."""
    found = yield from look(sql, now_ms, lock=False)
    if any(gate.waits and gate.room > 0 for gate in found.gates.values()):
        found = yield from look(sql, now_ms, lock=True)
        for gate in [gate for gate in found.gates.values() if gate.waits and gate.room > 0]:
            yield from _let_in(sql, found, gate, now_ms, counting)
    return found


def _let_in(sql: Dialect, gates: Gates, gate: Gate, now_ms: int, counting: Counting) -> Steps[None]:
    """Make as many ready as there is room for. One whose other gate is full waits there from now on."""
    for _ in range(ROUNDS):
        waiting = yield from ranks.parked(sql, gate.key, gate.room, now_ms, gate.had)
        elsewhere = [
            (row[0], row[1], key)
            for row in waiting
            if (key := gates.full(row[0], row[5])) is not None and key != gate.key
        ]
        moved = {row[:2] for row in elsewhere}
        ours = [row for row in waiting if row[:2] not in moved]
        if elsewhere:
            yield Query(sql.REGATE, rows=sorted(elsewhere))
        if ours:
            gates.own |= yield from ungate(sql, ours, counting)
            yield from ranks.let_in(sql, gate.key, gate.had, ours)
        if not elsewhere:
            return


def ungate(sql: Dialect, parked: Sequence[Row], counting: Counting) -> Steps[set[str]]:
    """Let jobs (rows of PARKED) go on from their gate: ready, or to the limit of their own key, which is returned."""
    late = [((r[3], r[4], r[5]), r[0]) for r in parked if r[7]]
    turns = iter((yield from fairness.from_present(sql, late)))
    moved = [(row[0], row[1], next(turns) if row[7] else row[6]) for row in parked]
    own = set()
    for job_key, queue, lane, key in (yield Query(sql.UNGATE, rows=moved)):
        if key is None:
            counting.job(job_key, queue, lane, "parked", -1)
            counting.job(job_key, queue, lane, "queued")
        else:
            own.add(key)
    return own


def take(
    sql: Dialect, gates: Gates, op: Claim, now_ms: int, chosen: Sequence[Row], counting: Counting, most: int
) -> Steps[list[Row]]:
    """Take the first of the chosen (rows of `Dialect.look` from the turn on) whose gates have room, `most` at most, and
    park those before them whose gates are full."""
    if not gates.locked and any(gates.touches(row[3], row[4]) for row in chosen):
        fresh = yield from look(sql, now_ms, lock=True)
        gates.gates, gates.locked = fresh.gates, True
    taken: list[Row] = []
    over: list[Row] = []
    for row in chosen:
        org, lane = row[3], row[4]
        if len(taken) == most:
            break
        if (key := gates.full(org, lane)) is not None:
            over.append((org, row[2], key))
        else:
            gates.through(org, lane)
            taken.append(row)
    if over:
        left = yield Query(sql.GATE, rows=sorted(over))
        counting.parked(row[:3] for row in left)
        gates.own |= {row[3] for row in left if row[3] is not None}
        gates.parked += len(left)
    found = yield from sql.take(op, now_ms, taken)
    if len(found) < len(taken):  # somebody else had locked them
        got = {row[0] for row in found}
        for row in taken:
            if row[2] not in got:
                gates.through(row[3], row[4], -1)
    return found


def ready(sql: Dialect, op: Claim, kind: Kind) -> Steps[list[Row]]:
    """The first ready jobs, queues in rotation, as `take` wants them, and more than are asked for: gates may be full
    for some."""
    seen = yield from sql.look(op, kind.large, (-inf,), kind.most + WINDOW, kind.suspect)
    return rotation.first(((row[1], row[4:]) for row in seen), kind.most + WINDOW, op.queues)


def close(sql: Dialect, gates: Gates, now_ms: int) -> Steps[None]:
    """Write down what rates have left."""
    for gate in gates.gates.values():
        if gate.rate is not None and gates.locked:
            yield Query(sql.SLOT_CREDIT, (gate.key, gate.credit, now_ms))


def in_use(used: Iterable[Row]) -> Counter[str]:
    """By key how many jobs run; rows of IN_USE."""
    counted: Counter[str] = Counter()
    for org, lane, number in used:
        for key in gates_of(org, lane):
            counted[key] += number
    return counted
