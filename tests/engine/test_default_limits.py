"""A stage without limits has those of the settings; one with limits of its own has these alone."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Document, Pipeline
from perdure.settings import Settings
from perdure.testing import drain, trial


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"stage_timeout_s": 0.3}, "stage_timeout"),
        ({"stage_timeout_s": 0, "stage_stall_s": 0.3}, "no_progress"),
    ],
)
@pytest.mark.parametrize("waits", ["loop", "thread"])
def test_a_stage_that_hangs_is_ended(
    store_url: str, settings: dict[str, float], code: str, waits: str
) -> None:
    made = Pipeline("p", attempts=1)
    over = asyncio.Event()

    if waits == "loop":

        @made.stage
        async def hang(doc: Document) -> int:
            await over.wait()
            return 1

    else:

        @made.stage
        def hang(doc: Document) -> int:
            asyncio.run(over.wait())
            return 1

    with trial(made, store=store_url, settings=Settings(**settings)) as app:
        id_ = app.add(text="x", pipeline="p").id
        drain(app)
        assert (app.status(id_).state, app.status(id_).error_code) == ("dead", code)


def test_limits_of_its_own_count_alone() -> None:
    made = Pipeline("p")

    @made.stage
    def plain(doc: Document) -> int:
        return 1

    @made.stage(timeout=7_200)
    def slow(doc: Document) -> int:
        return 1

    @made.stage(stall=60)
    def steady(doc: Document) -> int:
        return 1

    default = (Settings().stage_timeout_s, Settings().stage_stall_s)
    found = [stage.limits(default) for stage in made.stages]
    assert found == [(1_800, 1_800), (7_200, None), (None, 60)]
