"""Workers killed at random under load: nothing is lost, nothing is done twice, nobody pays for it."""

from __future__ import annotations

import time

import pytest

from tests.faults.crew import Crew
from tests.faults.fleet import Fleet
from tests.faults.flow import Flow, assert_arrived, assert_repeats_explained, seeded
from tests.faults.voyage import hasty

WORKERS = 4
CONCURRENCY = 5
OPEN_MAX = 30
EVERY_S = (0.2, 2.0)
#: What a killed worker had in hand is another's when its lease is over at the latest; then it has to be worked off.
LEASE_S, SWEEP_S, BACKOFF_S, WORK_S = 30, 1, 2, 90
FREEZES = 40
#: How long a frozen transaction may keep others from writing, and how long they may have to queue besides.
FROZEN_S, WAIT_S = 5, 3


@pytest.mark.parametrize(
    ("kills", "documents"),
    [
        pytest.param(8, 0, id="short"),
        pytest.param(200, 2_000, id="long", marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
def test_random_kills(fleet: Fleet, kills: int, documents: int) -> None:
    """Four workers, a kill every 0.2 to 2 s while documents keep coming.

    Everything acknowledged is done within lease + sweep + backoff after the last kill; each effect is there once; no
    attempt is charged; what ran again was in hand of a worker that was killed, one stage and item per document.
    """
    with seeded() as rng:
        flow = Flow(fleet, rng, open_max=OPEN_MAX)
        flow.feed_for(0)
        crew = Crew(fleet, rng, "travelling", WORKERS, CONCURRENCY)
        fleet.wait(fleet.starts, "work to begin")
        began_s = time.monotonic()
        while len(crew.losses) < kills or flow.taken < documents:
            flow.feed_for(rng.uniform(*EVERY_S))
            crew.kill_one()
        took_s = time.monotonic() - began_s
        rest_s = flow.wait_until_over(within_s=LEASE_S + SWEEP_S + BACKOFF_S + WORK_S)

        assert_arrived(fleet)
        repeats = assert_repeats_explained(fleet.ledger, crew.losses)
        print(
            f"{flow.taken} documents and their children, {len(crew.losses)} kills in {took_s:.0f} s, all ended "
            f"{rest_s:.1f} s after the last; repeated: {repeats.stages} stages, {repeats.items} items"
        )
        assert repeats.stages > 0, "the kills hit nothing, so this showed nothing"


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_random_freezes(fleet: Fleet) -> None:
    """A worker is frozen for up to three leases, wherever it is, also inside a transaction; then it goes on.

    Nobody has to wait for it for longer than a frozen transaction is tolerated, and what it does late changes nothing.
    """
    with seeded() as rng:
        flow = Flow(fleet, rng, open_max=OPEN_MAX, pipeline=hasty.name)
        flow.feed_for(0)
        crew = Crew(fleet, rng, "travelling", WORKERS, CONCURRENCY)
        fleet.wait(fleet.starts, "work to begin")
        for _ in range(FREEZES):
            frozen = crew.freeze_one()
            flow.feed_for(rng.uniform(0, 3 * hasty.lease_s))
            crew.wake(frozen)
            flow.feed_for(rng.uniform(*EVERY_S))
        rest_s = flow.wait_until_over(within_s=LEASE_S + SWEEP_S + BACKOFF_S + WORK_S)

        assert_arrived(fleet)
        print(
            f"{flow.taken} documents, {FREEZES} freezes; {fleet.tally().fenced} late writes refused, "
            f"{len(fleet.workers) - WORKERS} workers started again, others waited {flow.slowest_s:.1f} s at most, "
            f"all ended {rest_s:.1f} s after the last"
        )
        assert flow.slowest_s < FROZEN_S + WAIT_S
