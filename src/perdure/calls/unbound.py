"""Clients that retry by themselves inside a policy because nobody bound them: found when a call fails, reported once.

Their requests multiply ours and no ledger counts them. Only a failed call is looked at, so a call that succeeds costs
nothing.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from perdure.calls.answer import look
from perdure.calls.binding import SdkRetries, named, retries

LOOKED_MAX = 10_000
COUNTED_MAX = 100
_STAINLESS = frozenset({"openai", "anthropic"})

_looked: set[tuple[str, str]] = set()
_warned: set[tuple[str, str]] = set()


def unbound_requests(policy: str, fn: Callable[..., Any], error: Exception) -> int:
    """The requests that the client made beyond the one of this failed call; warn once if it may make any."""
    made = _made(error)
    place = (policy, getattr(fn, "__qualname__", type(fn).__qualname__))
    if made:
        _warn(policy, f"a client of {type(error).__module__.partition('.')[0]}", f"made {made} more requests")
    elif place not in _looked and len(_looked) < LOOKED_MAX:
        _looked.add(place)
        for client in _clients(fn):
            if retries(client):
                _warn(policy, named(client), "may make more requests")
    return made


def forget() -> None:
    """Warn again, as if no client had been seen."""
    _looked.clear()
    _warned.clear()


def _warn(policy: str, client: str, what: str) -> None:
    if (policy, client) in _warned:
        return
    _warned.add((policy, client))
    with suppress(SdkRetries):  # warnings that are errors must not replace the error of the call
        warnings.warn(
            f"{client} retries by itself inside the policy {policy!r} and {what} for each of ours: "
            "call policy.bind(client) once where it is made",
            SdkRetries,
            stacklevel=4,
        )


def _made(error: Exception) -> int:
    """How often the client says that it tried again."""
    package, response = type(error).__module__.partition(".")[0], look(error, "response")
    if package in _STAINLESS:
        sent = look(look(response, "request") or look(error, "request"), "headers")
        said = sent.get("x-stainless-retry-count") if sent is not None else None
        return (
            min(int(said), COUNTED_MAX) if isinstance(said, str) and said.isascii() and said.isdigit() else 0
        )
    if package == "botocore" and isinstance(response, dict):
        tried = response.get("ResponseMetadata", {}).get("RetryAttempts")
        return min(tried, COUNTED_MAX) if isinstance(tried, int) and tried > 0 else 0
    return 0


def _clients(fn: Any) -> Iterator[object]:
    """What a function calls through: its own object, and the objects that it closes over or names."""
    while isinstance(fn, functools.partial):
        yield from fn.args
        fn = fn.func
    owner = getattr(fn, "__self__", None)
    if owner is not None:
        yield owner
        for name in ("_client", "_api_client", "client"):
            yield look(owner, name)
    for cell in getattr(fn, "__closure__", None) or ():
        with suppress(ValueError):  # it is empty
            yield cell.cell_contents
    names = getattr(getattr(fn, "__code__", None), "co_names", ())
    yield from (known[name] for known in (getattr(fn, "__globals__", {}),) for name in names if name in known)
