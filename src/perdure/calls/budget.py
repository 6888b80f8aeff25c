"""How many retries a dependency can bear: each costs a token, successes earn them back.

While most calls succeed there is always a token. When they fail the reserve is soon used up, and from then on the load
is that of the first tries alone: retries never multiply an overload.
"""

from __future__ import annotations


class Budget:
    """A bucket that starts full. A token more or less when threads meet does no harm, so nothing is locked."""

    __slots__ = ("ratio", "reserve", "tokens")

    def __init__(self, reserve: float = 10.0, ratio: float = 0.1) -> None:
        self.reserve = reserve  # retries that may go out at once after a quiet time
        self.ratio = ratio  # retries that each success allows in the long run
        self.tokens = reserve

    def spend(self, cost: float = 1.0) -> bool:
        """Whether a retry may go out; if so its tokens are taken."""
        if self.tokens < cost:
            return False
        self.tokens = max(0.0, self.tokens - cost)
        return True

    def earn(self) -> None:
        """A success came back."""
        tokens = self.tokens
        if tokens < self.reserve:
            self.tokens = min(self.reserve, tokens + self.ratio)
