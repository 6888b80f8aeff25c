"""Other forms of a word are found with it; nothing is made of what is no word of a language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.forms import forms


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("retries", {"retry", "retried", "retrying"}),
        ("retry", {"retries", "retried", "retrying"}),
        ("stopped", {"stop", "stops", "stopping"}),
        ("cache", {"caches", "cached", "caching"}),
        ("logs", {"log"}),
        ("einstellungen", {"einstellen"}),
        ("replication", {"replicate", "replicates", "replicated", "replicating"}),
        ("fichiers", {"fichier"}),
    ],
)
def test_other_forms_of_a_word(word: str, same: set[str]) -> None:
    assert same <= set(forms(word))


@pytest.mark.parametrize("word", ["the", "then", "1e5", "0x12", "été", "東京", ""])
def test_short_words_numbers_and_other_scripts_have_none_that_are_shorter(word: str) -> None:
    assert not [form for form in forms(word) if len(form) < len(word)]


@given(st.text(max_size=80))
def test_there_are_never_many_and_never_the_word_itself(word: str) -> None:
    assert len(forms(word)) <= 12
    assert word not in forms(word)
