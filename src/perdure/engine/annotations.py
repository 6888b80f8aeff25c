"""Reading annotations: resolving them, and asking whether one type fits where another is wanted."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Annotated, Any, Union, get_args, get_origin


def hints_of(fn: Callable[..., Any], localns: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The function's annotations, resolved; one that names something not to be found counts as Any."""
    while isinstance(fn, partial):
        fn = fn.func
    if not hasattr(fn, "__annotations__"):
        fn = type(fn).__call__
    names = dict(localns or {})
    try:
        return typing.get_type_hints(fn, localns=names, include_extras=True)
    except Exception:
        return _hints_one_by_one(fn, names)


def return_type(fn: Callable[..., Any]) -> Any:
    """What calling it (and awaiting that) gives; Any where it does not say."""
    if isinstance(fn, type):
        return fn
    hint = hints_of(fn).get("return", Any)
    if get_origin(hint) in (Awaitable, Coroutine):
        return get_args(hint)[-1]
    return hint


def compatible(given: Any, wanted: Any) -> bool:
    """Whether a value of type `given` may be handed to a parameter of type `wanted`; in doubt, yes."""
    given, wanted = bare(given), bare(wanted)
    if given == wanted or Any in (given, wanted) or wanted is object:
        return True
    if is_union(given):
        return all(compatible(member, wanted) for member in get_args(given))
    if is_union(wanted):
        return any(compatible(given, member) for member in get_args(wanted))
    kind, wanted_kind = get_origin(given) or given, get_origin(wanted) or wanted
    if not isinstance(kind, type) or not isinstance(wanted_kind, type):
        return True
    if wanted_kind is float and kind is int:
        return True
    try:
        if not issubclass(dict if typing.is_typeddict(kind) else kind, wanted_kind):
            return False
    except TypeError:  # protocols and typed dicts refuse the question
        return not typing.is_typeddict(wanted_kind)
    arguments, wanted_arguments = get_args(given), get_args(wanted)
    if len(arguments) != len(wanted_arguments):
        return True
    return all(map(compatible, arguments, wanted_arguments))


def bare(hint: Any) -> Any:
    """The type without its metadata."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def is_union(hint: Any) -> bool:
    """Whether it is `A | B`, in either spelling."""
    return get_origin(hint) in (Union, types.UnionType)


def _hints_one_by_one(fn: Callable[..., Any], names: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    globalns = getattr(inspect.unwrap(fn), "__globals__", {})
    for name, annotation in getattr(fn, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= typing.get_type_hints(alone, globalns=globalns, localns=names, include_extras=True)
        except Exception:
            found[name] = Any
    return found
