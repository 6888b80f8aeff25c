"""How many retries a dependency can bear: each costs a token, successes earn them back.

While most calls succeed there is always a token. When they fail the reserve is soon used up, and from then on the load
is that of the first tries alone: retries never multiply an overload. Where the fleet found out that a service answers
only a share of its requests, however few these are, that share costs nothing, and a lower one does. While the fleet
limits all requests (`unmetered`), retries have their turns like any other and cost nothing.
"""

from __future__ import annotations


class Budget:
    """A bucket that starts full. A token more or less when threads meet does no harm, so nothing is locked."""

    __slots__ = ("ratio", "reserve", "share", "tokens", "unmetered")

    def __init__(self, reserve: float = 10.0, ratio: float = 0.1) -> None:
        self.reserve = reserve  # retries that may go out at once after a quiet time
        self.ratio = ratio  # retries that each success allows in the long run
        self.tokens = reserve
        self.share = 1.0  # of requests that is expected to succeed
        self.unmetered = False

    def spend(self, cost: float = 1.0) -> bool:
        """Whether a retry may go out; if so its tokens are taken."""
        if self.unmetered:
            return True
        cost *= self.share
        if self.tokens < cost:
            return False
        self.tokens = max(0.0, self.tokens - cost)
        return True

    def earn(self) -> None:
        """A success came back."""
        tokens = self.tokens
        if tokens < self.reserve:
            # as much as expected failures cost, and more
            earned = self.ratio * self.share + 1.1 * (1 - self.share)
            self.tokens = min(self.reserve, tokens + earned)
