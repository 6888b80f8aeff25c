"""What crosses between a worker and its cells: whole messages, and errors that keep their meaning.

Light on imports, because every cell carries them. Bare descriptors are read and written with `os.read` and `os.write`,
which user code that replaces sockets or sets their default timeout does not reach.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from types import NoneType
from typing import Any

from perdure import errors
from perdure.core.outcome import describe, telling
from perdure.core.traces import formatted
from perdure.engine import wire
from perdure.engine.wire import Malformed
from perdure.errors import PerdureError, redacted

#: Every message: its kind and the length of the body that follows.
HEAD = struct.Struct("!BQ")
READY, CALL, ASK, ANSWER, DONE, RAISED, OUT_OF_MEMORY = range(7)
BODY_MAX = 512 << 20
CHUNK = 1 << 18

#: The name under which a preloaded script is known, so that its `if __name__ == "__main__"` part does not run.
SCRIPT = "__perdure_main__"

TEXT_MAX = 16_000
NAME_MAX = 200


class RemoteError(PerdureError):
    """An exception of another process that is not one of Perdure's; `type_name` is the name of its class."""

    code = "unexpected"

    def __init__(self, type_name: str, message: str, trace: str = "", status_code: int | None = None) -> None:
        super().__init__(message or type_name)
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

_NUMBER, _MAYBE = (float,), (float, NoneType)
#: The errors that cross as what they are, under the names of their classes. No message can add one.
_KINDS: dict[str, type[PerdureError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, PerdureError)
}
#: What they carry besides message and code.
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "Transient": {"retry_after_s": _MAYBE},
    "Rescheduled": {"retry_after_s": _MAYBE},
    "Flickering": {"retry_after_s": _MAYBE, "soon_s": _NUMBER, "asked_s": _NUMBER, "chance": _NUMBER},
    "RetryLater": {"delay_s": _NUMBER, "chance": _MAYBE},
    "CallRefused": {"dependency": (str,)},
    "RateLimited": {"delay_s": _NUMBER, "ours": (bool,), "paused": (bool,), "chance": _MAYBE},
    "DependencyDown": {"name": (str,), "confirmed": (bool,), "heard": (bool,), "unnamed": (bool,)},
}


def crosses(kind: type[PerdureError], **fields: type) -> None:
    """Let an error of the engine itself cross as what it is; called when its module is imported."""
    _KINDS[kind.__name__] = kind
    _FIELDS[kind.__name__] = {name: (type_,) for name, type_ in fields.items()}


def encode_error(error: BaseException) -> bytes:
    """The error as bytes; never fails. One of a class that does not cross is the nearest of its bases that does."""
    named, fields, trace = "", {}, ""
    with suppress(Exception):
        trace = formatted(error)[-TEXT_MAX:]
    with suppress(Exception):
        error = telling(error)
    for kind in type(error).__mro__:
        if _KINDS.get(kind.__name__) is kind:
            with suppress(Exception):  # one whose fields cannot be had is one of its base
                wanted = _FIELDS.get(kind.__name__, {})
                fields = {name: _plain(getattr(error, name), types) for name, types in wanted.items()}
                named = kind.__name__
                break
    about = describe("", error)
    return wire.encode(
        [named, about.error_type[:NAME_MAX], about.message, about.code, about.status_code, trace, fields]
    )


def decode_error(body: bytes) -> PerdureError:
    """The error that `encode_error` was given, as one of the classes that cross, or else a RemoteError.

    Raises: Malformed. The name in the message chooses among classes that are known here, and from no others.
    """
    named, type_name, message, code, status, trace, fields = _parts(wire.decode(body))
    kind = _KINDS.get(named)
    if not named or kind is None:
        error: PerdureError = RemoteError(type_name, redacted(message), trace, status)
    else:
        # Not through __init__: its parameters differ from class to class.
        error = kind.__new__(kind)
        error.args = (redacted(message),)
        error.code = code
        wanted = _FIELDS.get(named, {})
        if fields.keys() != wanted.keys():
            raise Malformed(f"an error of the kind {named} with other fields")
        about: dict[str, Any] = {name: _fitting(fields[name], types) for name, types in wanted.items()}
        if type_name != named:
            about["type_name"] = type_name
        if status is not None:
            about["status_code"] = status
        vars(error).update(about)
    error.add_note(f"In the other process:\n{trace}")
    return error


def _parts(found: Any) -> tuple[str, str, str, str, int | None, str, dict[str, Any]]:
    if not isinstance(found, list) or len(found) != 7:
        raise Malformed("not an error")
    *texts, status, trace, fields = found
    for text in (*texts, trace):
        if type(text) is not str or len(text) > TEXT_MAX:
            raise Malformed("an error with a part that is not text, or too long")
    if status is not None and (type(status) is not int or not 100 <= status <= 599):
        raise Malformed("an error with a status that is not one")
    if type(fields) is not dict:
        raise Malformed("an error without fields")
    named, type_name, message, code = texts
    return named, type_name[:NAME_MAX], message, code[:NAME_MAX], status, trace, fields


def _plain(value: Any, types: tuple[type, ...]) -> Any:
    """What a field is worth in one of these types: a member of an enumeration stands for its text."""
    if value is None and NoneType in types:
        return None
    if str in types:
        return str.__str__(value)[:NAME_MAX]
    return bool(value) if bool in types else float(value)


def _fitting(value: Any, types: tuple[type, ...]) -> Any:
    """The value, if it is of one of these very types. Raises: Malformed."""
    if type(value) not in types or (type(value) is str and len(value) > NAME_MAX):
        raise Malformed("an error with a field of another type")
    return value
