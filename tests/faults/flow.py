"""Documents that keep coming while a test does harm, and the account of them afterwards.

The account is the test's own: what was acknowledged, what stages wrote into the ledger, what effects are there. Of the
store's words only the end of a document and the history of its attempts are taken.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise

from perdure.errors import StoreUnavailable
from tests.faults import voyage
from tests.faults.fleet import Fleet
from tests.faults.record import Line
from tests.faults.voyage import ITEMS, LANDING, STAGES, child_of

SEED_VARIABLE = "FAULTS_SEED"
PACE_S = (0.02, 0.4)
ROWS = {*STAGES, *(f"{stage}-{number}" for stage in ("split", "embed") for number in range(ITEMS))}

HISTORY = "SELECT document_id, outcome, charged, error_code FROM attempt"
CHILDREN = "SELECT c.name, p.name FROM document c JOIN document p ON p.id = c.parent_id"
EMITTED = "SELECT document_id, key, data FROM emitted WHERE name = 'effect'"


@contextmanager
def seeded() -> Iterator[random.Random]:
    """Chance that can be had again: whatever fails here names its seed."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(1 << 32))
    replay = f"{SEED_VARIABLE}={seed}"
    print(replay)
    try:
        yield random.Random(seed)
    except BaseException as error:
        error.add_note(f"again with {replay}")
        raise


class Flow:
    """Documents that are taken in as others end, so that about `open_max` are under way for as long as it is fed."""

    def __init__(
        self, fleet: Fleet, rng: random.Random, open_max: int, pipeline: str = voyage.voyage.name
    ) -> None:
        self.fleet, self.rng, self.open_max, self.pipeline = fleet, rng, open_max, pipeline
        self.slowest_s = 0.0  # of all times that we had to wait until documents were taken in

    @property
    def taken(self) -> int:
        """How many were taken in."""
        return len(self.fleet.ids)

    @property
    def open(self) -> int:
        """How many documents have not ended, children included; asked again if the connection was lost."""
        while True:
            with suppress(StoreUnavailable):
                return self.fleet.tally().documents.get("open", 0)
            time.sleep(0.1)

    def feed_for(self, seconds: float) -> None:
        """Keep them coming."""
        until_s = time.monotonic() + seconds
        while True:
            names = (f"d{self.taken + number}" for number in range(self.open_max - self.open))
            if texts := {name: f"{self.rng.uniform(*PACE_S):.3f}" for name in names}:
                began_s = time.monotonic()
                self.fleet.add(self.pipeline, texts)
                self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            if time.monotonic() >= until_s:
                return
            time.sleep(0.1)

    def wait_until_over(self, within_s: float) -> float:
        """Until every document has ended; how long that took."""
        return self.fleet.wait(lambda: not self.open, "every document to end", within_s, look_s=0.1)


# --- the account -------------------------------------------------------------------------------------


def assert_arrived(fleet: Fleet) -> None:
    """Nothing acknowledged is lost, nothing is dead, every effect is there once, nobody paid for our harm."""
    expected = {*fleet.ids, *map(child_of, fleet.ids)}
    statuses = fleet.ask(fleet.app.documents(limit=10 * len(expected)))
    names = {status.id: status.name for status in statuses}
    assert Counter(names.values()) == Counter(expected)
    assert {s.name: (s.state, s.error_code) for s in statuses if s.state != "done"} == {}
    assert {name: names[id_] for name, id_ in fleet.ids.items()} == {name: name for name in fleet.ids}
    assert {(row[0], row[1]) for row in fleet.query(CHILDREN)} == {
        (child_of(name), name) for name in fleet.ids
    }
    assert not any(fleet.tally().queues.values()), "no job is left"
    _assert_effects(fleet, names)

    history: dict[str, Counter[tuple[str, bool, str | None]]] = defaultdict(Counter)
    for id_, outcome, charged, code in fleet.query(HISTORY):
        history[names[id_]][outcome, bool(charged), code] += 1
    for name in expected:
        assert history[name][("done", True, None)] == 1, name
        assert {end for end in history[name] if end[1]} == {("done", True, None)}, f"{name} was charged"


def _assert_effects(fleet: Fleet, names: dict[str, str]) -> None:
    """Of each stage the statement of one run, its row of the same run, and the rows of each item."""
    ended = {(line.document, line.stage, line.run) for line in fleet.ledger if line.event == "end"}
    effects = fleet.effects()
    assert set(effects) <= ended, "an effect of a run that never ended"
    parents = {(name, stage) for name in fleet.ids for stage in STAGES}
    children = {(child_of(name), LANDING) for name in fleet.ids}
    assert Counter((document, stage) for document, stage, _ in effects) == Counter(parents | children)

    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for id_, key, data in fleet.query(EMITTED):
        rows[names[id_]][json.loads(key)["stage"]] = json.loads(data)
    for name in fleet.ids:
        assert set(rows[name]) == ROWS, name
    assert all(rows[document][stage] == run for document, stage, run in effects)


@dataclass(frozen=True, slots=True)
class Loss:
    """The end of a worker's process by our hand: at `from_s` it was killed, at `to_s` nothing of it was left."""

    worker: int
    from_s: float
    to_s: float

    def hit(self, run: Line) -> bool:
        """Whether this run, unless it had ended, was cut off."""
        return run.worker == self.worker and run.at_s <= self.to_s


@dataclass(frozen=True, slots=True)
class Repeats:
    """What ran more than once."""

    stages: int
    items: int


def assert_repeats_explained(ledger: Sequence[Line], losses: Sequence[Loss]) -> Repeats:
    """A stage or item runs again only because it was in hand when its worker was killed: one per document and kill."""
    runs: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in ledger:
        if line.event == "start" or line.event.startswith("item:"):
            runs[line.document, line.stage, line.event].append(line)
    repeated: dict[str, Counter[tuple[str, Loss]]] = {"stages": Counter(), "items": Counter()}
    for (document, _, event), lines in runs.items():
        for before, after in pairwise(lines):
            cut = [loss for loss in losses if loss.hit(before) and loss.from_s <= after.at_s]
            assert cut, f"ran again although its worker lived:\n{before}\n{after}"
            repeated["stages" if event == "start" else "items"][document, cut[0]] += 1
    for kind, counts in repeated.items():
        twice = {which: count for which, count in counts.items() if count > 1}
        assert not twice, f"one kill, several {kind} of one document again: {twice}"
    return Repeats(repeated["stages"].total(), repeated["items"].total())
