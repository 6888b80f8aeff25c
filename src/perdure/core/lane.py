"""A lane is a set of dependencies under one name: `"openai"`, `"ocr+openai"`, or `""` for none."""

from __future__ import annotations

from collections.abc import Iterable


def lane_of(needs: Iterable[str]) -> str:
    """The canonical name of the lane for these dependencies."""
    return "+".join(sorted(set(needs)))


def needs_of(lane: str) -> frozenset[str]:
    """The dependencies of a lane."""
    return frozenset(part for part in lane.split("+") if part)
