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
        for argument in ("base_s", "cap_s"):
            value: object = getattr(self, argument)
            if isinstance(value, bool) or not (isinstance(value, int | float) and 0 <= value < math.inf):
                raise PolicyInvalid(
                    f"FullJitter: {argument} must be a number of seconds, 0 or more, not {value!r}"
                )

    def bound_s(self, n: int) -> float:
        """The longest wait before retry `n`; the first is 0."""
        return float(min(self.cap_s, self.base_s * 2 ** min(max(n, 0), EXPONENT_MAX)))

    def delay_s(self, n: int, rand: Callable[[], float]) -> float:
        """The wait before retry `n`; the first is 0."""
        return rand() * self.bound_s(n)
