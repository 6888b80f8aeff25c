"""Clients that retry by themselves inside a policy because nobody bound them: reported once.

Their requests multiply ours, and the ledger counts them only when a call fails. So the clients that a function calls
through are looked at when a policy calls it for the first time, the second, the fourth, the eighth and so on, whether
it succeeds or not: a client may be made, or handed in, only later. Other calls cost a lookup.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from perdure.calls import answer
from perdure.calls.binding import SdkRetries, named, retries

LOOKED_MAX = 10_000
ATTRIBUTES_MAX = 100
COUNTED_MAX = 100
_STAINLESS = frozenset({"openai", "anthropic"})
_HELD = ("_client", "_api_client", "client")  # where parts of a client keep the whole

#: Calls until a function is looked at again, by the id of its code or type, or of its name; see `_place`.
Looked = dict[int, int]

_looked: dict[str, Looked] = {}  # by policy
_kept: dict[int, object] = {}  # what these ids belong to, so that no other object gets them
_gaps: dict[tuple[str, int], int] = {}  # calls between the last two looks, by policy and id
_warned: set[tuple[str, str, str]] = set()


def looked_of(policy: str) -> Looked:
    """The functions of the policies of this name whose clients were looked at."""
    return _looked.setdefault(policy, {})


def look(
    policy: str, looked: Looked, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Warn once of clients that the function is called with and that retry by themselves, if it is time to look."""
    place = _place(fn)
    if (left := looked.get(id(place), 0)) > 0:
        looked[id(place)] = left - 1
        return
    if len(_kept) >= LOOKED_MAX:
        forget_places()
    _kept[id(place)] = place
    looked[id(place)] = gap = _gaps.get((policy, id(place)), 0)
    _gaps[policy, id(place)] = 2 * gap + 1
    try:
        for client in _clients(fn, args, kwargs):
            kinds = (named(client), _package(client))
            _warn(policy, fn, kinds[0], kinds, "may make more requests")
    except Exception:  # foreign objects may do anything, and a call does not fail because of a warning
        return


def unbound_requests(policy: str, fn: Callable[..., Any], error: Exception) -> int:
    """The requests that the client made beyond the one of this failed call; warn if nobody did."""
    made = _made(error)
    if made:
        package = _package(error)
        _warn(policy, fn, f"a client of {package}", (package,), f"made {made} more requests")
    return made


def forget() -> None:
    """Warn again, as if no client had been seen."""
    forget_places()
    _warned.clear()


def forget_places() -> None:
    """Look at all functions again."""
    for looked in _looked.values():
        looked.clear()
    _kept.clear()
    _gaps.clear()


def _place(fn: Any) -> object:
    """What stands for a function that may be made anew for each call: its code, or its type. Decorated functions share
    the code of their decorator, and their name tells them apart."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    if code is None:
        return type(fn)
    named = hasattr(fn, "__wrapped__") and isinstance(name := getattr(fn, "__qualname__", None), str)
    return name if named else code


def _warn(policy: str, fn: Any, client: str, kinds: tuple[str, ...], what: str) -> None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    function = str(answer.look(fn, "__qualname__") or type(fn).__qualname__)
    if (policy, function, kinds[0]) in _warned:
        return
    _warned.update((policy, function, kind) for kind in kinds)
    with suppress(SdkRetries):  # warnings that are errors must not replace the result of the call
        warnings.warn(
            f"{client} retries by itself inside the policy {policy!r} and {what} for each of ours: "
            "call policy.bind(client) once where it is made",
            SdkRetries,
            stacklevel=5,
        )


def _made(error: Exception) -> int:
    """How often the client says that it tried again."""
    package, response = _package(error), answer.look(error, "response")
    if package in _STAINLESS:
        sent = answer.look(answer.look(response, "request") or answer.look(error, "request"), "headers")
        said = sent.get("x-stainless-retry-count") if sent is not None else None
        return (
            min(int(said), COUNTED_MAX) if isinstance(said, str) and said.isascii() and said.isdigit() else 0
        )
    if package == "botocore" and isinstance(response, dict):
        tried = response.get("ResponseMetadata", {}).get("RetryAttempts")
        return min(tried, COUNTED_MAX) if isinstance(tried, int) and tried > 0 else 0
    return 0


def _package(thing: object) -> str:
    return type(thing).__module__.partition(".")[0]


def _clients(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[object]:
    """The clients that a function calls through and that retry by themselves, as far as can be seen."""
    for found in _seen(fn, args, kwargs):
        own = _attributes(found)
        known = (found, *(own[name] for name in _HELD if name in own))
        yield from islice(filter(retries, known), 1)  # not its parts as well


def _seen(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[object]:
    """What a function is given, closes over or names; its object or first argument, with attributes."""
    while isinstance(fn, functools.partial):
        args, kwargs, fn = (*fn.args, *args), {**fn.keywords, **kwargs}, fn.func
    yield from islice(chain(args, kwargs.values()), ATTRIBUTES_MAX)
    code = getattr(fn, "__code__", None)
    owner = getattr(fn, "__self__", None) if code is not None else fn
    yield owner
    for holder in (owner, *args[:1]):
        if holder is not None and not retries(holder):
            yield from islice(_attributes(holder).values(), ATTRIBUTES_MAX)
    fn = inspect.unwrap(fn)
    for cell in getattr(fn, "__closure__", None) or ():
        with suppress(ValueError):  # it is empty
            yield cell.cell_contents
    known, names = getattr(fn, "__globals__", {}), getattr(getattr(fn, "__code__", None), "co_names", ())
    yield from (known[name] for name in names if name in known)


def _attributes(thing: object) -> Mapping[str, object]:
    """The values that an object itself has; no property of it runs."""
    own: object = getattr(thing, "__dict__", None)
    return own if isinstance(own, dict) else {}
