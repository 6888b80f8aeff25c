"""Vectors in memory, searched exactly: one product with all of them. No input or output here.

100,000 vectors of 256 numbers are 102 MB, and looking through them takes some 10 ms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perdure.store.near import Among, Near

Floats = NDArray[np.float32]
GROUP = 8
BLOCK = 64  # vectors that are looked for in one product


def unit(vectors: bytes | Sequence[bytes], dimensions: int) -> Floats:
    """Vectors as rows of length 1; one without direction stays 0 and is like none."""
    joined = vectors if isinstance(vectors, bytes) else b"".join(vectors)
    rows: Floats = np.frombuffer(joined, "<f4").reshape(-1, dimensions).astype(np.float32)
    rows[~np.isfinite(rows).all(axis=1)] = 0.0
    # in double precision: the square of a large number is not infinite there, nor that of a small one 0
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[:, None]
    np.divide(rows, lengths, out=rows, where=lengths > 0)
    return rows


def cosines(vector: bytes, others: Sequence[bytes]) -> list[float]:
    """In double precision, one by one and to six digits: the same whoever asks, from either side."""
    one = np.frombuffer(vector, "<f4").astype(np.float64)
    rows = np.frombuffer(b"".join(others), "<f4").reshape(-1, len(one)).astype(np.float64)
    with np.errstate(all="ignore"):  # what has no direction, or numbers that are none, is like nothing
        lengths = np.sqrt((rows * rows).sum(axis=1)) * np.sqrt((one * one).sum())
        found = np.nan_to_num((rows * one).sum(axis=1) / lengths, nan=0.0, posinf=0.0, neginf=0.0)
    return [round(float(score), 6) for score in found]


class Matrix:
    """The vectors of many documents' chunks; a document's are put in, replaced and taken out together."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.count = 0
        self.mark = 0  # of the last look for changes
        self.server = ""  # whose mark it is
        self.changes: dict[str, str] = {}
        self._rows: Floats = np.empty((0, dimensions), np.float32)
        self._nums = np.empty(0, np.int64)
        self._owners = np.empty(0, np.int32)
        self._codes: dict[str, int] = {}
        self._collections: dict[str, set[int]] = {}

    @property
    def size(self) -> int:
        """In bytes."""
        return self._rows.nbytes + self._nums.nbytes + self._owners.nbytes

    def put(
        self, document: str, collection: str, change: str, nums: Sequence[int], vectors: Sequence[bytes]
    ) -> None:
        """The document has these chunks and no others."""
        self._take_out(document)
        self.changes[document] = change
        code = self._codes.setdefault(document, len(self._codes))
        self._collections.setdefault(collection, set()).add(code)
        if not nums:
            return
        start, end = self.count, self.count + len(nums)
        self._make_room(end)
        self._rows[start:end] = unit(vectors, self.dimensions)
        self._nums[start:end] = nums
        self._owners[start:end] = code
        self.count = end

    def _make_room(self, count: int) -> None:
        if count > len(self._nums):
            room = max(count, len(self._nums) * 5 // 4, 1024)
            self._rows, self._nums, self._owners = (
                np.concatenate([a[: self.count], np.empty((room - self.count, *a.shape[1:]), a.dtype)])
                for a in (self._rows, self._nums, self._owners)
            )

    def _take_out(self, document: str) -> None:
        """The last rows move to where its rows were."""
        if not self.changes.pop(document, ""):
            return
        holes = np.flatnonzero(self._owners[: self.count] == self._codes[document])
        left = self.count - len(holes)
        stay = np.setdiff1d(np.arange(left, self.count), holes, assume_unique=True)
        for array in (self._rows, self._nums, self._owners):
            array[holes[holes < left]] = array[stay]
        self.count = left

    def nearest(
        self, wanted: Floats, limit: int | None, among: Among, least: float = -1.0
    ) -> list[list[Near]]:
        """For each row of `wanted` the most similar chunks (all, without a limit), best first, none below `least`."""
        which = self._among(among)
        nums = self._nums[: self.count] if which is None else self._nums[which]
        rows = self._rows[: self.count] if which is None else self._rows[which]
        if not len(nums):
            return [[] for _ in wanted]
        found: list[list[Near]] = []
        for n in range(0, len(wanted), BLOCK):
            some = wanted[n : n + BLOCK]
            # for one vector the threads of a matrix product only wait for memory, and for each other
            products = np.vecdot(rows, some[0])[None] if len(some) == 1 else some @ rows.T
            found += [_best(scores, nums, limit, least) for scores in products]
        return found

    def _among(self, among: Among) -> NDArray[np.int64] | None:
        """The rows that count; None: all of them."""
        owners = self._owners[: self.count]
        counts: NDArray[np.bool_] | None = None
        if among.but is not None and among.but in self.changes:
            counts = owners != self._codes[among.but]
        if among.document is not None:
            counts = owners == self._codes.get(among.document, -1)
        if among.collection is not None:
            codes = np.fromiter(self._collections.get(among.collection, ()), np.int32)
            inside = np.isin(owners, codes)
            counts = inside if counts is None else counts & inside
        return None if counts is None else np.flatnonzero(counts)


def _best(scores: Floats, nums: NDArray[np.int64], limit: int | None, least: float) -> list[Near]:
    bound = least if limit is None else max(least, _bound(scores, limit))
    places = np.flatnonzero(scores >= bound)
    if limit is not None and len(places) > limit:
        places = places[np.argpartition(scores[places], -limit)[-limit:]]
    found = [Near(float(scores[place]), int(nums[place])) for place in places]
    return sorted(found, key=lambda near: (-near.score, near.num))


def _bound(scores: Floats, limit: int) -> float:
    """That at least `limit` scores reach, and few more do: the best of groups, so that not all are partitioned."""
    groups = scores[: len(scores) // GROUP * GROUP].reshape(-1, GROUP).max(axis=1)
    return float(np.partition(groups, -limit)[-limit]) if len(groups) > limit else -np.inf
