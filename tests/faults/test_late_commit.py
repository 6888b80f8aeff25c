"""A commit that reaches PostgreSQL when the process that sent it is dead."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet
from tests.faults.proxied import points
from tests.faults.proxy import Fault, Proxy
from tests.faults.stages import STORE_VARIABLE

#: Well before the lease of 30 s is over.
SOON_S = 15.0


@pytest.fixture
def fleet(postgres_store_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(postgres_store_url, tmp_path) as made:
        yield made


@pytest.mark.full
def test_a_claim_that_is_committed_after_its_worker_process_died(
    fleet: Fleet, postgres_store_url: str
) -> None:
    """Its supervisor has looked for what was in hand by then; the document does not wait for the lease."""
    children = Proxy(postgres_store_url, points())
    with children:
        worker = fleet.start("five", **{STORE_VARIABLE: children.url})  # type: ignore[arg-type]
        fleet.add("steps", {"before": "text"})
        fleet.wait_until_ended()
        child = worker.child
        assert child is not None
        children.arm("claim", [Fault.LATE])
        fleet.add("steps", {"late": "text"})
        fleet.wait(lambda: children.made("claim", Fault.LATE), "the claim to be under way", look_s=0.002)
        os.kill(child, signal.SIGKILL)
        fleet.wait(lambda: "worker lost" in worker.said, "the supervisor to take back what was in hand")
        children.let_through()
        fleet.wait_until_ended(within_s=SOON_S)
    assert (fleet.status("late").state, fleet.status("late").claims) == ("done", 2)
