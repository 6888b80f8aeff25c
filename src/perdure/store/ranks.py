"""Turns that an organisation had beyond its share because its jobs have several priorities. Steps used by `apply`.

Each rank of an organisation has a stream of turns, so that an urgent job goes before a backlog: with 21 ranks it would
have 21 turns where others have one. So a client remembers, for each queue, until which turn such an organisation has
had its share, and lets others go first whose turns are before that: the turns of a queue are one stream whatever the
pipeline, so a bound of one pipeline alone would let a later job of the others pass an earlier one. Large documents have
slots of their own and are counted apart. Where no job has a priority nothing is remembered, unless an organisation was
passed over (`passing`): the turns that it could not use are not saved up.

The same holds for the room under a limit that organisations share. It is remembered with the limit (`slot.had`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core.frozen import frozen
from perdure.core.lane import is_large
from perdure.store import rows
from perdure.store.base import Query, Row, Steps
from perdure.store.fairness import RANK_MAX
from perdure.store.operations import Claim

if TYPE_CHECKING:
    from perdure.store.dialect import Dialect

WEIGHT = "SELECT weight FROM org WHERE name = $1"
ORGS_MAX = 100  # in a stream
RANKS = 2 * RANK_MAX + 1
WINDOW = 32  # jobs of a flow that are looked at beyond those that a limit has room for
K = TypeVar("K")

Stream = tuple[str, bool]  # queue, and whether the documents are large


@frozen
class Had:
    """What was handed out of a stream by this client."""

    latest: float = 0.0  # turn
    until: dict[str, tuple[float, float]] = field(default_factory=dict)  # organisation → turn, and its weight

    def owing(self) -> dict[str, float]:
        """Organisations that had more than their share, and until which turn others go first."""
        return {org: turn for org, (turn, weight) in self.until.items() if turn > self.latest + 1 / weight}


#: By stream the latest turn, and organisations with the turns before which others go first.
Owing = dict[Stream, tuple[float, dict[str, float]]]


def owing(claim: Claim, known: Mapping[Any, Any]) -> Owing:
    """What is known of these queues."""
    streams: dict[Stream, Had] = known.get(Had, {})
    found = {
        stream: (had.latest, had.owing()) for stream, had in streams.items() if stream[0] in claim.queues
    }
    return {stream: pair for stream, pair in found.items() if pair[1]}


def note(found: Sequence[Row], known: Mapping[Any, Any], noted: dict[Any, Any]) -> Steps[None]:
    """Remember what these claims took."""
    streams: dict[Stream, Had] = known.get(Had, {})
    asked = rows.JOB_QUEUE, rows.JOB_LANE, rows.JOB_ORG, -1, rows.JOB_PRIORITY
    told = [[row[place] for place in asked] for row in found]
    taken = [((queue, is_large(lane)), org, turn, priority) for queue, lane, org, turn, priority in told]
    taken.sort(key=itemgetter(2, 1))  # databases return them in orders of their own
    after = yield from _after(streams, taken)
    if after is not streams:
        noted[Had] = after


def note_passed(
    waiting: Mapping[tuple[Stream, str], float], found: Sequence[Row], known: Mapping[Any, Any],
    noted: dict[Any, Any],
) -> Steps[None]:  # fmt: skip
    """Remember of organisations that were passed over, and of the turns at which they wait, that others had later ones:
    turns that an organisation could not use are not saved up, or all others would stand behind them afterwards."""
    reached: dict[Stream, float] = {}
    for row in found:
        stream = (row[rows.JOB_QUEUE], is_large(row[rows.JOB_LANE]))
        reached[stream] = max(row[-1], reached.get(stream, 0.0))
    streams: dict[Stream, Had] = dict(noted.get(Had) or known.get(Had, {}))
    before = dict(streams)
    for (stream, org), turn in sorted(waiting.items()):
        if turn >= reached.get(stream, 0.0):
            continue
        had = streams.get(stream, Had())
        last, weight = had.until.get(org) or (0.0, (yield from _weight(org)))
        until = {**had.until, org: (max(last, reached[stream] + 1 / weight), weight)}
        streams[stream] = Had(had.latest, dict(list(until.items())[-ORGS_MAX:]))
    if streams != before:
        noted[Had] = streams


def _weight(org: str) -> Steps[float]:
    weighed = yield Query(WEIGHT, (org,))
    return float(weighed[0][0]) if weighed else 1.0


def _after(streams: dict[K, Had], taken: Sequence[tuple[K, str, float, int]]) -> Steps[dict[K, Had]]:
    """What is to be remembered of the streams when these jobs (organisation, turn and priority) were handed out."""
    if not streams and not any(priority for *_, priority in taken):
        return streams
    changed: dict[K, Had] = {}
    most = max(
        RANKS, len(taken)
    )  # that it can have had at once; of what it had while it was alone it owes nothing
    for stream, org, turn, priority in taken:
        had = changed.get(stream) or streams.get(stream) or Had()
        until = dict(had.until)
        if turn > 0 and (priority or org in until):
            if org not in until:
                until[org] = (turn, (yield from _weight(org)))
            last, weight = until[org]
            until[org] = (min(max(last, turn) + 1 / weight, max(had.latest, turn) + most / weight), weight)
        latest = max(had.latest, turn)
        kept = {org: pair for org, pair in until.items() if pair[0] > latest}
        changed[stream] = Had(latest, dict(list(kept.items())[-ORGS_MAX:]))
    return {stream: had for stream, had in {**streams, **changed}.items() if had.until}


# --- under a limit -------------------------------------------------------------------------------


def parked(sql: Dialect, key: str, room: int, now_ms: int, had: str | None) -> Steps[list[Row]]:
    """The jobs (rows of PARKED) that a limit with this much room lets in: those whose turns come first, but before
    organisations that had more than their share of it go others."""
    first = yield Query(sql.PARKED, (key, room, now_ms, -inf))
    owing = {queue: (one.latest, owed) for queue, one in _read(had).items() if (owed := one.owing())}
    if not owing:
        return first
    seen = {row[:2]: row for row in first}
    for since in sorted({turn for latest, _ in owing.values() for turn in (latest, latest + 1)}):
        seen |= {row[:2]: row for row in (yield Query(sql.PARKED, (key, room + WINDOW, now_ms, since)))}
    ahead = [row for row in seen.values() if _goes_first(row, owing)]
    chosen = sorted(ahead, key=lambda row: (row[8], -row[9], row[1]))[:room]
    others = [row for row in first if row not in chosen]
    return chosen + others[: room - len(chosen)]


def _goes_first(row: Row, owing: Mapping[str, tuple[float, dict[str, float]]]) -> bool:
    org, queue, turn = row[0], row[3], row[8]
    _, owed = owing.get(queue, (0.0, {}))
    return turn <= 0 or bool(owed and org not in owed and turn < max(owed.values()))


def let_in(sql: Dialect, key: str, had: str | None, taken: Sequence[Row]) -> Steps[None]:
    """Write down, under the lock of the limit, what it let in. All clients share it."""
    streams = _read(had)
    after = yield from _after(streams, [(row[3], row[0], row[8], row[9]) for row in taken])
    if after != streams:
        text = json.dumps({queue: [one.latest, one.until] for queue, one in after.items()}) if after else None
        yield Query(sql.SLOT_HAD, (key, text))


def _read(had: str | None) -> dict[str, Had]:
    found = json.loads(had) if had else {}
    return {
        queue: Had(latest, {org: (turn, weight) for org, (turn, weight) in until.items()})
        for queue, (latest, until) in found.items()
    }
