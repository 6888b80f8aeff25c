"""How long a call waits before its next try: full jitter, `rand() * min(cap, base * 2^n)`."""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.frozen import frozen

#: A larger exponent would only overflow: every cap is reached long before.
EXPONENT_MAX = 62


@frozen
class FullJitter:
    """Waits between nothing and a bound that doubles. Drawn after the cap, so capped waits still spread."""

    base_s: float = 1.0
    cap_s: float = 30.0

    def bound_s(self, n: int) -> float:
        """The longest wait before retry `n`; the first is 0."""
        return float(min(self.cap_s, self.base_s * 2 ** min(max(n, 0), EXPONENT_MAX)))

    def delay_s(self, n: int, rand: Callable[[], float]) -> float:
        """The wait before retry `n`; the first is 0."""
        return rand() * self.bound_s(n)
