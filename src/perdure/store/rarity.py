"""How common words are in the documents of one organisation: enough to choose the words that tell chunks apart.

Common words are known from a sample of its chunks, which is read again when it is old; how many chunks have a word that
the sample hardly has is counted, up to a bound. Nothing of other organisations takes part.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence

from perdure.store.base import Query, Steps
from perdure.store.dialect import Dialect

#: Chunks of a sample, from so many documents.
SAMPLE, DOCUMENTS = 1_000, 250
#: A word that fewer chunks of the sample have is counted.
SEEN_LEAST = 4
#: Up to here.
COUNTED = 500
#: An organisation with no more chunks is sampled at each search, whole; another one when the sample is so old.
SMALL = 200
OLD_S = 60.0
ORGANISATIONS = 256  # whose samples are kept


class Sample:
    """Some chunks of an organisation: how many of them have each word."""

    def __init__(self, total: int, texts: Sequence[str]) -> None:
        self.total = total  # chunks of the organisation
        self.size = len(texts)
        self.has: Counter[str] = Counter(word for text in texts for word in set(text.split()))
        self.read_s = time.monotonic()

    @property
    def fresh(self) -> bool:
        return self.total > SMALL and time.monotonic() - self.read_s < OLD_S

    def share(self, word: str) -> float | None:
        """Of chunks with the word; None if it is too rare for the sample to tell."""
        seen = self.has[word]
        return seen / self.size if seen >= SEEN_LEAST else None

    def weight(self, count: float) -> float:
        """Of a word that so many chunks have."""
        total = max(self.total, 1)
        return math.log(1 + (total - min(count, total) + 0.5) / (count + 0.5))


class Rarity:
    """The samples of organisations that were searched lately."""

    def __init__(self, sql: Dialect) -> None:
        self._sql = sql
        self._samples: OrderedDict[str, Sample] = OrderedDict()

    def sample(self, org: str) -> Steps[Sample]:
        """What is known of the organisation's words."""
        found = self._samples.get(org)
        if found is None or not found.fresh:
            found = yield from self._read(org)
            self._samples[org] = found
            while len(self._samples) > ORGANISATIONS:
                self._samples.popitem(last=False)
        self._samples.move_to_end(org)
        return found

    def _read(self, org: str) -> Steps[Sample]:
        documents = [(id_, count) for id_, count in (yield Query(self._sql.INDEXED_SIZES, (org,))) if count]
        total = sum(count for _, count in documents)
        chosen = documents[:: len(documents) // DOCUMENTS + 1]
        each = max(1, math.ceil(SAMPLE / len(chosen))) if chosen else 0
        rows = [(id_, max(1, count // each)) for id_, count in chosen]
        texts = (yield Query(self._sql.CHUNK_WORDS, (org,), rows)) if rows else []
        return Sample(total, [text for (text,) in texts])
