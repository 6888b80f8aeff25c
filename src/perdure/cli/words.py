"""Times and sizes as people say them; see `operate.words`."""

from __future__ import annotations

from perdure.operate.words import clock, since, size, span, until

__all__ = ["clock", "since", "size", "span", "until"]
