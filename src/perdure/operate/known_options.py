"""Options of verbs that take them by name: a misspelt one is refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.errors import InputInvalid
from perdure.operate.nearest import nearest


def refuse_unknown(verb: str, given: Iterable[str], options: type, code: str = "input_invalid") -> None:
    """Refuse names that the TypedDict `options` does not have; the error names the nearest ones.

    Raises: InputInvalid.
    """
    known = options.__annotations__
    if unknown := sorted(set(given) - set(known)):
        raise InputInvalid(
            f"{verb} does not take {', '.join(unknown)}; {nearest(unknown[0], known)}", code=code
        )
