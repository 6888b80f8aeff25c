"""Other forms of a word, as its language bends it: what is asked for as `retries` is there as `retry` or `retried`.

Made from the word alone, by endings that English, German, French and Spanish share or nearly do. A form that no text
has costs a look into the index and finds nothing; one that means something else counts less than the word itself.
"""

from __future__ import annotations

from functools import lru_cache

SHORTEST = 4  # letters of a word that is bent
STEM_SHORTEST = 4  # what an ending leaves; of the plural, one less
_DOUBLED = frozenset("bdglmnprt")
#: Endings that are taken off, longest first, and what stands in their place in the plain form.
_OFF = (
    ("ations", "ate"), ("ation", "ate"), ("ungen", "en"), ("ung", "en"), ("ions", ""), ("ion", ""), ("ings", ""),
    ("ing", ""), ("ies", "y"), ("ied", "y"), ("ers", "er"), ("ern", ""), ("ed", ""), ("es", ""), ("en", ""),
    ("er", ""), ("em", ""), ("s", ""), ("e", ""), ("n", ""),
)  # fmt: skip
#: Endings that are put on.
_ON = ("", "s", "es", "ed", "ing", "e", "en")


@lru_cache(4096)
def forms(word: str) -> tuple[str, ...]:
    """Other forms of the folded word, at most twelve; none of a short one or of one with digits or another script."""
    if len(word) < SHORTEST or not (word.isascii() and word.isalpha()):
        return ()
    bases: dict[str, None] = {}
    for ending, instead in _OFF:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= STEM_SHORTEST - (ending == "s"):
            bases[stem + instead] = None
            if stem[-1] == stem[-2] and stem[-1] in _DOUBLED:
                bases[stem[:-1]] = None
            break
    found: dict[str, None] = {}
    for base in reversed(bases or {word: None}):
        found |= dict.fromkeys(_bent(base))
    found.pop(word, None)
    return tuple(found)[:12]


def _bent(base: str) -> list[str]:
    if base.endswith("y") and base[-2] not in "aeiou":
        return [base, base[:-1] + "ies", base[:-1] + "ied", base + "ing"]
    if base.endswith("e"):
        return [base, base + "s", base + "d", base[:-1] + "ing", base + "n", base[:-1] + "ion"]
    bent = [base + ending for ending in _ON]
    if base[-1] in _DOUBLED and base[-2] in "aeiou" and base[-3] not in "aeiou":
        bent[3:5] = [base + base[-1] + ending for ending in ("ed", "ing")]
    return bent
