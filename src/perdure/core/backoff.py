"""How long to wait before the next attempt: `base * 2^(attempts_made - 1)`, capped, optionally full jitter."""

from __future__ import annotations

import random
from collections.abc import Callable

from perdure.core.frozen import frozen

#: 2^62 ms is longer than anything stored; a larger exponent would only overflow.
EXPONENT_MAX = 62
DELAY_MS_MAX = 2**53


@frozen
class Backoff:
    """An exponential schedule. Jitter is drawn after the cap, so a capped delay still spreads."""

    base_ms: int = 2_000
    cap_ms: int | None = None
    jitter: bool = False

    def delay_ms(self, attempts_made: int, rand: Callable[[], float] = random.random) -> int:
        """The wait after `attempts_made` attempts (1 or more)."""
        exponent = min(max(attempts_made, 1) - 1, EXPONENT_MAX)
        cap_ms = DELAY_MS_MAX if self.cap_ms is None else min(self.cap_ms, DELAY_MS_MAX)
        bound = min(self.base_ms * 2**exponent, cap_ms)
        return int(rand() * bound) if self.jitter else bound
