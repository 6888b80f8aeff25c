"""Who is to blame when a worker's process ends: nobody is charged without proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.core.outcome import Dead, Orphaned, Overdue, Retry, Stopped, outcome
from perdure.engine.blame import Begun, Standstill, result_of
from perdure.engine.slate import IN_CELL, Slate
from tests.core.jobs import FIRST

OTHER = replace(FIRST, id=2, token=10)
QUIET = replace(FIRST, id=3, token=11)
SUSPECT = replace(FIRST, suspect=True)
STILL = Standstill("stood still")
LATE = Standstill("stood still past its timeout", overdue=True)


def keys(*jobs: object) -> frozenset[tuple[int, int]]:
    return frozenset((job.id, job.token) for job in jobs)  # type: ignore[attr-defined]


@pytest.mark.parametrize("still", [STILL, LATE, None])
def test_of_several_that_had_begun_none_is_charged(still: Standstill | None) -> None:
    begun = Begun(keys(FIRST, OTHER))

    results = [result_of(job, begun, still, "gone", False) for job in (FIRST, OTHER, QUIET)]

    assert results == [Orphaned(FIRST.stage, "gone", blame) for blame in (True, True, False)]


def test_one_that_was_past_its_timeout_and_alone_in_the_process_is_charged() -> None:
    begun = Begun(keys(FIRST), keys(OTHER))

    guilty, in_cell, quiet = (result_of(job, begun, LATE, "", False) for job in (FIRST, OTHER, QUIET))

    assert isinstance(guilty, Overdue)
    assert not guilty.alone
    assert in_cell == Orphaned(OTHER.stage, "", blame=False)
    assert quiet == Orphaned(QUIET.stage, "", blame=False)


def test_one_that_is_alone_and_not_past_a_timeout_becomes_a_suspect() -> None:
    assert result_of(FIRST, Begun(keys(FIRST)), STILL, "", False) == Orphaned(FIRST.stage, "", blame=True)


def test_a_stage_in_a_cell_is_blamed_for_a_crash_and_where_no_other_had_begun() -> None:
    both, lone = Begun(keys(OTHER), keys(FIRST)), Begun(frozenset(), keys(FIRST))

    assert result_of(FIRST, both, None, "", False) == Orphaned(FIRST.stage, "", blame=True)
    assert result_of(FIRST, both, STILL, "", False) == Orphaned(FIRST.stage, "", blame=False)
    assert result_of(FIRST, lone, STILL, "", False) == Orphaned(FIRST.stage, "", blame=True)


def test_a_suspect_that_no_cell_could_run_is_charged_and_quarantined_the_second_time() -> None:
    result = result_of(SUSPECT, Begun(keys(SUSPECT)), STILL, "", False)

    assert isinstance(result, Overdue)
    assert result.alone
    first = outcome(SUSPECT, result)
    assert isinstance(first, Retry)
    assert (first.crashes, first.suspect) == (1, True)
    second = outcome(replace(SUSPECT, crashes=1, attempts=2, attempts_max=9), result)
    assert isinstance(second, Dead)
    assert (second.failure.code, second.charged) == ("stage_timeout", True)
    assert second.why == "quarantined after 2 crashes or timeouts while alone"


def test_a_suspect_beside_another_stage_is_not_charged() -> None:
    assert result_of(SUSPECT, Begun(keys(SUSPECT, OTHER)), STILL, "", False) == Orphaned(
        FIRST.stage, "", blame=True
    )


def test_a_stop_gives_all_back_except_those_that_may_have_held_the_worker() -> None:
    begun = Begun(keys(FIRST))

    assert isinstance(result_of(FIRST, begun, None, "", True), Stopped)
    assert isinstance(result_of(OTHER, begun, STILL, "", True), Stopped)
    assert result_of(FIRST, begun, STILL, "", True) == Orphaned(FIRST.stage, "", blame=True)


def test_the_slate_tells_where_stages_run() -> None:
    slate = Slate.private()
    slots = [slate.take(job.id, job.token or 0, 30_000, 1) for job in (FIRST, OTHER, QUIET)]
    slate.start(slots[0], 0, 30_000)
    slate.start(slots[1], 0, 30_000, IN_CELL)

    assert Begun.on(slate) == Begun(keys(FIRST), keys(OTHER))
    slate.pause(slots[0])
    assert Begun.on(slate) == Begun(frozenset(), keys(OTHER))
