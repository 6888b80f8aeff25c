"""Times and sizes as people say them; see `operate.words`."""

from __future__ import annotations

from perdure.operate.words import clock, shown, since, size, span, until

__all__ = ["clock", "shown", "since", "size", "span", "until"]
