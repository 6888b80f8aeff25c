"""Answers that last: how many of a kind are open at a time, in all and of one organisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perdure.api.refused import Refused


class Slots:
    """At most `most` at a time, and `most_of_one` of an organisation. `refusal` makes the error for a further one; it
    is called with True if the organisation has all of its own."""

    def __init__(self, most: int, most_of_one: int, refusal: Callable[[bool], Refused]) -> None:
        self.most, self.most_of_one = most, most_of_one
        self._refusal = refusal
        self._of: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return self._of.total()

    @contextmanager
    def place(self, org: str) -> Iterator[None]:
        """Hold one of them for the block. Raises: Refused."""
        own = self._of[org] >= self.most_of_one
        if own or self.open >= self.most:
            raise self._refusal(own)
        self._of[org] += 1
        try:
            yield
        finally:
            self._of[org] -= 1
            if not self._of[org]:
                del self._of[org]
