"""A lane has one name, however its dependencies are listed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.lane import lane_of, needs_of
from perdure.errors import PipelineInvalid

names = st.lists(st.text("abcdefghij-_", min_size=1, max_size=5), max_size=5)


def test_no_needs_is_the_lane_without_a_name() -> None:
    assert lane_of([]) == ""
    assert needs_of("") == frozenset()


def test_order_and_repetition_do_not_matter() -> None:
    assert lane_of(["openai", "ocr", "openai"]) == lane_of(["ocr", "openai"]) == "ocr+openai"


@given(names)
def test_a_lane_gives_back_its_needs(needs: list[str]) -> None:
    assert needs_of(lane_of(needs)) == frozenset(needs)


@pytest.mark.parametrize("name", ["openai~", "~", "ocr+openai"])
def test_no_dependency_has_a_name_that_would_be_another_lane(name: str) -> None:
    with pytest.raises(PipelineInvalid, match="of a dependency must be"):
        lane_of(["ocr", name])
