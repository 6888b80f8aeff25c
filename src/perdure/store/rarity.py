"""How common words are in the documents of one organisation: enough to choose the words that tell chunks apart.

Common words are known from a sample of its chunks, which is read again when it is old: every n-th chunk in the order of
the documents, so each text stands for equally many and no large document is left out. A word that the sample hardly has
is counted when it is looked up. Nothing of other organisations takes part.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence

from perdure.store.background import beside
from perdure.store.base import Driver, Query, Steps

#: Chunks of a sample, about.
SAMPLE = 1_000
#: A word that fewer chunks of the sample have is counted.
SEEN_LEAST = 4
#: The sample of an organisation with no more chunks is read again after each change; another one when it is so old.
SMALL = 200
OLD_S = 60.0
ORGANISATIONS = 256  # whose samples are kept


class Sample:
    """Some chunks of an organisation: how many of them have each word."""

    def __init__(self, total: int, texts: Sequence[str], change: int = 0) -> None:
        self.total = total  # chunks of the organisation
        self.change = change  # the last one of its documents
        self.size = len(texts)
        self.has: Counter[str] = Counter(word for text in texts for word in set(text.split()))
        self.read_s = time.monotonic()

    @property
    def old(self) -> bool:
        return time.monotonic() - self.read_s >= OLD_S

    def share(self, word: str, forms: Sequence[str] = ()) -> float | None:
        """Of chunks with the word or a form of it; None if they are too rare for the sample to tell."""
        seen = self.has[word] + sum(self.has[form] for form in forms)
        return min(1.0, seen / self.size) if seen >= SEEN_LEAST else None

    def weight(self, count: float) -> float:
        """Of a word that so many chunks have."""
        total = max(self.total, 1)
        return math.log(1 + (total - min(count, total) + 0.5) / (count + 0.5))


class Rarity:
    """The samples of organisations that were searched lately; used on the event loop alone."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._samples: OrderedDict[str, Sample] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def sample(self, org: str) -> Sample:
        """What is known of the organisation's words. One search at a time reads it; others use the old one or wait."""
        known = self._samples.get(org)
        lock = self._locks.setdefault(org, asyncio.Lock())
        if known is not None and not known.old and known.total <= SMALL:
            wanted = await self._driver.read(lambda: self._change(org)) != known.change
        else:
            wanted = known is None or (known.old and not (lock.locked() and known.total > SMALL))
        if known is None or wanted:
            async with lock:
                known = await self._renewed(org, self._samples.get(org))  # another search may have read it
        if org in self._samples:
            self._samples.move_to_end(org)
        return known

    async def _renewed(self, org: str, known: Sample | None) -> Sample:
        """The sample that is known if it is neither old nor changed, else a new one; in one read."""
        read = await self._driver.read(
            lambda: self._read(org, None if known is None or known.old else known.change)
        )
        if read is None:
            assert known is not None
            return known
        total, texts, change = read
        found = await beside(sum(map(len, texts)), Sample, total, texts, change)
        self._samples[org] = found
        while len(self._samples) > ORGANISATIONS:
            gone, _ = self._samples.popitem(last=False)
            self._locks.pop(gone, None)
        return found

    def _change(self, org: str) -> Steps[int]:
        return int((yield Query(self._driver.dialect.INDEXED_LAST, (org,)))[0][0])

    def _read(self, org: str, unless: int | None) -> Steps[tuple[int, list[str], int] | None]:
        """None if the last change is still this one."""
        sql = self._driver.dialect
        change = yield from self._change(org)
        if change == unless:
            return None  # what another search has read is right
        total = int((yield Query(sql.INDEXED_TOTAL, (org,)))[0][0])
        each = max(1, total // SAMPLE)
        documents = yield Query(sql.INDEXED_EACH, (org, each))
        rows = (yield Query(sql.CHUNK_WORDS, (org,), documents)) if documents else []
        return total, [words for (words,) in rows], change
