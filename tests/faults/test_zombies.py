"""Workers frozen past their lease wake up and go on: they give up, or their late writes are refused and counted."""

from __future__ import annotations

import signal
import time

import pytest

from tests.faults.fleet import Fleet
from tests.faults.haunting import LEASE_S, PLACES
from tests.faults.process import WorkerProcess

ZOMBIES = 24
#: The frozen worker leads the sweeps: others stand in for it when a lease was neglected for 3 s, looking every second.
NEGLECT_S, SWEEP_S, MARGIN_S = 3, 1, 60


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(1, id="short"),
        pytest.param(14, id="long", marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
def test_no_late_write_is_accepted(fleet: Fleet, rounds: int) -> None:
    """In each round a worker with 24 documents in hand is frozen, another one takes over, and the first one wakes.

    Its supervisor wakes last, so that nobody can tell its child in time that it is late.
    """
    holder = fleet.start("haunted", concurrency=ZOMBIES)
    for number in range(rounds):
        names = {f"r{number}-{i}": PLACES[i % len(PLACES)] for i in range(ZOMBIES)}
        heir = _haunt(fleet, names, holder)
        assert holder.stop() == 0, "it woke up, gave up what was not its own, and is of use again"
        holder = heir
    refused = fleet.tally().fenced
    print(f"{rounds * ZOMBIES} zombies, {refused} late writes refused")
    assert refused > 0 or rounds == 1, "if all give up in time, this shows nothing about the fence"


def _haunt(fleet: Fleet, names: dict[str, str], holder: WorkerProcess) -> WorkerProcess:
    """Freeze, take over, wake; `names` says at which place each document is frozen. The worker that took over."""
    for name, place in names.items():
        fleet.shut(name, place)
    fleet.add("haunt", dict.fromkeys(names, "boo"))
    fleet.wait(lambda: _reached(fleet, names, holder), "all to be in hand")
    heir = fleet.start("haunted", concurrency=ZOMBIES)
    pids = fleet.freeze(holder)
    frozen_s = time.monotonic()
    undead = {name: fleet.starts(name)[-1].run for name in names}
    fleet.wait(lambda: _reached(fleet, names, heir), "all to be taken over")
    takeover_s = time.monotonic() - frozen_s
    print(f"{len(names)} documents taken over {takeover_s:.1f} s after the freeze")
    assert LEASE_S * 2 / 3 < takeover_s < LEASE_S + NEGLECT_S + SWEEP_S + MARGIN_S

    # some are done when the late write comes, some still in the hands of their new worker
    held_up = [name for name, place in list(names.items())[::2] if place != PLACES[-1]]
    for name in held_up:
        fleet.shut(name, PLACES[-1])
    for name, place in names.items():
        fleet.open(name, place)
    fleet.wait_until_ended(names.keys() - set(held_up))
    fleet.wait(lambda: _reached(fleet, dict.fromkeys(held_up, PLACES[-1]), heir), "the rest to be held up")

    before = fleet.tally().fenced
    holder.signal(signal.SIGCONT, [pid for pid in pids if pid != holder.pid])
    fleet.wait(
        lambda: holder.said.count("late write refused") == len(names), "all zombies to have ended", look_s=0.1
    )
    holder.signal(signal.SIGCONT, [holder.pid])
    for name in held_up:
        fleet.open(name, PLACES[-1])
    fleet.wait_until_ended(names)
    assert fleet.tally().fenced <= before + len(names), "at most one late write each"
    _assert_untouched(fleet, undead)
    return heir


def _reached(fleet: Fleet, names: dict[str, str], worker: WorkerProcess) -> bool:
    there = {(line.document, line.event) for line in fleet.ledger if line.worker == worker.number}
    return names.items() <= there


def _assert_untouched(fleet: Fleet, undead: dict[str, str]) -> None:
    """Nothing of the runs that were frozen is there, but the item that one had saved before."""
    effects = [effect for effect in fleet.effects() if effect[0] in undead]
    stages = ["drift", "moan", "vanish"]
    assert sorted((document, stage) for document, stage, _ in effects) == sorted(
        (name, stage) for name in undead for stage in stages
    )
    assert not [effect for effect in effects if effect[2] == undead[effect[0]]]
    for name, run in undead.items():
        assert {key for key, by in fleet.rows(name).items() if by == run} <= {"moan-0"}, name
        history = [(a.outcome, a.charged, a.error_code) for a in fleet.attempts(name)]
        assert history == [("later", False, "worker_lost"), ("done", True, None)], name
