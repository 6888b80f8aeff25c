"""Results that are not there yet: a request, or the rest of one, that would go on outside of the guard.

A guarded call is over when it returns. A coroutine, a generator, a stream of events or a response whose body has not
been read would fail later, where no policy sees it, so such a result is refused and the error says what to do.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
from concurrent.futures import Future
from itertools import islice
from typing import Any

TYPES_MAX = 2_000
PARTS_MAX = 32  # of a list or a dictionary that are looked at
READ_INSIDE = "read it inside the guarded function and return what was read"

#: Types whose objects are always whole. Grows as results are seen, so that the usual result costs one lookup.
WHOLE: set[type] = {type(None), bool, int, float, str, bytes, set, frozenset}
_RESPONSES = frozenset({"Response", "ClientResponse", "HTTPResponse", "StreamingBody", "GetResult"})
_OPEN: tuple[object, ...] = (object, Any)  # what is declared so may be awaitable
_FILES = frozenset({"_io", "io", "tempfile"})


def refuse_unfinished(result: Any) -> None:
    """Raises: TypeError if the result, or a part of it, still has to be awaited, iterated, entered or read.

    Only the first parts of a list, a tuple or a dictionary are looked at, and not what these consist of.
    """
    if not isinstance(result, list | tuple | dict):
        if (problem := _problem(result)) is not None:
            _close(result)
            raise TypeError(f"the function returned {_named(type(result))}, {problem}")
        return
    parts = list(islice(result.values() if isinstance(result, dict) else result, PARTS_MAX))
    if WHOLE.issuperset(map(type, parts)):
        return
    found = [
        (part, problem)
        for part in parts
        if not isinstance(part, list | tuple | dict) and (problem := _problem(part)) is not None
    ]
    for part, _ in found:
        _close(part)
    if found:
        part, problem = found[0]
        raise TypeError(
            f"the function returned a {type(result).__name__} with {_named(type(part))}, {problem}"
        )


class NotAwaitable(TypeError):
    """A function that cannot be awaited was given to `acall`: a mistake of the caller, whatever the policy says."""


def refuse_plain(fn: Any) -> None:
    """Raises: NotAwaitable if a plain function says that it returns what cannot be awaited, before it makes a request.

    One that does not say so is known only when it has returned; see `refuse_unawaitable`.
    """
    code = getattr(fn, "__code__", None)
    if code is None or code.co_flags & inspect.CO_COROUTINE or hasattr(fn, "__wrapped__"):
        return
    kind = _declared(fn)
    if kind is not None and kind not in _OPEN and not hasattr(kind, "__await__"):
        raise _not_awaitable(fn, f"returns {_named(kind)}")


def refuse_unawaitable(fn: Any, attempt: Any) -> None:
    """Raises: NotAwaitable if `acall` got a function whose result cannot be awaited."""
    if not inspect.isawaitable(attempt):
        _close(attempt)
        raise _not_awaitable(fn, f"returned {_named(type(attempt))}")


def _declared(fn: Any) -> type | None:
    """The class that a function says it returns; None if it does not say, or in a way that only type checkers read."""
    said = getattr(fn, "__annotations__", {}).get("return")
    if isinstance(said, str):
        head, *parts = said.partition("[")[0].strip().split(".")
        known = getattr(fn, "__globals__", {})
        said = known.get(head, getattr(builtins, head, None))
        for part in parts:
            said = getattr(said, part, None)
    said = getattr(said, "__origin__", said)
    return said if isinstance(said, type) and not getattr(said, "_is_protocol", False) else None


def _not_awaitable(fn: Any, what: str) -> NotAwaitable:
    return NotAwaitable(
        f"{getattr(fn, '__qualname__', type(fn).__qualname__)} {what}, which cannot be awaited: `acall` takes "
        "coroutine functions and those that return an awaitable; use `policy.call(...)` for others"
    )


def _problem(result: Any) -> str | None:
    """Why this result is not whole."""
    kind = type(result)
    if kind in WHOLE:
        return None
    response = kind.__name__ in _RESPONSES
    problem = _of_response(result) if response else _of_type(kind)
    if problem is None and not response and len(WHOLE) < TYPES_MAX:
        WHOLE.add(kind)
    return problem


def _of_type(kind: type) -> str | None:
    """Why no object of this type is whole."""
    if hasattr(kind, "__await__"):
        return "which is not awaited yet: use `await policy.acall(...)`, and await it inside the guarded function"
    if hasattr(kind, "gi_frame") or hasattr(kind, "ag_frame"):
        return "a generator: the items that it yields would not be guarded; return a list"
    if issubclass(kind, Future):
        return "which runs outside of the guard: call the function itself, or guard it in its thread"
    if issubclass(kind, contextlib.AbstractContextManager | contextlib.AbstractAsyncContextManager) and (
        kind.__name__.endswith(("ContextManager", "StreamManager"))
    ):
        return f"whose request begins when it is entered: enter it inside the guarded function; {READ_INSIDE}"
    streamed = hasattr(kind, "__next__") or hasattr(kind, "__anext__")
    local = kind.__module__ in _FILES or hasattr(kind, "fetchall")  # a file, or a cursor that has its rows
    return f"a stream: {READ_INSIDE}" if streamed and not local else None


def _of_response(result: Any) -> str | None:
    """Why this response is not whole; one whose body has been read is."""
    package, own = type(result).__module__.partition(".")[0], getattr(result, "__dict__", {})
    unread = {
        "httpx": lambda: "_content" not in own and not result.is_closed,
        "httpx2": lambda: "_content" not in own and not result.is_closed,
        "requests": lambda: own.get("_content") is False and not own.get("_content_consumed"),
        "aiohttp": lambda: getattr(result, "_body", b"") is None and not _empty(result),
        "botocore": lambda: not result.closed and not _consumed(result),
        "builtins": lambda: hasattr(result, "bytes_async"),  # of obstore
        "http": lambda: not result.isclosed(),  # as urlopen gives it
        "urllib3": lambda: own.get("_body") is None and not result.closed,
    }.get(package)
    try:
        return f"whose body has not been read: {READ_INSIDE}" if unread is not None and unread() else None
    except Exception:  # this version of it is made differently inside
        return None


def _empty(response: Any) -> bool:
    """Whether an answer of aiohttp has no body, by what its head says."""
    return bool(
        response.method == "HEAD" or response.status in (204, 304) or response.headers.get("content-length") == "0"
    )  # fmt: skip


def _consumed(body: Any) -> bool:
    """Whether all of a body of botocore has been read."""
    length = body._content_length
    return length is not None and body._amount_read >= int(length)


def _close(result: Any) -> None:
    """Give a connection back, cancel a task, or keep a coroutine from complaining that nobody awaited it."""
    with contextlib.suppress(Exception):
        if hasattr(result, "cancel"):
            result.cancel()
            return
        closed = result.close()
        if hasattr(closed, "close"):  # a coroutine: nobody will await it
            closed.close()


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
