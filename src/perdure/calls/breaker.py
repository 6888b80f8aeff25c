"""Whether a dependency is away: a breaker opens on many failures and lets one probe at a time find out if it is back.

    closed ──too many in a row──► open ──interval over──► half_open ──probe succeeded──► closed
      │                            ▲ ▲                        │
      └─many failed─► half_open ───┘ └──────probe failed──────┘
                  (looking: all go)──one succeeded──► closed

A service that answered all before and then fails more than `consecutive` times in a row is away. One that answers a
part of its requests fails so often by chance: then, and when `share` of at least `least` recent ones failed, the
breaker only looks. Every request is a probe; one that succeeds closes it again, and as many failures in a row as chance
does not explain open it.

A probe holds a lease that ends by itself: one that hangs, is cancelled or dies with its thread blocks nobody for ever.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from threading import Lock
from typing import Literal

from perdure.core.frozen import frozen

State = Literal["closed", "open", "half_open"]

#: So unlikely must a row of failures be, if the service answered only this part of the share that it is known to, ...
CHANCE, CAUTION = 1e-5, 0.7
#: ... and of so many results. A service that answers less than this of at least so many is away, too.
BEFORE_LEAST, AWAY_SHARE, AWAY_LEAST = 5, 0.05, 60


@frozen
class Ticket:
    """Leave to send one request. A probe's number tells its lease from an earlier one."""

    probe: bool = False
    number: int = 0


ADMITTED = Ticket()


class Breaker:
    """Only failures that say the service is away belong here: not "too many requests", nothing that is our fault.

    Recent means since the first failure of a window of `window_s`, and half of what a window just before had.
    While the service stays away, probes go out after `patience` of the time it has been away, but not more often
    than every `open_s` and not less often than every `open_max_s`, each spread downwards by a quarter.
    """

    __slots__ = (
        "_bad",
        "_down_s",
        "_good",
        "_lease_s",
        "_lock",
        "_number",
        "_rand",
        "_until_s",
        "_window_s",
        "consecutive",
        "expected",
        "lease_s",
        "least",
        "led",
        "open_max_s",
        "open_s",
        "patience",
        "row",
        "share",
        "state",
        "strained",
        "troubled",
        "window_s",
    )  # fmt: skip

    def __init__(
        self,
        consecutive: int = 10,
        share: float = 0.5,
        least: int = 20,
        window_s: float = 10.0,
        open_s: float = 4.0,
        open_max_s: float = 60.0,
        lease_s: float = 30.0,
        patience: float = 0.2,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self.consecutive, self.share, self.least, self.window_s = consecutive, share, least, window_s
        self.open_s, self.open_max_s, self.lease_s, self.patience = open_s, open_max_s, lease_s, patience
        self.led = False  # by the fleet, which sees all failures in a row and trips it
        self.expected = 1.0  # share of requests that the service answers, as far as the fleet knows
        self.state: State = "closed"
        self.troubled = False  # False while requests go out freely: the only thing a healthy call looks at
        self.strained = False  # whether a failure was counted lately: otherwise a success tells nothing new
        self._rand = rand
        self._lock = Lock()
        self.row = 0  # failures in a row
        self._good = self._bad = 0  # in this window
        self._window_s = float("-inf")  # when this window began
        self._down_s = 0.0  # when it opened first
        self._until_s = 0.0  # open: when a probe may go out
        self._lease_s = 0.0  # half open: when the lease of the probe ends
        self._number = 0

    def admit(self, now_s: float) -> Ticket | None:
        """Leave to send a request; None: refused."""
        if not self.troubled:
            return ADMITTED
        with self._lock:
            if self.state == "closed":
                return ADMITTED
            if now_s < (self._until_s if self.state == "open" else self._lease_s):
                return None
            self.state = "half_open"
            self._lease_s = now_s + self.lease_s
            self._number += 1
            return Ticket(True, self._number)

    @property
    def down_s(self) -> float:
        """When it opened; infinitely long ago while it is closed."""
        return self._down_s if self.troubled else float("-inf")

    def wait_s(self, now_s: float) -> float:
        """How long until a request may be admitted, as far as is known."""
        if not self.troubled:
            return 0.0
        return max(0.0, (self._until_s if self.state == "open" else self._lease_s) - now_s)

    def succeeded(self, now_s: float, probe: bool = False) -> None:
        """A request was answered. While open, one that was sent before proves nothing."""
        self.row = 0
        self._good += 1
        if now_s - self._window_s > self.window_s:
            self.strained = False
        if not self.troubled:
            self.state = "closed"  # it only looked
        elif probe:
            self.reset(now_s)

    def failed(self, now_s: float, probe: bool = False) -> None:
        """A request showed that the service is away."""
        with self._lock:
            if not self.troubled:
                self._count(now_s)
            elif probe and self.state == "half_open":
                self._open(now_s)

    def left(self, now_s: float, ticket: Ticket | None = None) -> None:
        """A request told nothing: cancelled, or an error that is not the service's. Its lease is free again."""
        with self._lock:
            if (
                self.troubled
                and self.state == "half_open"
                and (ticket is None or ticket.number == self._number)
            ):
                self._lease_s = now_s

    def looking(self, now_s: float) -> bool:
        """Whether many requests failed of late, so that each one is a probe, but nobody is stopped."""
        if self.troubled or now_s - self._window_s > 2 * self.window_s:
            return False
        recent = self._good + self._bad
        return self.row > self.consecutive or (recent >= self.least and self._bad >= self.share * recent)

    def trip(self, now_s: float) -> None:
        """Somebody else knows that the service is away."""
        with self._lock:
            if not self.troubled:
                self._down_s = now_s
                self._open(now_s)

    def reset(self, now_s: float) -> None:
        """The service is there: a probe or somebody else knows it."""
        with self._lock:
            self.state = "closed"
            self.row = self._good = self._bad = 0
            self._window_s = now_s
            self.troubled = False

    def _count(self, now_s: float) -> None:
        if (gone_s := now_s - self._window_s) > self.window_s:
            fading = 2 if gone_s < 2 * self.window_s else self._good + self._bad + 1
            self._window_s, self._good, self._bad = now_s, self._good // fading, self._bad // fading
        self.strained = True
        self.row += 1
        self._bad += 1
        recent = self._good + self._bad
        away = recent >= AWAY_LEAST and self._good < AWAY_SHARE * recent
        before = recent - self.row
        answered = min(self.expected, self._good / before) if before >= BEFORE_LEAST else self.expected
        if not self.led and (away or self.too_many(self.row, answered)):
            self._down_s = now_s
            self._open(now_s)
        elif self.looking(now_s):
            self.state = "half_open"

    def too_many(self, row: int, answered: float) -> bool:
        """Whether chance does not explain this many failures in a row, here or of the whole fleet, of a service that
        answered this share of its requests before."""
        if answered >= 1:
            return row > self.consecutive
        by_chance = math.log(CHANCE) / math.log(1 - CAUTION * max(answered, AWAY_SHARE))
        return row > max(self.consecutive, by_chance)

    def _open(self, now_s: float) -> None:
        interval_s = min(self.open_max_s, max(self.open_s, self.patience * (now_s - self._down_s)))
        self._until_s = now_s + interval_s * (1 - self._rand() / 4)
        self.state = "open"
        self.troubled = True
