"""What a mistyped name may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN_MAX = 10


def nearest(name: str, known: Iterable[str]) -> str:
    """The names that look like it, or else the first of all; in words."""
    names = sorted(set(known))
    if near := get_close_matches(name, names, 3):
        return f"did you mean: {', '.join(near)}?"
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return f"there are: {', '.join(names[:SHOWN_MAX])}{more}" if names else "there are none"
