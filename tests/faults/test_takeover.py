"""A killed worker's documents run again long before their leases end, elsewhere, uncharged; nothing else runs twice.

How soon is measured by `benchmarks/takeover.py`.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from perdure.core.events import Events
from perdure.core.outcome import Orphaned
from perdure.engine.recovery import recover
from tests.faults.fleet import Fleet

JOBS = 200
CONCURRENCY = 20
TAKEOVER_S = 15.0  # a lease has 30: only the lock of the dead worker tells earlier


@pytest.mark.timeout(1_800)
def test_killed_under_load(fleet: Fleet) -> None:
    """Two workers with 20 of 200 documents in hand each; one is killed."""
    texts = {f"d{number}": "0.1" for number in range(JOBS)}
    for name in texts:
        fleet.shut(name, "begin")
    fleet.add("second", texts)
    victim = fleet.start("seconds", concurrency=CONCURRENCY)
    fleet.start("seconds", concurrency=CONCURRENCY)
    fleet.wait(lambda: len(fleet.starts()) == 2 * CONCURRENCY, "both workers to have all slots in use")
    victim_id = victim.id
    killed_s = victim.kill()
    fleet.wait_until_gone(victim)
    names = {document_id: name for name, document_id in fleet.ids.items()}
    jobs = fleet.ask(fleet.app.store.in_hand(victim_id))
    in_hand = {names[job.document_id] for job in jobs}
    assert len(in_hand) == CONCURRENCY
    for name in texts:
        fleet.open(name, "begin")
    fleet.wait_until_ended()

    starts: dict[str, list[float]] = defaultdict(list)
    for line in fleet.starts():
        starts[line.document].append(line.at_s - killed_s)
    again = {name: [at_s for at_s in starts[name] if at_s > 0] for name in in_hand}
    assert all(len(times) == 1 for times in again.values())
    first, last = min(t[0] for t in again.values()), max(t[0] for t in again.values())
    print(f"started again {first:.2f} to {last:.2f} s after the kill")
    assert last <= TAKEOVER_S

    begun = {name for name in in_hand if len(starts[name]) == 2}
    assert {name for name, times in starts.items() if len(times) > 1} == begun
    statuses = fleet.statuses()
    assert {s.state for s in statuses.values()} == {"done"}
    assert {s.attempts_made for s in statuses.values()} == {1}
    assert {name for name, s in statuses.items() if s.claims == 2} == in_hand
    effects = [document for document, _, _ in fleet.effects()]
    assert sorted(effects) == sorted(fleet.ids)

    # a third worker that noticed the same death a moment later takes nothing, and that is no late write
    orphaned = [(job, Orphaned(job.stage, "noticed again")) for job in jobs]
    assert fleet.ask(recover(fleet.app.store, Events(), orphaned, "noticed again")) == 0
    assert fleet.tally().fenced == 0
