"""Numbers under names, in memory that outlives the process which counts.

A worker's child counts on a board that its supervisor made, reads and shows: nothing is lost when the child is killed,
and the next child goes on where it stopped. A name is written before it counts, so a reader sees it whole or not yet.
"""

from __future__ import annotations

import json
import logging
import mmap
import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from threading import Lock

from perdure.engine.slate import shared_memory
from perdure.watch.metrics import BY_NAME, LABEL_VALUES_MAX, OTHER, label

SLOT = 512
SLOTS = 8192
SIZE = SLOT * SLOTS
_VALUE = struct.Struct("<d")
_LENGTH = struct.Struct("<H")
_NAMED = _VALUE.size + _LENGTH.size
_log = logging.getLogger("perdure.metrics")

#: A metric's name and the values of its labels. A histogram has one for each bucket (by its number) and one for `sum`.
Key = tuple[str, ...]
SUM = "sum"


class Board:
    """Counts of one process; see above for who may read them."""

    def __init__(self, memory: bytearray | mmap.mmap, fd: int = -1) -> None:
        self._memory = memory
        self.fd = fd
        self._lock = Lock()  # calls end in threads
        self._places: dict[Key, int] = {}
        self._values: dict[tuple[str, int], set[str]] = defaultdict(set)
        for place, key in self._named():
            self._places[key] = place
            self._remember(key)

    @classmethod
    def private(cls) -> Board:
        """For a process that shows its own."""
        return cls(bytearray(SIZE))

    @classmethod
    def shared(cls) -> Board:
        """For a child process, which attaches to `fd`."""
        return cls(*shared_memory("perdure-board", SIZE))

    @classmethod
    def attached(cls, fd: int) -> Board:
        """The board that the parent process made, with what an earlier child counted."""
        return cls(mmap.mmap(fd, SIZE), fd)

    # --- counting --------------------------------------------------------------------------------

    def add(self, name: str, *labels: str, amount: float = 1.0) -> None:
        """Count."""
        with self._lock:
            self._add((name, *labels), amount)

    def put(self, name: str, *labels: str, value: float) -> None:
        """Note how much there is now."""
        with self._lock:
            if (place := self._place((name, *labels))) is not None:
                _VALUE.pack_into(self._memory, place, value)

    def observe(self, name: str, *labels: str, value: float) -> None:
        """Count it in its bucket."""
        bucket = bisect_left(BY_NAME[name].buckets, value)
        with self._lock:
            self._add((name, *labels, str(bucket)), 1.0)
            self._add((name, *labels, SUM), value)

    def start(self, name: str, *labels: str) -> None:
        """It begins at 0: what only appears when something has happened cannot be seen to rise."""
        metric = BY_NAME[name]
        with self._lock:
            if metric.kind == "histogram":
                for part in (*map(str, range(len(metric.buckets) + 1)), SUM):
                    self._place((name, *labels, part))
            else:
                self._place((name, *labels))

    def _add(self, key: Key, amount: float) -> None:
        if (place := self._place(key)) is not None:
            (value,) = _VALUE.unpack_from(self._memory, place)
            _VALUE.pack_into(self._memory, place, value + amount)

    def _place(self, key: Key) -> int | None:
        """Where its value is; None where there is no room for one more."""
        place = self._places.get(key)
        if place is not None:
            return place
        key = self._bounded(key)
        place = self._places.get(key)
        return self._new(key) if place is None else place

    def _new(self, key: Key) -> int | None:
        if len(self._places) >= SLOTS:
            return None
        place = len(self._places) * SLOT
        name = json.dumps(key, ensure_ascii=False).encode()
        self._memory[place + _NAMED : place + _NAMED + len(name)] = name
        _LENGTH.pack_into(self._memory, place + _VALUE.size, len(name))
        self._places[key] = place
        self._remember(key)
        if len(self._places) == SLOTS:
            _log.warning("there is no room for more than %d numbers; further ones are not shown", SLOTS)
        return place

    def _bounded(self, key: Key) -> Key:
        """With `other` for values of labels that would be too many."""
        name, *values = key
        bounded = []
        for number, value in enumerate(map(label, values)):
            seen = self._values[name, number]
            bounded.append(value if value in seen or len(seen) < LABEL_VALUES_MAX else OTHER)
        return (name, *bounded)

    def _remember(self, key: Key) -> None:
        for number, value in enumerate(key[1:]):
            self._values[key[0], number].add(value)

    # --- reading ---------------------------------------------------------------------------------

    def read(self) -> dict[Key, float]:
        """All that was counted so far, by this process or by whoever shares the memory."""
        return {key: _VALUE.unpack_from(self._memory, place)[0] for place, key in self._named()}

    def _named(self) -> Iterable[tuple[int, Key]]:
        for place in range(0, SIZE, SLOT):
            (length,) = _LENGTH.unpack_from(self._memory, place + _VALUE.size)
            if not length:
                return
            yield place, tuple(json.loads(bytes(self._memory[place + _NAMED : place + _NAMED + length])))


def together(boards: Iterable[Board]) -> dict[Key, float]:
    """What several boards counted, added up."""
    total: dict[Key, float] = defaultdict(float)
    for board in boards:
        for key, value in board.read().items():
            total[key] += value
    return total
