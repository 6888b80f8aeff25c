"""Options of pipelines and stages that may follow the settings: a value, or a function that tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Option(Generic[T]):
    """An attribute whose value, if it was set to a function, is what that says each time it is read.

    Pipelines belong to no app: which settings hold is known only where one of their options is read.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = f"_{name}"

    def __set__(self, instance: Any, value: T | Callable[[], T]) -> None:
        setattr(instance, self._slot, value)

    def __get__(self, instance: Any, owner: type) -> T:
        value: Any = getattr(instance, self._slot)
        told: T = value() if callable(value) else value
        return told
