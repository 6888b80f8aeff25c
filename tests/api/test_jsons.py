"""A quick look at JSON never passes what a careful one refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.api import jsons
from perdure.api.refused import Refused

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def careful(text: str, values_max: int) -> bool:
    try:
        jsons._look_through(text, values_max)
    except (ValueError, Refused):
        return False
    return True


@given(VALUES, st.integers(1, 30), st.integers(0, 202))
def test_what_a_quick_look_passes_is_within_the_limits(value: Any, values_max: int, deeper: int) -> None:
    text = "[" * deeper + json.dumps(value) + "]" * deeper
    for limit in (values_max, values_max + deeper):
        if jsons._is_within(text, limit):
            assert careful(text, limit)


@pytest.mark.parametrize("depth", [199, 200, 201, 202])
@pytest.mark.parametrize("many", [False, True])
def test_a_text_is_as_deep_as_it_may_be_or_refused(depth: int, many: bool) -> None:
    deep = "[" * (depth - many) + "]" * (depth - many)
    text = f"[{deep}, {'{}, ' * 300}1]" if many else deep
    if depth <= jsons.DEPTH_MAX:
        assert jsons._is_within(text, 10_000) or not many
        jsons.read(text, 10_000)
        return
    with pytest.raises(Refused, match="deeper than 200"):
        jsons.read(text, 10_000)


@pytest.mark.parametrize("digits", [1_000, 1_001])
def test_a_number_is_as_long_as_it_may_be_or_refused(digits: int) -> None:
    text = f"[{'1' * digits}]"
    if digits <= jsons.NUMBER_CHARS_MAX:
        assert jsons._is_within(text, 10)
        return
    with pytest.raises(Refused, match="more than 1000 characters"):
        jsons.read(text, 10)


def test_digits_in_a_text_are_no_number() -> None:
    assert jsons.read(json.dumps(["1" * 5_000]), 10) == ["1" * 5_000]
