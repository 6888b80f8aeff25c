"""How well a chunk fits what is asked for: one measure for its words and its vector, the same on every database.

By words: the rarer a word is and the more often a chunk has it, the more it counts (BM25), other forms of it less;
that all of them are there counts too, and that words of the query follow each other. By vector: the cosine, stretched
so that the nearest chunk has 1, the last of the nearest 0.5, and one as far behind that 0, as all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from perdure.core.frozen import frozen
from perdure.core.words import Term

#: What words count beside vectors, by model: more beside those that know words one by one.
WORDS = {"wordllama-l2-supercat-256": 0.9, "lexical-hashing-384": 0.9, "all-minilm-l6-v2": 0.82}
WORDS_ELSE = 0.5
#: Of a chunk that covers more of the words' weight than this, the words count for more, up to all.
ENOUGH = {"all-minilm-l6-v2": 0.6}
ENOUGH_ELSE = 0.8
#: Of a word that the chunk has in another form.
FORM = 0.7
#: What makes the score of its words.
OFTEN, COVER, ORDER = 0.5, 0.3, 0.2
SATURATION, LENGTH, LENGTHY = 1.2, 160, 0.5
#: By model: a hit fits if the share of the words' weight that it has and its cosine come to the first together, or the
#: cosine alone to the second. Where nothing is known of a model's cosines, every hit does; also in an
#: organisation with few chunks, which need not have the words of its own subject.
FEW = 1_000
FLOORS = {
    "wordllama-l2-supercat-256": (0.72, 0.5),
    "lexical-hashing-384": (0.6, 0.5),
    "all-minilm-l6-v2": (0.72, 0.45),
}


@frozen
class Wanted:
    """A word or phrase of the query, its other forms, and what it weighs; `count` chunks have it."""

    term: Term
    forms: tuple[str, ...]
    weight: float
    count: float


@frozen
class Fit:
    """How a chunk fits by words, each from 0 to 1: how often it has them, how much of their weight, in which order."""

    often: float = 0.0
    covered: float = 0.0
    ordered: float = 0.0

    @property
    def score(self) -> float:
        return OFTEN * self.often + COVER * self.covered**2 + ORDER * self.ordered


class Measure:
    """What is asked for, prepared once for many chunks."""

    def __init__(self, wanted: Sequence[Wanted], joined: Sequence[Term]) -> None:
        self._most = sum(one.weight for one in wanted)
        self._single = [(one.term[0], one.forms, one.weight) for one in wanted if len(one.term) == 1]
        self._phrases = [(f" {' '.join(one.term)} ", one.weight) for one in wanted if len(one.term) > 1]
        self._pairs = _pairs(wanted, joined)
        self._ordered = sum(weight for _, _, weight in self._pairs) or 1.0

    def fit(self, words: Sequence[str]) -> Fit:
        """The fit of a chunk with these folded words."""
        if not self._most:
            return Fit()
        has = Counter(words)
        text = f" {' '.join(words)} " if self._phrases or self._pairs else ""
        length = SATURATION * (1 - LENGTHY + LENGTHY * (len(words) + 1) / LENGTH)
        often = covered = 0.0
        for word, others, weight in self._single:
            exact = has[word]
            there = exact + FORM * sum([has[form] for form in others if form in has])
            if there:
                often += weight * there / (there + length)
                covered += weight * (1.0 if exact else FORM)
        for phrase, weight in self._phrases:
            if exact := text.count(phrase):
                often += weight * exact / (exact + length)
                covered += weight
        ordered = sum([w for first, pair, w in self._pairs if first in has and f" {pair} " in text])
        return Fit(often / self._most, covered / self._most, ordered / self._ordered)


def _pairs(wanted: Sequence[Wanted], joined: Sequence[Term]) -> list[tuple[str, str, float]]:
    """Words that follow each other in the query after the first of them, and what it weighs that they do; written as
    one, more."""
    weights = {one.term: one.weight for one in wanted}
    pairs = [((*one.term, *other.term), min(one.weight, other.weight)) for one, other in pairwise(wanted)]
    for term in joined:
        if len(term) > 1:
            pairs.append((term, 2 * sum(weights.get((word,), 0.0) for word in term)))
    return [(term[0], " ".join(term), weight) for term, weight in pairs]


def fused(
    fits: dict[int, Fit], cosines: dict[int, float], usual: float, least: float, enough: float = ENOUGH_ELSE
) -> list[tuple[int, float]]:
    """Numbers and scores, best first; words count for `usual`, and `least` is the cosine of the last of the nearest."""
    if not cosines:
        return sorted(((num, one.score) for num, one in fits.items()), key=_first)
    best = max(cosines.values())
    if least >= best:  # there is but one
        least = 0.0 if best > 0 else best - 1.0
    words = _share_of_words(fits.values(), usual, enough)
    scores = {
        num: words * (fits[num].score if num in fits else 0.0)
        + (1 - words) * (max(0.0, 1 + (cosines[num] - least) / (best - least)) / 2 if num in cosines else 0.0)
        for num in {**fits, **cosines}
    }
    return sorted(scores.items(), key=_first)


def share(model: str, words: int) -> float:
    """What words count for beside the model's vectors; a word that is asked for alone is meant as it stands."""
    usual = WORDS.get(model, WORDS_ELSE)
    return usual if words > 1 else (1 + usual) / 2


def _share_of_words(fits: Iterable[Fit], usual: float, enough: float) -> float:
    """What words count for: more where a chunk has nearly all of several, some of them as they follow in the query."""
    covered = ordered = 0.0
    for one in fits:
        covered, ordered = max(covered, one.covered), max(ordered, one.ordered)
    if not covered:
        return 0.0
    return usual + (1 - usual) * max(0.0, covered - enough) / (1 - enough) if ordered else usual


def fits(model: str, one: Fit, cosine: float) -> bool:
    """Whether a hit is worth showing."""
    together, alone = FLOORS.get(model, (0.0, 0.0))
    return one.covered + max(cosine, 0.0) >= together or cosine >= alone


def _first(one: tuple[int, float]) -> tuple[float, int]:
    return -one[1], one[0]
