"""How long a call waits before its next try: full jitter, `rand() * min(cap, base * 2^n)`."""

from __future__ import annotations

import math
from collections.abc import Callable

from perdure.core.frozen import frozen
from perdure.errors import PolicyInvalid

#: A larger exponent would only overflow: every cap is reached long before.
EXPONENT_MAX = 62


@frozen
class FullJitter:
    """Waits between nothing and a bound that doubles. Drawn after the cap, so capped waits still spread."""

    base_s: float = 1.0
    cap_s: float = 30.0

    def __post_init__(self) -> None:
        if not (0 <= self.base_s < math.inf and 0 <= self.cap_s < math.inf):
            raise PolicyInvalid(
                f"a backoff has a base and a cap of 0 or more, not {self.base_s!r} and {self.cap_s!r}"
            )

    def bound_s(self, n: int) -> float:
        """The longest wait before retry `n`; the first is 0."""
        return float(min(self.cap_s, self.base_s * 2 ** min(max(n, 0), EXPONENT_MAX)))

    def delay_s(self, n: int, rand: Callable[[], float]) -> float:
        """The wait before retry `n`; the first is 0."""
        return rand() * self.bound_s(n)
