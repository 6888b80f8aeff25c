"""The judge of turns finds a job that is claimed too early, and knows where a flow that was closed excuses it."""

from __future__ import annotations

from collections.abc import Set

import pytest

from tests.sim.fairness import Fairness, Flow
from tests.sim.promises import Violation
from tests.sim.tables import JobRow

SERVES = frozenset({"notes", "leaflets"})
NOTES: Flow = ("queue", "notes")
LEAFLETS: Flow = ("queue", "leaflets")
OPEN: Set[Flow] = frozenset()


def job(number: int, pipeline: str) -> JobRow:
    return JobRow(
        id=number, org="a", key=f"doc-{number}", document_id=str(number), pipeline=pipeline, queue="queue", lane="",
        stage="", state="queued", suspect=0, priority=0, vt=1.0, run_at_ms=0, token=None, worker=None,
        lease_until_ms=None, generation=1, attempts=0, attempts_max=3, claims=0, limit_key=None, probe=None, home=None,
        requeues=0, fresh_from=None,
    )  # fmt: skip


def claim_newer(*steps: Set[Flow] | str) -> None:
    """Let a job enter each named pipeline, in turn, while the flows of the last set are closed; then a worker claims
    the newest job first."""
    judge, closed = Fairness(), OPEN
    jobs: list[JobRow] = []
    for step in steps:
        if isinstance(step, str):
            jobs.append(job(len(jobs) + 1, step))
            judge.moved([(None, jobs[-1])], SERVES, closed)
        else:
            closed = step
            judge.moved([], SERVES, closed)
    judge.moved([(jobs[-1], jobs[-1]._replace(state="running", claims=1))], SERVES, OPEN)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(("notes", "notes"), id="one open flow"),
        pytest.param(("notes", "leaflets"), id="two open flows"),
        pytest.param(({NOTES}, "notes", "notes", OPEN), id="one closed flow"),
        pytest.param(({NOTES}, "notes", OPEN, {NOTES}, "notes", OPEN), id="one flow that closed twice"),
        pytest.param(("notes", "notes", {NOTES}, OPEN), id="both moved with their flow"),
        pytest.param(({NOTES}, OPEN, "notes", "leaflets"), id="the flow opened before"),
        pytest.param(("notes", "notes", {LEAFLETS}, OPEN), id="another flow opened"),
    ],
)
def test_the_newer_job_must_not_be_claimed_first(steps: tuple[Set[Flow] | str, ...]) -> None:
    with pytest.raises(Violation, match="which was ready earlier"):
        claim_newer(*steps)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(({NOTES, LEAFLETS}, "notes", "leaflets", OPEN), id="two closed flows"),
        pytest.param(({NOTES}, "notes", OPEN, "notes"), id="after a backlog"),
        pytest.param(("notes", {NOTES}, "notes", OPEN), id="closed between them"),
        pytest.param(("notes", {NOTES}, OPEN, "notes"), id="closed and opened between them"),
        pytest.param(("notes", "leaflets", {NOTES}, OPEN), id="one flow moved"),
    ],
)
def test_jobs_take_turns_where_a_flow_was_closed(steps: tuple[Set[Flow] | str, ...]) -> None:
    claim_newer(*steps)
