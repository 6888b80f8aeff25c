"""A lane is a set of dependencies under one name: `"openai"`, `"ocr+openai"`, or `""` for none.

Large documents stand in lanes of their own, which end in a mark: `"~"`, `"openai~"`. A large document needs what others
need, so its lane is held and released with theirs, and workers have slots of their own for it.

A stage with a fallback does not wait for its dependency, but a limit of the dependency (`core.limit_key`) counts it:
the name has a mark, `"vision?"`.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.naming import NAME_RULE
from perdure.errors import PipelineInvalid

#: At the end of the lanes of large documents. No name of a dependency contains it, see `core.naming`.
LARGE = "~"
#: Between the names of a lane that has several.
JOIN = "+"
#: At the end of the name of a dependency that its stage can do without.
SOFT = "?"


def lane_of(needs: Iterable[str], soft: bool = False) -> str:
    """The canonical name of the lane for these dependencies; `soft`: the stage can do without. Raises:
    PipelineInvalid."""
    names = sorted(set(needs))
    for name in names:
        if not {LARGE, JOIN, SOFT}.isdisjoint(name):
            raise PipelineInvalid(f"the name {name!r} of a dependency must be {NAME_RULE}")
    return JOIN.join(name + SOFT if soft else name for name in names)


def needs_of(lane: str) -> frozenset[str]:
    """The dependencies that jobs of a lane wait for."""
    return frozenset(part for part in plain(lane).split(JOIN) if part and not part.endswith(SOFT))


def uses_of(lane: str) -> frozenset[str]:
    """The dependencies that jobs of a lane call, also those that they can do without."""
    return frozenset(part.removesuffix(SOFT) for part in plain(lane).split(JOIN) if part)


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
