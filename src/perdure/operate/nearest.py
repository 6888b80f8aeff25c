"""What a mistyped name may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SHOWN_MAX = 10
#: Callers choose the names of collections, and comparing takes time by the square of their length.
LOOKED_MAX, CHARS_MAX = 200, 50


def nearest(name: str, known: Iterable[str]) -> str:
    """The names that look like it, or else the first of all; in words. Of very many only some are looked at."""
    names = sorted(set(known))
    alike = [one for one in names if len(one) <= CHARS_MAX]
    if len(alike) > LOOKED_MAX:
        alike = [one for one in alike if one[:2] == name[:2]][:LOOKED_MAX]
    if near := get_close_matches(name[:CHARS_MAX], alike, 3):
        return f"did you mean: {', '.join(near)}?"
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return f"there are: {', '.join(names[:SHOWN_MAX])}{more}" if names else "there are none"
