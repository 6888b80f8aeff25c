"""The time of every regular expression of the sources grows with the text and not faster; none is hidden."""

from __future__ import annotations

import re
from functools import cache

import pytest

from perdure.core.words import ANCHOR
from tests.patterns.found import Found, Module, Unseen, patterns, sources
from tests.patterns.timing import timed

SLICES = 4


@cache
def known() -> tuple[list[Found], list[Unseen]]:
    return patterns(sources())


def test_every_pattern_of_the_sources_can_be_seen() -> None:
    found, hidden = known()

    assert hidden == []
    assert len(found) > 100


@pytest.mark.full
@pytest.mark.parametrize("part", range(SLICES))
def test_the_time_of_a_pattern_grows_with_the_text_and_not_faster(part: int) -> None:
    table = [timed(one) for one in known()[0][part::SLICES]]

    assert [(one.found.place, one.pump, one.growth) for one in table if one.fails] == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (rf"(?:\s*{ANCHOR}\s*)+\Z", "search"),
        (r"(?:\d+\.?)*\s+", "match"),
        (r"\s+$", "search"),
        (r"<!--.*?-->", "sub"),
        (r"[^\s<>]+@[^\s<>]+", "search"),
        (r"a=\s*'?\s*\w", "match"),
        (rb"(\w+\s?)*:", "fullmatch"),
        (r"(?<=[?&])([a-z_]*(?:secret|key)[a-z_]*)=", "sub"),
    ],
)
def test_a_pattern_that_goes_back_and_back_is_found(pattern: str | bytes, method: str) -> None:
    assert timed(Found("made up", re.compile(pattern, re.S), method)).fails


def test_patterns_are_seen_with_the_methods_that_they_are_used_with() -> None:
    text = """
import re
WORD = "a+"
_ONE = re.compile(rf"{WORD}!", re.I)
_PAIRS = ((re.compile("b"), 1),)
class Thing:
    _form = re.compile("c")
    def fits(self, text):
        return self._form.fullmatch(text) or _ONE.search(text) or re.split("d", text, flags=re.S)
def told(text):
    return [form.sub("", text) for form, _ in _PAIRS]
"""
    names = {"re": re, "WORD": "a+"}

    found, hidden = patterns([Module(text, "made_up.py", names)])

    assert {(one.pattern.pattern, one.pattern.flags & (re.I | re.S), one.method) for one in found} == {
        ("a+!", re.I, "search"), ("b", 0, "sub"), ("c", 0, "fullmatch"), ("d", re.S, "split"),
    }  # fmt: skip
    assert hidden == []


@pytest.mark.parametrize(
    "line",
    [
        "from re import compile",
        "import re as r",
        "import regex",
        "def f(word): return re.search(word, 'a')",
        "def f(words): return re.compile('|'.join(words)).match('a')",
        "hidden = re",
        "f = re.compile",
        "g = re.template('a')",
        "UNUSED = re.compile('a')",
    ],
)
def test_a_pattern_that_cannot_be_seen_is_reported(line: str) -> None:
    _, hidden = patterns([Module(line, "made_up.py", {"re": re})])

    assert len(hidden) == 1
