"""Who is charged when a worker's process ends: a document that was alone, never one of several."""

from __future__ import annotations

from dataclasses import replace

from perdure.core.outcome import Orphaned, Overdue
from perdure.engine.supervisor import Supervisor
from tests.core.jobs import FIRST

OTHER = replace(FIRST, id=2, token=10)
QUIET = replace(FIRST, id=3, token=11)


def test_of_several_that_had_begun_none_is_charged_for_a_worker_that_stood_still() -> None:
    supervisor, both = Supervisor("app", {}), {(FIRST.id, FIRST.token), (OTHER.id, OTHER.token)}

    results = [supervisor._result(job, both, True, "stood still") for job in (FIRST, OTHER, QUIET)]

    assert results == [Orphaned(FIRST.stage, "stood still", blame) for blame in (True, True, False)]


def test_one_that_had_begun_alone_is_charged() -> None:
    alone = {(FIRST.id, FIRST.token)}

    guilty, other = (Supervisor("app", {})._result(job, alone, True, "") for job in (FIRST, OTHER))

    assert isinstance(guilty, Overdue)
    assert other == Orphaned(OTHER.stage, "", blame=False)
