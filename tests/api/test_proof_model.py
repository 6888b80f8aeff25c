"""Whatever two organisations do, in whatever order, each is answered as the model says."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.api.fuzzing import PIPELINES
from tests.api.modelled import Model
from tests.api.server import Server


@pytest.mark.parametrize(
    ("examples", "steps"),
    [(4, 20), pytest.param(40, 50, marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
)
def test_every_answer_is_the_models(store_url: str, examples: int, steps: int) -> None:
    settings = hypothesis.settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None, print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    with Server(store_url, pipelines=PIPELINES, api_rate_per_s=1e6) as server:
        run_state_machine_as_test(lambda: Model(server), settings=settings)  # type: ignore[arg-type]
