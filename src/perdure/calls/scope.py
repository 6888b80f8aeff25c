"""Where a call stands: inside which other call, until when, and under which correlation id.

The outermost policy owns the retries; whoever is inside runs once. A deadline holds for everything inside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from perdure.calls.timing import TIMING


class Scope:
    """One running request of a policy. Made for every request, so what is usual is the class's and costs nothing."""

    operation: str
    deadline_s: float | None = None  # monotonic
    nested = False  # another policy made the real requests
    final = False  # one of them must not be repeated
    over = False  # whatever was started inside and still runs is on its own


SCOPE: ContextVar[Scope | None] = ContextVar("perdure_call", default=None)
_CORRELATION: ContextVar[str | None] = ContextVar("perdure_correlation", default=None)


def remaining() -> float | None:
    """Seconds until the deadline of the call that is running, for the timeout of a client that cannot be cut off."""
    scope = SCOPE.get()
    if scope is None or scope.deadline_s is None:
        return None
    return max(0.0, scope.deadline_s - TIMING.clock())


@contextmanager
def correlation(id_: str) -> Iterator[None]:
    """What is logged about calls inside carries this id."""
    token = _CORRELATION.set(id_)
    try:
        yield
    finally:
        _CORRELATION.reset(token)


def correlation_id() -> str | None:
    """The id of `correlation`, where there is one."""
    return _CORRELATION.get()
