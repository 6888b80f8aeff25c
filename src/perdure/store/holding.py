"""Dependencies that are down: held, probed, and given their documents back little by little. Steps of transactions.

    up ──hold──► down ──a call of a lent document went well──► ramping ──nobody waits──► up
                  ▲ │ one document is lent every 5 to 60 s        │ more are lent each second
                  │ └── (by the breaker only)                     │
                  └────────── nothing is answered ◄───────────────┘

An operator's hold ends only by `release`. A document that is *lent* can be claimed although its lane is down: its job
stands in the lane '' or, if it is large, '~' (so a claim costs what it always costs), with the dependency in `probe`
and its lane in `home`.
Whatever saves its stage or ends its claim puts it back. One that nobody has claimed by the next round is recalled, so
there are never more of them than may go at a time, and one whose queue lost its workers keeps nobody waiting.
All of this happens under one lock, so it does no harm if two sweepers are at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from perdure.core.frozen import frozen
from perdure.core.knobs import usable_knobs_of
from perdure.core.lane import like, needs_of
from perdure.core.model import State
from perdure.core.pace import Pace
from perdure.core.ramp import Ramp, probe_after_ms, ramp_start, turns
from perdure.store import entering, fairness
from perdure.store.base import BREAKER, Query, Row, Steps
from perdure.store.counting import Counting
from perdure.store.dialect import HELD_PARKED, HELD_READY, Dialect
from perdure.store.lacking import LACKING

HOLDS_ANY = 1_000_000_000
PAUSE_MS_MAX = 86_400_000  # a longer pause is none: the clock went back


@frozen
class Held:
    """A dependency that is down."""

    name: str
    since_ms: int
    held_by: str
    probe_at_ms: int | None
    probes: int
    ramp_ms: int | None  # since when it ramps
    lent_ms: int | None  # until when what was lent is paid for
    nominal_per_s: float | None
    ramp_per_s: float | None
    ramp_good: int  # documents since the last step of the ramp
    ramp_bad: int
    ramp: str | None  # what it knows of the steps before
    pace: str | None


def hold(
    sql: Dialect, clock_ms: int | None, counting: Counting, name: str, reason: str, by: str
) -> Steps[None]:
    """Take its lanes down. The breaker leaves a hold that is there as it is; an operator takes it over."""
    now_ms = yield from _begin(sql, clock_ms)
    held = (yield from _held(sql)).get(name)
    if held is not None and by == BREAKER:
        return
    since_ms = held.since_ms if held is not None else now_ms
    probe_at_ms = now_ms + probe_after_ms(0, usable_knobs_of(name)) if by == BREAKER else None
    yield Query(sql.DEPENDENCY_HOLD, (name, since_ms, reason, by, probe_at_ms))
    yield from _recall(sql, counting, name, was_up=held is None)
    yield from _set_lanes(sql, counting, name)
    yield Query(sql.ACT_ADD, (now_ms, by, "hold", None, name, reason))


def release(
    sql: Dialect, clock_ms: int | None, counting: Counting, name: str, by: str, reason: str = ""
) -> Steps[None]:
    """Let its lanes up, whoever held them."""
    now_ms = yield from _begin(sql, clock_ms)
    yield from _release(sql, now_ms, counting, name, by, reason)


def probed(
    sql: Dialect, clock_ms: int | None, counting: Counting, name: str, ok: bool, guessed: bool
) -> Steps[None]:
    """What came of a call that was let through. An operator's hold is left as it is, and what is up is up.

    Where calls are counted, a stage that made none proves nothing by ending well.
    """
    now_ms = yield from _begin(sql, clock_ms)
    held = (yield from _held(sql)).get(name)
    if held is None or held.held_by != BREAKER or (guessed and ok and held.nominal_per_s is not None):
        return
    if ok and held.ramp_ms is None:
        yield Query(sql.DEPENDENCY_RAMP, (name, ramp_start(held.nominal_per_s), now_ms, now_ms, 0, 0, None))
    elif held.ramp_ms is not None:
        yield Query(sql.DEPENDENCY_RAMPS, (name, int(ok), int(not ok)))
    else:
        at_ms = max(held.probe_at_ms or 0, now_ms + probe_after_ms(held.probes, usable_knobs_of(name)))
        yield Query(sql.DEPENDENCY_PROBE, (name, held.probes, at_ms))


def lend(sql: Dialect, clock_ms: int | None, counting: Counting, name: str) -> Steps[tuple[int, bool]]:
    """Lend what may be lent now for this dependency; how many documents, and whether so few wait that it is to be
    released (`ramped`): that waits for jobs, and here some are locked."""
    now_ms = yield from _begin(sql, clock_ms)
    down = yield from _held(sql)
    held = down.get(name)
    if held is None or held.held_by != BREAKER:
        return 0, False
    flows = yield Query(sql.FLOWS)
    lent = {
        (queue, pipeline, like("", lane)) for queue, pipeline, lane, *_ in flows if name in needs_of(lane)
    }
    # before a job is locked
    yield from entering.declare_flows(sql, lent - {tuple(flow[:3]) for flow in flows})
    if held.ramp_ms is None:
        return (yield from _probe(sql, now_ms, counting, held, down)), False
    return (yield from _ramp(sql, now_ms, counting, held, down))


def ramped(sql: Dialect, clock_ms: int | None, counting: Counting, name: str) -> Steps[None]:
    """Let a dependency up whose documents were given back little by little, unless it went down meanwhile."""
    now_ms = yield from _begin(sql, clock_ms)
    held = (yield from _held(sql)).get(name)
    if held is not None and held.held_by == BREAKER and held.ramp_ms is not None:
        yield from _release(sql, now_ms, counting, name, BREAKER)


# --- lending ---------------------------------------------------------------------------------


def _probe(sql: Dialect, now_ms: int, counting: Counting, held: Held, down: dict[str, Held]) -> Steps[int]:
    """One document, when it is time; not one that nobody could run before, if there is another. Where every lane also
    needs something else that the breaker holds, one of those: it tells at least of the service that it calls first."""
    knobs = usable_knobs_of(held.name)
    latest_ms = now_ms + max(PAUSE_MS_MAX if held.pace else 0, round(1_000 * knobs.probe_max_s))
    if held.probe_at_ms is not None and now_ms < held.probe_at_ms <= latest_ms:
        return 0
    pause_ms = Pace.from_text(held.pace).pause_ms
    if now_ms < pause_ms <= now_ms + PAUSE_MS_MAX:  # it asked not to be asked
        yield Query(sql.DEPENDENCY_PROBE, (held.name, held.probes, pause_ms))
        return 0
    yield from _recall(sql, counting, held.name)
    others = down.keys() - {held.name}
    by_operators = {name for name in others if down[name].held_by != BREAKER}
    found: list[Row] = []
    for closed, holds_max in ((others, 0), (others, HOLDS_ANY), (by_operators, 0), (by_operators, HOLDS_ANY)):
        found = found or (yield from _waiting(sql, now_ms, held.name, closed, holds_max, 1))
    if found:
        yield from _lend(sql, now_ms, counting, held.name, found)
        probes = held.probes + 1
        yield Query(sql.DEPENDENCY_PROBE, (held.name, probes, now_ms + probe_after_ms(probes, knobs)))
    elif held.probe_at_ms is not None:
        yield Query(sql.DEPENDENCY_PROBE, (held.name, held.probes, None))  # as soon as somebody waits
    return len(found)


def _ramp(
    sql: Dialect, now_ms: int, counting: Counting, held: Held, down: dict[str, Held]
) -> Steps[tuple[int, bool]]:
    """As many as may go now; whether no more than that are left, and none was lent."""
    began_ms, lent_ms = held.ramp_ms or now_ms, held.lent_ms or now_ms
    good, pace = held.ramp_good, Pace.from_text(held.pace)
    ramp = Ramp(held.ramp_per_s or 1.0, (now_ms - began_ms) / 1_000, good, held.ramp_bad, done=good)
    ramp, share = ramp.read(held.ramp, now_ms), pace.share
    if ramp.lost(share):
        probes = ramp.probes(held.probes)
        at_ms = now_ms + probe_after_ms(probes, usable_knobs_of(held.name))
        yield Query(sql.DEPENDENCY_PROBE, (held.name, probes, at_ms))
        yield from _recall(sql, counting, held.name)
        return 0, False
    ramp = ramp.step((now_ms - lent_ms) / 1_000, held.nominal_per_s, share, limited=pace.rate > 0)
    number, paid_ms = turns(ramp.per_s, lent_ms, now_ms)
    if not number:
        return 0, False
    recalled = yield from _recall(sql, counting, held.name)
    wanted = min(number + recalled, int(ramp.per_s) + 1)
    others = down.keys() - {held.name}
    found = yield from _waiting(sql, now_ms, held.name, others, HOLDS_ANY, wanted)
    if len(found) < wanted:
        # a job that another transaction has locked waits too, and is only not found
        waiting = yield from _waiting(sql, now_ms, held.name, others, HOLDS_ANY, wanted, lock=False)
        if len(waiting) < wanted:
            return len(found), True
    yield from _lend(sql, now_ms, counting, held.name, found)
    # a failure or two that nothing answers to are remembered: the next may show that the service is away again
    bad = held.ramp_bad if not held.ramp_good else 0
    ramped = (held.name, ramp.per_s, began_ms, paid_ms, 0, bad, ramp.to_text(now_ms))
    yield Query(sql.DEPENDENCY_RAMP, ramped)
    return len(found), False


def _waiting(
    sql: Dialect, now_ms: int, name: str, closed: Iterable[str], holds_max: int, limit: int, lock: bool = True
) -> Steps[list[Row]]:
    """The first jobs that wait for this dependency and for none of `closed`, of queues and pipelines that a worker
    serves. With `lock` they are locked, and those that another transaction has locked are left out."""
    held_ready, held_parked = (sql.HELD_READY, sql.HELD_PARKED) if lock else (HELD_READY, HELD_PARKED)
    shut = set(closed)
    workers = {queue for (queues,) in (yield Query(sql.SERVED)) for queue in queues.split(",")}
    served = {queue for queue, paused in (yield Query(sql.QUEUES)) if queue in workers and not paused}
    lacking = set((yield Query(LACKING, (now_ms,))))
    found: list[Row] = []
    for queue, pipeline, lane, *_ in (yield Query(sql.FLOWS)):
        needed = needs_of(lane)
        if queue in served and name in needed and not needed & shut and (queue, pipeline) not in lacking:
            for suspect in (False, True):
                asked = (holds_max, queue, pipeline, lane, suspect, limit)
                found += _from_zero((yield Query(held_ready, asked)))
            found += _from_zero((yield Query(held_parked, (holds_max, queue, pipeline, lane, limit))))
    return nsmallest(limit, found)


def _from_zero(found: Sequence[Row]) -> list[Row]:
    """Jobs of one flow with turns that begin at 0, because each flow has a time of its own; raised ones before it."""
    first = min((row[1] for row in found if row[1] > 0), default=0.0)
    return [(row[0], row[1] - first if row[1] > 0 else -1.0, *row[2:]) for row in found]


def _lend(sql: Dialect, now_ms: int, counting: Counting, name: str, found: Sequence[Row]) -> Steps[None]:
    """What is under a limit is let in as its room allows; what was raised stays before all others."""
    flows = [(queue, pipeline, like("", lane)) for *_, queue, pipeline, lane, _ in found]
    wanted = [(flow, row[4]) for flow, row in zip(flows, found, strict=True)]
    given = yield from fairness.from_present(sql, wanted)
    lent = [(row[4], row[3], turn if row[1] >= 0 else 0.0) for row, turn in zip(found, given, strict=True)]
    yield Query(sql.LEND, (name,), sorted(lent))
    for *_, limit_key, key, queue, _, lane, state in found:
        counting.job(key, queue, lane, state, -1)
        counting.job(key, queue, like("", lane), "queued" if limit_key is None else "parked")
    limits = {limit_key for *_, limit_key, _, _, _, _, _ in found if limit_key is not None}
    yield from entering.fill(sql, limits, now_ms, counting)


def _recall(sql: Dialect, counting: Counting, name: str, was_up: bool = False) -> Steps[int]:
    """Take back what was lent for this dependency and nobody has claimed; how many. It gives up its room under a
    limit. `was_up`: the dependency was up since then, and the old turns of these jobs say nothing any more."""
    recalled = yield Query(sql.RECALL, (name, was_up))
    for key, queue, lane, state, *_ in recalled:
        counting.job(key, queue, like("", lane), state, -1)
        counting.job(key, queue, lane, state)
    if limited := [row for row in recalled if row[3] == State.QUEUED and row[6] is not None]:
        yield Query(sql.PARK, rows=sorted((org, id_) for *_, org, id_, _ in limited))
        counting.parked(row[:3] for row in limited)
    return len(recalled)


# --- common ----------------------------------------------------------------------------------


def _begin(sql: Dialect, clock_ms: int | None) -> Steps[int]:
    """The store's time, and the lock under which dependencies and lanes change."""
    now_ms: int = (yield Query(sql.LANES_LOCK, (clock_ms,)))[0][0]
    return now_ms


def _held(sql: Dialect) -> Steps[dict[str, Held]]:
    return {row[0]: Held(*row) for row in (yield Query(sql.DEPENDENCIES_HELD))}


def _release(
    sql: Dialect, now_ms: int, counting: Counting, name: str, by: str, reason: str = ""
) -> Steps[None]:
    yield Query(sql.DEPENDENCY_RELEASE, (name,))
    # this waits for locked jobs, so it comes before any is locked here
    presents = yield from _set_lanes(sql, counting, name)
    yield from _recall(sql, counting, name)
    yield Query(sql.ACT_ADD, (now_ms, by, "release", None, name, reason))
    for written in sorted(presents.items()):
        yield Query(sql.QUEUE_TIME, written)


def _set_lanes(sql: Dialect, counting: Counting, name: str) -> Steps[dict[str, float]]:
    """Every lane that needs it is down while any of its dependencies is. The presents of the queues of lanes that open
    are to be written down (QUEUE_TIME), after all that is done to jobs."""
    down = {row[0]: row[1:] for row in (yield Query(sql.DEPENDENCIES_DOWN))}
    opened = []
    presents: dict[str, float] = {}
    for lane, down_ms, _ in (yield Query(sql.LANES)):
        if name in needs_of(lane):
            state = entering.lane_state(lane, down)
            if down_ms is not None and state[0] is None:
                presents |= yield from fairness.open_flows(sql, lane)
            yield Query(sql.LANE_SET, (lane, *state))
            if state[0] is None:
                opened.append((lane,))
    counting.parked((yield Query(sql.PARK_LANE, rows=opened)))
    return presents
