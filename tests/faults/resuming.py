"""The places at which a document of five stages can lose its worker, and what must be true of it afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.faults.fleet import Fleet
from tests.faults.stages import ITEMS

STAGES = ["fetch", "extract", "split", "embed", "index"]
#: Right after the save before (`begin`), in the middle, in the run of an item, between it and its save, after the last.
PLACES = [
    "fetch:begin", "fetch:half", "extract:begin", "extract:half",
    "split:begin", "split:item-0", "split:item-2", "split:body-3", "split:end",
    "embed:begin", "embed:item-1", "embed:body-2", "embed:end",
    "index:begin", "index:half",
]  # fmt: skip


def expected_runs(places: Sequence[str]) -> Counter[str]:
    """How often each stage and item runs if the worker is killed once at each of these places."""
    runs = Counter(dict.fromkeys(STAGES, 1))
    for stage in ("split", "embed"):
        runs |= {f"{stage}:item-{number}": 1 for number in range(ITEMS)}
    for place in places:
        stage, _, where = place.partition(":")
        runs[stage] += 1
        if where.startswith(("item-", "body-")):
            runs[f"{stage}:item-{where[-1]}"] += 1  # the one in hand, and no other
    return runs


def assert_resumed(fleet: Fleet, name: str, places: Sequence[str]) -> None:
    """It ran what `places` made necessary and nothing else, was charged one attempt, and took effect once."""
    lines = [line for line in fleet.ledger if line.document == name]
    runs = Counter(line.stage for line in lines if line.event == "start")
    runs += Counter(line.event for line in lines if ":item-" in line.event)
    assert runs == expected_runs(places), name

    status = fleet.status(name)
    assert (status.state, status.attempts_made, status.claims) == ("done", 1, 1 + len(places)), name
    history = fleet.attempts(name)
    assert [a.outcome for a in history] == ["later"] * len(places) + ["done"], name
    assert [a.charged for a in history] == [False] * len(places) + [True], name
    assert {a.error_code for a in history[:-1]} == {"worker_lost"}, name

    ended = {line.stage: line.run for line in lines if line.event == "end"}  # the last run of each
    effects = [(stage, run) for document, stage, run in fleet.effects() if document == name]
    assert sorted(effects) == sorted(ended.items()), name
    rows = fleet.rows(name)
    assert {stage: rows[stage] for stage in STAGES} == ended, name
    items = {f"{stage}-{number}" for stage in ("split", "embed") for number in range(ITEMS)}
    assert set(rows) == set(STAGES) | items, name
