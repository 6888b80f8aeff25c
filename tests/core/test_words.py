"""Words are the same however they are written, and the quick way finds what the thorough one would."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.words import WORD_CHARS_MAX, asked, words

MIXED = st.text(
    alphabet=st.sampled_from(list("aB1 _-'\n“’–…™½ﬁéÉe\u0301ßİ日本かｶﾞⒶª²℠Ⅳ\u20d0\u00a0")), max_size=80
)


def thorough(text: str) -> list[str]:
    """Without a shortcut, for scripts that are written with spaces."""
    bare = re.sub("[\u0300-\u036f]+", "", unicodedata.normalize("NFKD", text.casefold()))
    plain = unicodedata.normalize("NFKC", bare).casefold()
    return [run[:WORD_CHARS_MAX] for run in re.findall(r"[^\W_]+", plain)]


@given(st.text(max_size=60) | MIXED | st.text(alphabet="ab ", min_size=60, max_size=200))
def test_the_quick_way_finds_the_same(text: str) -> None:
    spaced = re.sub("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\u3300-\u33ff]", " ", text)
    if re.search("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]", unicodedata.normalize("NFKC", spaced)):
        return  # a sign that stands for several of them

    assert words(spaced) == thorough(spaced)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Größe GRÖSSE grosse", ["grosse", "grosse", "grosse"]),
        ("naïve nai\u0308ve NAIVE", ["naive"] * 3),
        ("“Don’t” – ﬁne", ["don", "t", "fine"]),
        ("Perdure℠ and perdure™", ["perduresm", "and", "perduretm"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("x" * 100, ["x" * WORD_CHARS_MAX]),
        ("foo_bar-1.5", ["foo", "bar", "1", "5"]),
        ("", []),
    ],
)
def test_what_makes_no_difference(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_a_question_without_spaces_asks_for_each_pair_and_for_their_order() -> None:
    found = asked('東京タワー "大阪城"')

    assert found.single == [("東京",), ("京タ",), ("タワ",), ("ワー",)]
    assert found.joined == [("東京", "京タ", "タワ", "ワー")]
    assert found.quoted == [("大阪", "阪城")]
