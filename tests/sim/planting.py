"""How bugs are planted: each is a generator that breaks the engine while it is open, and a promise with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from perdure.store.sqlite_dialect import SqliteDialect
from tests.sim.promises import PROMISES


@dataclass(frozen=True)
class Bug:
    """A planted bug; the simulator must find that one of these promises is broken."""

    name: str
    promises: tuple[str, ...]
    planted: Callable[[], AbstractContextManager[None]]


BUGS: dict[str, Bug] = {}


def breaks(*promises: str) -> Callable[[Callable[[], Iterator[None]]], Bug]:
    """Register the bug under the name of its function."""
    assert PROMISES.keys() >= set(promises)

    def register(plant: Callable[[], Iterator[None]]) -> Bug:
        bug = BUGS[plant.__name__] = Bug(plant.__name__, promises, contextmanager(plant))
        return bug

    return register


@contextmanager
def sql(name: str, old: str, new: str) -> Iterator[None]:
    """A statement in which some words are others."""
    text: Any = getattr(SqliteDialect, name)
    assert old in text, f"{name} does not say {old!r} any more: {text}"
    with mock.patch.object(SqliteDialect, name, text.replace(old, new)):
        yield
