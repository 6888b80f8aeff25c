"""A lane is a set of dependencies under one name: `"openai"`, `"ocr+openai"`, or `""` for none.

Large documents stand in lanes of their own, which end in a mark: `"~"`, `"openai~"`. A large document needs what others
need, so its lane is held and released with theirs, and workers have slots of their own for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.naming import NAME_RULE
from perdure.errors import PipelineInvalid

#: At the end of the lanes of large documents. No name of a dependency contains it, see `core.naming`.
LARGE = "~"
#: Between the names of a lane that has several.
JOIN = "+"


def lane_of(needs: Iterable[str]) -> str:
    """The canonical name of the lane for these dependencies. Raises: PipelineInvalid."""
    names = sorted(set(needs))
    for name in names:
        if LARGE in name or JOIN in name:
            raise PipelineInvalid(f"the name {name!r} of a dependency must be {NAME_RULE}")
    return JOIN.join(names)


def needs_of(lane: str) -> frozenset[str]:
    """The dependencies of a lane."""
    return frozenset(part for part in plain(lane).split(JOIN) if part)


def is_large(lane: str) -> bool:
    """Whether it is a lane of large documents."""
    return lane.endswith(LARGE)


def plain(lane: str) -> str:
    """The lane of the others, which need the same."""
    return lane.removesuffix(LARGE)


def sized(lane: str, large: bool) -> str:
    """The lane of large documents, or of the others, that need what those of `lane` need."""
    return plain(lane) + LARGE if large else plain(lane)


def like(lane: str, other: str) -> str:
    """The lane `lane` for a job of the size of those in `other`."""
    return sized(lane, True) if is_large(other) else lane
