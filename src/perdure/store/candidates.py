"""Which chunks are measured: those that have the rare words of a query, however large the store is.

Numbers of chunks are read word by word, the rarest first, until a budget of rows is used up; the other words stand in
so many chunks that they find none. Each chunk has the sum of its words' weights, and the heaviest are measured. If
there are too many, common words are looked up together with the rare ones and count too. Both databases only say which
chunks have a word, so both choose the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, groupby

from perdure.core.forms import forms
from perdure.core.words import Asked, Term
from perdure.store.base import Query, Steps
from perdure.store.dialect import Dialect
from perdure.store.ranking import Wanted
from perdure.store.rarity import Sample

#: Chunks that are measured; more, if many have the same words.
CANDIDATES = 200
CANDIDATES_MAX = 500
#: Rows that words may lead to: the rarest take part until it is used up.
BUDGET = 10_000
#: A word in more chunks than this is not looked up together with others: to have it tells nothing.
COMMON = 50_000
#: Common words that are looked up together with rare ones.
TOGETHER = 4
#: Rows up to which a phrase is counted, or a word of which only a part of the organisation is searched.
COUNTED = 500


class Candidates:
    """One query's lookups in the index, within one organisation, collection or document."""

    def __init__(self, sql: Dialect, sample: Sample, scope: list[str], alone: bool) -> None:
        self._sql = sql
        self._sample = sample
        self._scope = scope
        self._alone = alone  # there is no other organisation
        self._scores: dict[int, float] = {}

    def find(self, asked: Asked) -> Steps[tuple[list[Wanted], list[int]]]:
        """What each word weighs, and the chunks to be measured, the heaviest first."""
        if asked.quoted:
            terms = yield from self._quoted(asked)
        else:
            terms = yield from self._single(asked.single)
            yield from self._joined(asked)
        return terms, heaviest(self._scores)

    def _single(self, single: Sequence[Term]) -> Steps[list[Wanted]]:
        found: dict[Term, Wanted] = {}
        rare: list[Term] = []
        left = BUDGET
        for term, estimate in sorted(self._estimates(single), key=lambda one: one[1]):
            count = estimate
            if estimate <= left:
                numbers = yield from self._numbers([_group(term)], left + 1)
                if len(numbers) <= left:
                    left -= len(numbers)
                    rare.append(term)
                    count = yield from self._counted(term, estimate, len(numbers))
                    self._add(numbers, self._sample.weight(count))
                else:
                    count = max(estimate, len(numbers))
            elif self._sample.share(term[0]) is None:  # only another form of it is common
                numbers = yield from self._numbers([[term]], left + 1)
                if len(numbers) <= left:
                    left -= len(numbers)
                    self._add(numbers, self._sample.weight(count))
            found[term] = self._wanted(term, count)
        common = [one for term, one in found.items() if term not in rare]
        yield from self._common(common, [term for one in rare for term in _group(one)])
        return [found[term] for term in single]

    def _estimates(self, single: Sequence[Term]) -> Iterable[tuple[Term, float]]:
        """How many chunks have each word or a form of it; 0 if the sample does not tell."""
        for term in single:
            share = self._sample.share(term[0], _forms(term))
            yield term, (share or 0.0) * self._sample.total

    def _counted(self, term: Term, estimate: float, rows: int) -> Steps[float]:
        """How many chunks of the organisation have the word: what a part of it has tells nothing of its rarity."""
        if len(self._scope) == 1:
            return float(rows)
        if estimate:
            return estimate
        return float(len((yield from self._numbers([_group(term)], COUNTED, self._scope[:1]))))

    def _common(self, common: list[Wanted], rare: list[Term]) -> Steps[None]:
        """Let common words choose among many chunks that were found; of few, add those that have several of them."""
        common.sort(key=lambda one: one.count)
        telling = [one for one in common if one.count <= COMMON]
        if len(self._scores) > CANDIDATES:
            for one in telling[:TOGETHER]:
                self._add((yield from self._numbers([rare, _group(one.term)], BUDGET)), one.weight)
            return
        some = telling if self._scores or telling else common
        for chosen in [some, *combinations(some[:3], 2)] if len(some) > 1 else []:
            numbers = yield from self._numbers([_group(one.term) for one in chosen], BUDGET)
            self._add(numbers, sum(one.weight for one in chosen))
        if not self._scores and some:
            self._add((yield from self._numbers([_group(some[0].term)], BUDGET)), some[0].weight)

    def _joined(self, asked: Asked) -> Steps[None]:
        """Words that belong together, such as those of `here-document`, find chunks that have them so."""
        heavy = max(self._scores.values(), default=0.0)
        for term in asked.joined:
            if len(term) > 1:
                self._add((yield from self._numbers([[term]], CANDIDATES)), heavy or 1.0)

    def _quoted(self, asked: Asked) -> Steps[list[Wanted]]:
        """Phrases must be there; chunks that have the other words too come first."""
        quoted = [[term] for term in asked.quoted]
        self._add((yield from self._numbers(quoted, BUDGET)), 1.0)
        terms = []
        for term in asked.terms:
            count = float(len((yield from self._numbers([[term]], COUNTED, self._scope[:1]))))
            share = self._sample.share(term[0]) if len(term) == 1 else None
            terms.append(self._wanted(term, (share or 0.0) * self._sample.total or count))
        for one in terms[len(quoted) :] if self._scores else []:
            self._add((yield from self._numbers([*quoted, [one.term]], BUDGET)), one.weight)
        return terms

    def _wanted(self, term: Term, count: float) -> Wanted:
        return Wanted(term, _forms(term), self._sample.weight(count), count)

    def _numbers(
        self, groups: list[list[Term]], limit: int, scope: list[str] | None = None
    ) -> Steps[list[int]]:
        """Of at most so many chunks that have a term of every group."""
        text = self._sql.looked_up(scope or self._scope, groups, self._alone)
        return [num for (num,) in (yield Query(self._sql.CHUNK_FOUND, (limit, text)))]

    def _add(self, numbers: Iterable[int], weight: float) -> None:
        scores = self._scores
        for num in numbers:
            scores[num] = scores.get(num, 0.0) + weight


def heaviest(scores: dict[int, float]) -> list[int]:
    """Numbers with the highest scores; of many that have the same, some from everywhere."""
    found: list[int] = []
    ordered = sorted(scores, key=lambda num: (-scores[num], num))
    for _, group in groupby(ordered, key=scores.__getitem__):
        same = list(group)
        if len(found) + len(same) > CANDIDATES:
            room = max(CANDIDATES - len(found), min(len(same), CANDIDATES_MAX - len(found)))
            found += [same[n * len(same) // room] for n in range(room)] if room < len(same) else same
            break
        found += same
    return found


def _forms(term: Term) -> tuple[str, ...]:
    return forms(term[0]) if len(term) == 1 else ()


def _group(term: Term) -> list[Term]:
    return [term, *((form,) for form in _forms(term))]
