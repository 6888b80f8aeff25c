"""Text: what a caller chose is refused when broken, what came from elsewhere is cleaned; both stores keep the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import InputInvalid
from perdure.store.text import NAME_MAX, checked, cleaned
from tests.store.making import ORG, World, document

any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates and NUL included


@given(any_text)
@settings(max_examples=200, deadline=None)
def test_cleaned_text_can_be_stored_and_is_not_cleaned_twice(text: str) -> None:
    clean = cleaned(text)

    clean.encode()
    assert "\0" not in clean
    assert cleaned(clean) == clean


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
@settings(max_examples=100, deadline=None)
def test_sound_text_stays_as_it_is(text: str) -> None:
    assert cleaned(text) == text
    if len(text) <= NAME_MAX:
        assert checked(text, "the name") is text


@pytest.mark.parametrize(
    ("text", "code"),
    [("a\0b", "text_nul"), ("a\ud800", "text_broken"), ("x" * (NAME_MAX + 1), "text_too_long")],
)
def test_a_broken_name_is_refused_and_named(text: str, code: str) -> None:
    with pytest.raises(InputInvalid, match="the key") as caught:
        checked(text, "the key")

    assert caught.value.code == code


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "naïve",
        "日本語",
        "🙂",
        "a\tb\nc",
        "﷽",
        "'; DROP TABLE job; --",
        "$1 ?1 %s {r}id",
        "x" * NAME_MAX,
    ],
)
async def test_any_checked_text_is_kept_as_it_is(world: World, text: str) -> None:
    asked = replace(
        document(dedupe=f"key:{text}"), name=checked(text, "the name"), collection=text, meta=text.encode()
    )

    added = await world.store.add([asked, replace(document(dedupe=f"key:{text}"))])

    assert [a.answer for a in added] == ["added", "exists"]
    record = await world.store.document(ORG, asked.id)
    assert record is not None
    assert (record.name, record.collection, record.meta) == (text, text, text.encode())
