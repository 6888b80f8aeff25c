"""Processes that serve many documents compute in one thread, unless somebody asks for more."""

from __future__ import annotations

import pytest

from perdure.engine.tuning import compute_in_one_thread


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "8"}, "8")])
def test_numpy_has_one_thread_unless_a_number_is_given(given: dict[str, str], expected: str) -> None:
    assert compute_in_one_thread(given) is given
    assert given["OPENBLAS_NUM_THREADS"] == expected
