"""Turns that an organisation had beyond its share because its jobs have several priorities. Steps used by `apply`.

Each rank of an organisation has a stream of turns, so that an urgent job goes before a backlog: with 21 ranks it would
have 21 turns where others have one. So a client remembers, for each flow, until which turn such an organisation has
had its share, and lets others go first whose turns are before that. Where no job has a priority nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from perdure.core.frozen import frozen
from perdure.store import rows
from perdure.store.base import Query, Row, Steps
from perdure.store.operations import Claim

WEIGHT = "SELECT weight FROM org WHERE name = $1"
ORGS_MAX = 100  # in a flow

FlowKey = tuple[str, str, str]  # queue, lane, pipeline


@frozen
class Had:
    """What was handed out of a flow by this client."""

    latest: float = 0.0  # turn
    until: dict[str, tuple[float, float]] = field(default_factory=dict)  # organisation → turn, and its weight

    def owing(self) -> dict[str, float]:
        """Organisations that had more than their share, and until which turn others go first."""
        return {org: turn for org, (turn, weight) in self.until.items() if turn > self.latest + 1 / weight}


#: By flow the latest turn, and organisations with the turns before which others go first.
Owing = dict[FlowKey, tuple[float, dict[str, float]]]


def owing(claim: Claim, known: Mapping[Any, Any]) -> Owing:
    """What is known of the flows of these queues."""
    flows: dict[FlowKey, Had] = known.get(Had, {})
    found = {flow: (had.latest, had.owing()) for flow, had in flows.items() if flow[0] in claim.queues}
    return {flow: pair for flow, pair in found.items() if pair[1]}


def note(found: Sequence[Row], known: Mapping[Any, Any], noted: dict[Any, Any]) -> Steps[None]:
    """Remember what these claims took."""
    flows: dict[FlowKey, Had] = known.get(Had, {})
    if not flows and not any(row[rows.JOB_PRIORITY] for row in found):
        return
    changed: dict[FlowKey, Had] = {}
    for row in found:
        flow, org, turn = (
            (row[rows.JOB_QUEUE], row[rows.JOB_LANE], row[rows.JOB_PIPELINE]),
            row[rows.JOB_ORG],
            row[-1],
        )
        had = changed.get(flow) or flows.get(flow) or Had()
        until = dict(had.until)
        if turn > 0 and (row[rows.JOB_PRIORITY] or org in until):
            if org not in until:
                weighed = yield Query(WEIGHT, (org,))
                until[org] = (turn, float(weighed[0][0]) if weighed else 1.0)
            last, weight = until[org]
            until[org] = (max(last, turn) + 1 / weight, weight)
        latest = max(had.latest, turn)
        kept = {org: pair for org, pair in until.items() if pair[0] > latest}
        changed[flow] = Had(latest, dict(list(kept.items())[-ORGS_MAX:]))
    noted[Had] = {flow: had for flow, had in {**flows, **changed}.items() if had.until}
