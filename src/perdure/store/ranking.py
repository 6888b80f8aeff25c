"""How well a chunk fits what is asked for: one measure for its words and its vector, the same on every database.

By words: the rarer a word is and the more often a chunk has it, the more it counts (BM25), other forms of it less;
that all of them are there counts too, and that words of the query follow each other. By vector: the cosine, stretched
so that the best of the candidates has 1 and the worst 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from perdure.core.frozen import frozen
from perdure.core.words import Term

#: What words count beside vectors.
WORDS = 0.85
#: Of a chunk that covers more of the words' weight than this, the words count for more, up to all.
ENOUGH = 0.8
#: Of a word that the chunk has in another form.
FORM = 0.7
#: What makes the score of its words.
OFTEN, COVER, ORDER = 0.5, 0.3, 0.2
SATURATION, LENGTH, LENGTHY = 1.2, 160, 0.5
#: By model: a hit fits if the share of the words' weight that it has and its cosine come to the first together, or the
#: cosine alone to the second. Where nothing is known of a model's cosines, every hit does; also in an
#: organisation with few chunks, which need not have the words of its own subject.
FEW = 1_000
FLOORS = {"wordllama-l2-supercat-256": (0.72, 0.5), "lexical-hashing-384": (0.6, 0.5)}


@frozen
class Wanted:
    """A word or phrase of the query, its other forms, and what it weighs; `count` chunks have it."""

    term: Term
    forms: tuple[str, ...]
    weight: float
    count: float
    common: bool = False  # so many chunks have it that it finds none


@frozen
class Fit:
    """How a chunk fits by words, each from 0 to 1: how often it has them, how much of their weight, in which order."""

    often: float = 0.0
    covered: float = 0.0
    ordered: float = 0.0

    @property
    def score(self) -> float:
        return OFTEN * self.often + COVER * self.covered**2 + ORDER * self.ordered


def fit(wanted: Sequence[Wanted], joined: Sequence[Term], words: str) -> Fit:
    """The fit of a chunk with these folded words, which stand between single spaces."""
    text = f" {words} "
    most = sum(one.weight for one in wanted)
    if not most:
        return Fit()
    length = SATURATION * (1 - LENGTHY + LENGTHY * text.count(" ") / LENGTH)
    often = covered = 0.0
    for one in wanted:
        exact = text.count(f" {' '.join(one.term)} ")
        there = exact + FORM * sum(text.count(f" {form} ") for form in one.forms)
        if there:
            often += one.weight * there / (there + length)
            covered += one.weight * (1.0 if exact else FORM)
    pairs = _pairs(wanted, joined)
    adjacent = sum(weight for phrase, weight in pairs if f" {phrase} " in text)
    return Fit(often / most, covered / most, adjacent / (sum(weight for _, weight in pairs) or 1.0))


def _pairs(wanted: Sequence[Wanted], joined: Sequence[Term]) -> list[tuple[str, float]]:
    """Words that follow each other in the query, and what it weighs that they do; written as one, more."""
    weights = {one.term: one.weight for one in wanted}
    pairs = [
        (" ".join((*one.term, *other.term)), min(one.weight, other.weight)) for one, other in pairwise(wanted)
    ]
    for term in joined:
        if len(term) > 1:
            pairs.append((" ".join(term), 2 * sum(weights.get((word,), 0.0) for word in term)))
    return pairs


def fused(fits: dict[int, Fit], cosines: dict[int, float]) -> list[tuple[int, float]]:
    """Numbers and scores, best first."""
    if not cosines:
        return sorted(((num, one.score) for num, one in fits.items()), key=_first)
    best, worst = max(cosines.values()), min(cosines.values())
    spread = (best - worst) or 1.0
    words = _share_of_words(fits.values())
    scores = {
        num: words * (fits[num].score if num in fits else 0.0)
        + (1 - words) * ((cosines[num] - worst) / spread if num in cosines else 0.0)
        for num in {**fits, **cosines}
    }
    return sorted(scores.items(), key=_first)


def _share_of_words(fits: Iterable[Fit]) -> float:
    """What words count for: more where a chunk has nearly all of several, some of them as they follow in the query."""
    covered = ordered = 0.0
    for one in fits:
        covered, ordered = max(covered, one.covered), max(ordered, one.ordered)
    if not covered:
        return 0.0
    return WORDS + (1 - WORDS) * max(0.0, covered - ENOUGH) / (1 - ENOUGH) if ordered else WORDS


def fits(model: str, one: Fit, cosine: float) -> bool:
    """Whether a hit is worth showing."""
    together, alone = FLOORS.get(model, (0.0, 0.0))
    return one.covered + max(cosine, 0.0) >= together or cosine >= alone


def _first(one: tuple[int, float]) -> tuple[float, int]:
    return -one[1], one[0]
