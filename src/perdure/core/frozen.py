"""Immutable values. Every claim, save and event makes a few dozen of them."""

from __future__ import annotations

import dataclasses
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[T]) -> type[T]:
    """A slotted dataclass whose fields never change: the type checker forbids it, nothing is checked at run time.

    Freezing at run time makes a job of 27 fields ten times as expensive (2.7 us instead of 0.27).
    """
    return dataclasses.dataclass(slots=True, unsafe_hash=True)(cls)
