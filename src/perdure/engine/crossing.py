"""What crosses between a worker and its cells: whole messages, and errors that keep their meaning.

Light on imports, because every cell carries them. Bare descriptors are read and written with `os.read` and `os.write`,
which user code that replaces sockets or sets their default timeout does not reach.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import traceback
from contextlib import suppress
from typing import Any

from perdure.errors import PerdureError

#: Every message: its kind and the length of the body that follows.
HEAD = struct.Struct("!BQ")
READY, CALL, ASK, ANSWER, DONE, RAISED, OUT_OF_MEMORY = range(7)
BODY_MAX = 2 << 30
CHUNK = 1 << 18

#: The name under which a preloaded script is known, so that its `if __name__ == "__main__"` part does not run.
SCRIPT = "__perdure_main__"

TEXT_MAX = 16_000
PLAIN = {set, frozenset, bytearray, complex}
PLAIN_MODULES = {"datetime", "decimal", "pathlib", "uuid"}


class RemoteError(PerdureError):
    """Code in another process raised something that cannot be rebuilt here; `type_name` says what it was."""

    code = "unexpected"

    def __init__(self, type_name: str, message: str, trace: str = "", status_code: int | None = None) -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        self.trace = trace
        self.status_code = status_code


# --- messages --------------------------------------------------------------------------------


def send(fd: int, kind: int, body: bytes = b"") -> None:
    """Write one whole message to a blocking descriptor."""
    view = memoryview(body).cast("B")
    head = HEAD.pack(kind, len(view))
    if len(view) < CHUNK:
        head, view = b"", memoryview(head + view)
    for part in (memoryview(head), view):
        sent = 0
        while sent < len(part):
            sent += os.write(fd, part[sent:])


def receive(fd: int) -> tuple[int, bytes]:
    """Read one whole message from a blocking descriptor; EOFError when the other side is gone."""
    kind, size = HEAD.unpack(_exactly(fd, HEAD.size))
    return kind, _exactly(fd, size)


def _exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, CHUNK))
        if not part:
            raise EOFError("the other side is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# --- errors ----------------------------------------------------------------------------------


def encode_error(error: BaseException) -> bytes:
    """The error as bytes; never fails. Perdure's own errors keep their class, message and every field that pickles."""
    parts: dict[str, Any] = {"type": type(error).__qualname__, "message": _message(error), "kin": []}
    parts |= {"trace": "", "status": None, "whole": None, "args": [], "state": {}}
    with suppress(Exception):
        parts["trace"] = "".join(traceback.format_exception(error))[-TEXT_MAX:]
    with suppress(Exception):
        status = getattr(error, "status_code", None) or getattr(error, "response", None)
        status = getattr(status, "status_code", status)
        parts["status"] = status if isinstance(status, int) else None
    if isinstance(error, PerdureError):
        kin = [c for c in type(error).__mro__ if issubclass(c, PerdureError)]
        parts["kin"] = [(c.__module__, c.__qualname__) for c in kin]
        parts["args"] = [_dump(value) for value in error.args]
        parts["state"] = {name: _dump(value) for name, value in vars(error).items()}
    elif isinstance(error, Exception):
        parts["whole"] = _dump(error)
    return pickle.dumps(parts)


def decode_error(body: bytes) -> Exception:
    """The error that `encode_error` was given, or the nearest of Perdure's classes, or a RemoteError.

    Nothing is imported for it and only exceptions and plain values are built. What is not an `Exception`, such as
    SystemExit or a cancellation of the other side, is always a RemoteError: here it would mean something else.
    """
    try:
        parts = _load(body)
        error = _relative(parts) or _rebuilt(parts)
        if error is None:
            error = RemoteError(parts["type"], parts["message"], parts["trace"], parts["status"])
        error.add_note(f"In the other process:\n{parts['trace']}")
        return error
    except Exception as broken:
        return RemoteError("unknown", f"an error that could not be read: {broken}")


def _relative(parts: dict[str, Any]) -> PerdureError | None:
    for module, name in parts["kin"]:
        kind = _known(module, name)
        if not (isinstance(kind, type) and issubclass(kind, PerdureError)):
            continue
        # Not through __init__: its parameters differ from class to class and are not what `args` holds.
        error = kind.__new__(kind)
        error.args = (parts["message"],)
        with suppress(Exception):
            error.args = tuple(_load(value) for value in parts["args"])
        for key, value in parts["state"].items():
            with suppress(Exception):
                error.__dict__[key] = _load(value)
        return error
    return None


def _rebuilt(parts: dict[str, Any]) -> Exception | None:
    misread = (StopIteration, StopAsyncIteration)  # a coroutine that raises these means something else
    with suppress(Exception):
        error = _load(parts["whole"])
        same = type(error).__qualname__ == parts["type"] and _message(error) == parts["message"]
        return error if same and isinstance(error, Exception) and not isinstance(error, misread) else None
    return None


def _message(error: BaseException) -> str:
    try:
        return str(error)[:TEXT_MAX]
    except Exception as broken:
        return f"(its text could not be made: {type(broken).__name__})"


def _dump(value: object) -> bytes | None:
    if isinstance(value, str):
        value = str.__str__(value)  # a member of a string enumeration arrives as the string it stands for
    with suppress(Exception):
        body = pickle.dumps(value)
        return body if len(body) <= CHUNK else None
    return None


def _load(body: bytes) -> Any:
    return _Plain(io.BytesIO(body)).load()


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _known(module, name)
        plain = module in PLAIN_MODULES or (isinstance(found, type) and issubclass(found, BaseException))
        if isinstance(found, type) and (plain or found in PLAIN):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is not known here")


def _known(module: str, name: str) -> Any:
    found: Any = sys.modules.get("__main__" if module == SCRIPT else module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
