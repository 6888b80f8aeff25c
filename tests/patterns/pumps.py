"""Texts that make a pattern try much and find nothing: what it repeats, many times over, then what it does not take.

A text is (before, again, after): `again` fills it up to any length. They follow from the pattern itself, and from a
stock that every pattern is tried with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import product
from typing import Any

# Imported by name: mypy finds them or not, depending on the modules it has checked before.
sre: Any = import_module("re._constants")
parser: Any = import_module("re._parser")

Pump = tuple[str, str, str]

#: What every pattern is tried with.
STOCK = (
    *" \n\t0a_A-<&'\"/\\.:([{,>#|=é\u3042\x00", "\r\n", "<!--", "-->", "<!-- page=1 -->", "a ", " a", "0.", "a.", "/a",
    "a\n", "\n ", "\n\n", "<a ", "]]", ")(", "\\\"", "=?", "=?a?q?", "><", "From ", "a: ", "Re: ", "[a] ",
    "ab12 \n-<>\"'",
)  # fmt: skip
AFTER = ("", "\x00", "\n!")
#: Repeats that end soon cannot take long; they stand in the texts as often as they may at least.
_MANY = 16
_CANDIDATES = " \n\ta0A_-.:/<>&\"'()[]{}|=?#,;!~é\u3042\x00\x7f\ud800\U0001f600"
_VARIANTS_MAX = 4


def pumps(pattern: re.Pattern[Any]) -> Iterator[Pump]:
    """All texts for a pattern, each once."""
    yield from dict.fromkeys([*_derived(pattern), *(("", again, "\x00") for again in STOCK)])


def text_of(pump: Pump, chars: int) -> str:
    """The text, `chars` long."""
    before, again, after = pump
    return before + again * max(1, (chars - len(before) - len(after)) // len(again)) + after


def _derived(pattern: re.Pattern[Any]) -> Iterator[Pump]:
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(source, pattern.flags & ~(re.U if isinstance(pattern.pattern, bytes) else 0))
    for before, again in _repeats(list(tree), ("",)):
        for after in AFTER:
            yield before, again, after
        if before:
            yield "", before + again, ""
            yield "", before + again * 8, "\x00"
    befores, words = dict.fromkeys(["", *_looked_behind(list(tree))]), dict.fromkeys(_words(list(tree)))
    for before, word in product(befores, words):
        yield before, word, "\x00"
    for whole in _samples(list(tree), 2):
        if whole:
            yield "", whole, "\x00"
            yield "", whole[:-1] or whole, ""


def _repeats(items: Sequence[Any], befores: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(what leads there, what is repeated) of each repeat without a near end, at any depth."""
    for place, (kind, value) in enumerate(items):
        here = [b + s for b, s in product(befores, _samples(items[:place], 1))][:_VARIANTS_MAX]
        for inner, is_loop in _inside(kind, value):
            if is_loop:
                for before, times in product(here, (1, 3)):
                    yield from ((before, again) for again in _samples(inner, times) if again)
            yield from _repeats(inner, here)


def _words(items: Sequence[Any]) -> Iterator[str]:
    """Texts that stand in the pattern as they are: an alternative again and again may fit a repeat before it, too."""
    word = ""
    for kind, value in [*items, (None, None)]:
        if kind is sre.LITERAL:
            word += chr(value)
            continue
        if len(word) > 1:
            yield word
        word = ""
        for inner, _ in _inside(kind, value):
            yield from _words(inner)


def _looked_behind(items: Sequence[Any]) -> Iterator[str]:
    """Texts that must stand before what the pattern takes."""
    for kind, value in items:
        if kind is sre.ASSERT and value[0] < 0:
            yield from _samples(list(value[1]), 1)
        for inner, _ in _inside(kind, value):
            yield from _looked_behind(inner)


def _inside(kind: Any, value: Any) -> Iterator[tuple[list[Any], bool]]:
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        yield list(value[2]), value[1] > _MANY
    elif kind is sre.SUBPATTERN:
        yield list(value[3]), False
    elif kind is sre.ATOMIC_GROUP:
        yield list(value), False
    elif kind is sre.BRANCH:
        yield from ((list(branch), False) for branch in value[1])
    elif kind in (sre.ASSERT, sre.ASSERT_NOT):
        yield list(value[1]), False


def _samples(items: Sequence[Any], times: int) -> list[str]:
    """Some texts that these items match, with about `times` of whatever may be repeated."""
    found = [""]
    for kind, value in items:
        found = [a + b for a, b in product(found, _sample(kind, value, times))][:_VARIANTS_MAX]
    return list(dict.fromkeys(found))


def _sample(kind: Any, value: Any, times: int) -> list[str]:
    if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY, sre.CATEGORY):
        return _characters(kind, value)
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        least, most, inner = value
        number = max(least, min(times, most))
        return [one * number for one in _samples(list(inner), times)]
    if kind in (sre.SUBPATTERN, sre.ATOMIC_GROUP):
        return _samples(list(value[3] if kind is sre.SUBPATTERN else value), times)
    if kind is sre.BRANCH:
        return [one for branch in value[1] for one in _samples(list(branch), times)[:2]]
    return [""]  # places, and what is looked at only


def _characters(kind: Any, value: Any) -> list[str]:
    """At most two characters of a set: the one that stands in it, and one that other sets may share."""
    if kind is sre.LITERAL:
        return [chr(value)]
    items = value if kind is sre.IN else [(kind, value)]
    fits = [char for char in _CANDIDATES if _fits(char, items)]
    named = [
        chr(what if kind is sre.LITERAL else what[0])
        for kind, what in items
        if kind in (sre.LITERAL, sre.RANGE)
    ]
    own = [char for char in named if _fits(char, items)]
    return list(dict.fromkeys([*fits[:2], *own[:1]]))[:2] or ["a"]


def _fits(char: str, items: Sequence[Any]) -> bool:
    code, wanted = ord(char), True
    for kind, value in items:
        if kind is sre.NEGATE:
            wanted = False
        elif (
            kind is sre.ANY
            or (kind is sre.LITERAL and code == value)
            or (kind is sre.NOT_LITERAL and code != value)
            or (kind is sre.RANGE and value[0] <= code <= value[1])
            or (kind is sre.CATEGORY and _CATEGORIES[value].match(char))
        ):
            return wanted
    return not wanted


_CATEGORIES = {
    sre.CATEGORY_DIGIT: re.compile(r"\d"), sre.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    sre.CATEGORY_SPACE: re.compile(r"\s"), sre.CATEGORY_NOT_SPACE: re.compile(r"\S"),
    sre.CATEGORY_WORD: re.compile(r"\w"), sre.CATEGORY_NOT_WORD: re.compile(r"\W"),
}  # fmt: skip
