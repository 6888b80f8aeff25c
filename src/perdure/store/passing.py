"""Claims that pass over organisations which have their share of a worker. Steps used by `apply`.

Jobs stand in the order of their turns, and an organisation that is passed over may have 100,000 of them at the head. No
claim walks over these: it looks at a few places, and takes the first jobs of others that it finds there. The places
are the head of each flow, where newcomers get their first turn; the last turn of each organisation that was served in
this way, because its next job follows there; and, if that is not enough, the next part of a walk through all that
waits, which ends at the last job and begins again. So every job is found after a while wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, nextafter
from typing import Any

from perdure.core.frozen import frozen
from perdure.core.lane import is_large
from perdure.store import ranks, rotation, rows
from perdure.store.base import Row, Steps
from perdure.store.dialect import Dialect
from perdure.store.operations import Claim, Kind
from perdure.store.ranks import Owing

WINDOW = 32  # jobs of a flow that are looked at in one place
STRIDE = 500  # of the walk
STRIDES_MAX = 4  # in one claim
ORGS_MAX = 8  # whose places are remembered
#: How chosen jobs are taken: `Dialect.take`, or through gates.
Take = Callable[[Claim, int, Sequence[Row]], Steps[list[Row]]]
FIRST = 0  # the turn before all others


@frozen
class Places:
    """Where a client looks, in turns."""

    served: tuple[tuple[str, float], ...] = ()  # organisations and their last turns, the latest last
    walk: float = -inf


def claim(
    sql: Dialect,
    op: Claim,
    kind: Kind,
    now_ms: int,
    known: Mapping[Any, Any],
    noted: dict[Any, Any],
    take: Take,
) -> Steps[list[Row]]:
    """Take jobs of organisations that are not passed over; the rows of `Dialect.claim`. The places where the next
    claim shall look are noted."""
    assert kind.passing is not None
    which = (Places, tuple(sorted(op.queues)), kind.large)
    places: Places = known.get(which, Places())
    orgs = frozenset(kind.passing.orgs)
    since = (-inf, *sorted({turn for org, turn in places.served if org not in orgs}))
    seen = yield from sql.look(op, kind.large, since, WINDOW)
    chosen = _others(seen, orgs, kind.most, op.queues)
    walk = places.walk
    for _ in range(STRIDES_MAX if len(chosen) < kind.most else 0):
        more = yield from sql.look(op, kind.large, (walk,), STRIDE)
        walk = _next(more, walk)
        seen += more
        chosen = _others(seen, orgs, kind.most, op.queues)
        if len(chosen) == kind.most or walk == -inf:
            break
    found = yield from take(op, now_ms, chosen)
    noted[which] = Places(_served(places, found), walk)
    waiting: dict[tuple[ranks.Stream, str], float] = {}
    for row in seen:
        if row[7] in orgs and row[4] > FIRST:
            which_waits = ((row[1], is_large(row[2])), row[7])
            waiting[which_waits] = min(row[4], waiting.get(which_waits, inf))
    yield from ranks.note_passed(waiting, found, known, noted)
    return found


def before(sql: Dialect, op: Claim, kind: Kind, now_ms: int, owing: Owing, take: Take) -> Steps[list[Row]]:
    """Take jobs that go before those of organisations that had more than their share of a queue: newcomers' at the
    head of each flow, and others' where turns were handed out last and one turn later."""
    since = (-inf, *sorted({turn for latest, _ in owing.values() for turn in (latest, latest + 1)}))
    seen = yield from sql.look(op, kind.large, since, 2 * WINDOW)
    ready = {
        (row[1], row[4:])
        for row in seen
        if row[4] == FIRST
        or (
            (had := owing.get((row[1], is_large(row[2]))))
            and row[7] not in had[1]
            and row[4] < max(had[1].values())
        )
    }
    return (yield from take(op, now_ms, rotation.first(ready, kind.most, op.queues)))


def _others(seen: list[Row], orgs: frozenset[str], most: int, queues: tuple[str, ...]) -> list[Row]:
    """The first of those that an operator raised or whose organisation is not passed over: turn, rank, id,
    organisation."""
    others = {(row[1], row[4:]) for row in seen if row[4] == FIRST or row[7] not in orgs}
    return rotation.first(others, most, queues)


def _next(seen: list[Row], walk: float) -> float:
    """Where the walk goes on: no flow has an unseen job before it. At the end it begins again."""
    ends: dict[Row, list[float]] = {}
    for row in seen:
        ends.setdefault(row[1:4], []).append(row[4])
    last = min((max(turns) for turns in ends.values() if len(turns) == STRIDE), default=None)
    return -inf if last is None else last if last > walk else nextafter(walk, inf)


def _served(places: Places, found: list[Row]) -> tuple[tuple[str, float], ...]:
    served = dict(places.served)
    for row in found:
        turn = max(row[-1], served.pop(row[rows.JOB_ORG], row[-1]))
        served[row[rows.JOB_ORG]] = turn
    return tuple(served.items())[-ORGS_MAX:]
