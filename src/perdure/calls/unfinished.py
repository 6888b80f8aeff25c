"""Results that are not there yet: a request, or the rest of one, that would go on outside of the guard.

A guarded call is over when it returns. A coroutine, a generator, a stream of events or a response whose body has not
been read would fail later, where no policy sees it, so such a result is refused and the error says what to do.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import Any

TYPES_MAX = 2_000
READ_INSIDE = "read it inside the guarded function and return what was read"

#: Types whose objects are always whole. Grows as results are seen, so that the usual result costs one lookup.
WHOLE: set[type] = {type(None), bool, int, float, str, bytes, dict, list, tuple, set, frozenset}
_RESPONSES = frozenset({"Response", "ClientResponse", "HTTPResponse"})
_FILES = frozenset({"_io", "io", "tempfile"})


def refuse_unfinished(result: Any) -> None:
    """Raises: TypeError if the result still has to be awaited, iterated, entered or read."""
    kind = type(result)
    response = kind.__name__ in _RESPONSES
    problem = _of_response(result) if response else _of_type(kind)
    if problem is not None:
        _close(result)
        raise TypeError(f"the function returned {_named(kind)}, {problem}")
    if len(WHOLE) < TYPES_MAX and not response:
        WHOLE.add(kind)


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


def _close(result: Any) -> None:
    """Give a connection back, or keep a coroutine from complaining that nobody awaited it."""
    with contextlib.suppress(Exception):
        closed = result.close()
        if hasattr(closed, "close"):  # a coroutine: nobody will await it
            closed.close()


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__
