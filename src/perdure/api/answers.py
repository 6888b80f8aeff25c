"""Answers of the processes that read JSON: plain values (`engine.wire`), made into entries and errors by the server.

Such a process parses foreign bodies, so its answers are not trusted. To read one imports and calls nothing. Only the
types, fields, files and errors that are listed here can come of it; with anything else the answer is Malformed.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from perdure.api.entries import Asking
from perdure.api.refused import Invalid, Refused
from perdure.engine import wire
from perdure.engine.intake import Content
from perdure.engine.wire import Malformed
from perdure.errors import InputInvalid, InputTooLarge, PerdureError, UsageError

#: A thousand documents, each with inline content and `meta` of the largest size, and their other fields.
BYTES_MAX = 128 << 20
KINDS = ("text", "bytes", "json")
#: Files in the directory of the body that an answer may name: the body itself, and large content.
_FILE = re.compile(r"body|content-[0-9]{1,4}")
_TEXTS = ("url", "name", "media_type", "collection", "key")
_NUMBERS: dict[str, tuple[type, ...]] = {
    "attempts": (int,), "priority": (int,), "dedupe": (bool,), "delay_s": (int, float), "meta_json": (bytes,),
}  # fmt: skip
_ERRORS: dict[str, type[UsageError]] = {
    error.__name__: error for error in (InputInvalid, InputTooLarge, UsageError)
}


def encode(work: Callable[[], Any]) -> bytes:
    """Do the work, and encode what it returns or raises."""
    try:
        try:
            return wire.encode(_written(work()))
        except (PerdureError, OSError, MemoryError) as error:
            return wire.encode(_error_written(error))
    except Exception:
        return wire.encode({"bug": traceback.format_exc()})


def decode(answer: bytes, room: Path | None) -> Any:
    """What the work returned; `room` is the directory of the body. Raises: what the work raised; Malformed."""
    try:
        match wire.decode(answer):
            case {"asking": [*entries], "request": str(request)}:
                return Asking([_entry(one, room) for one in entries], request)  # type: ignore[misc]
            case {"token": token, "job": str() | None as job, "output": output}:
                return _token(token), job, _content(output, room)
            case {"value": value}:
                return value
            case {"raised": str(name), "with": [*given]}:
                error = _error(name, given)
            case {"bug": str(told)}:
                error = RuntimeError(told)
            case _:
                raise Malformed("it is no answer")
    except (ValueError, KeyError, TypeError) as wrong:
        raise Malformed(f"an answer of a process that reads JSON: {wrong}") from None
    raise error


def _written(value: Any) -> dict[str, Any]:
    match value:
        case Asking(entries=entries, request=request):
            return {
                "asking": [[name, _options_written(given)] for name, given in entries],
                "request": request,
            }
        case (int() | str() as token, str() | None as job, Content() as output):
            said = ["whole" if isinstance(token, int) else "text", str(token)]  # an integer of any size
            return {"token": said, "job": job, "output": _content_written(output)}
    return {"value": value}


def _options_written(given: Any) -> dict[str, Any]:
    made = dict(given)
    if "content" in made:
        made["content"] = _content_written(made["content"])
    if "path" in made:
        made["path"] = Path(made["path"]).name
    if "run_at" in made:
        made["run_at"] = made["run_at"].isoformat()
    return made


def _content_written(content: Content) -> list[Any]:
    return [content.kind, content.data.name if isinstance(content.data, Path) else content.data]


def _error_written(error: BaseException) -> dict[str, Any]:
    match error:
        case Refused():
            return {"raised": "Refused", "with": [error.status, error.code, str(error)]}
        case Invalid():
            errors = [[list(one["loc"]), one["msg"]] for one in error.errors]
            return {"raised": "Invalid", "with": [errors, error.left]}
        case PerdureError() if type(error).__name__ in _ERRORS:
            return {"raised": type(error).__name__, "with": [str(error), error.code]}
        case OSError():
            return {"raised": "OSError", "with": [error.errno or 0, error.strerror or str(error)]}
        case MemoryError():
            return {"raised": "MemoryError", "with": []}
    raise error


def _entry(entry: Any, room: Path | None) -> tuple[str, dict[str, Any]]:
    match entry:
        case [str(pipeline), dict(given)]:
            return pipeline, {name: _option(name, value, room) for name, value in given.items()}
    raise Malformed("an entry is not a pipeline with options")


def _option(name: str, value: Any, room: Path | None) -> Any:
    if name == "content":
        return _content(value, room)
    if name == "path":
        return _file(value, room)
    if name == "run_at":
        return datetime.fromisoformat(value)
    if type(value) not in ((str,) if name in _TEXTS else _NUMBERS[name]):
        raise Malformed(f"{name} is {type(value).__name__}")
    return value


def _content(value: Any, room: Path | None) -> Content:
    match value:
        case [str(kind), bytes() | str() as data] if kind in KINDS:
            return Content(kind, data if isinstance(data, bytes) else _file(data, room))
    raise Malformed("content is not a kind with bytes or a file")


def _file(name: Any, room: Path | None) -> Path:
    if room is None or _FILE.fullmatch(name) is None:
        raise Malformed("it names a file that is not of the body")
    return room / cast("str", name)


def _token(token: Any) -> int | str:
    match token:
        case ["whole", str(digits)]:
            return int(digits)
        case ["text", str(text)]:
            return text
    raise Malformed("a token is neither a number nor a text")


def _error(name: str, given: list[Any]) -> Exception:
    match name, given:
        case "Refused", [int(status), str(code), str(said)] if 400 <= status < 500:
            return Refused(status, code, said)
        case "Invalid", [[*errors], int(left)]:
            return Invalid([_wrong(one) for one in errors], left)
        case _, [str(said), str(code)] if name in _ERRORS:
            return _ERRORS[name](said, code=code)
        case "OSError", [int(number), str(said)]:
            return OSError(number, said)
        case "MemoryError", []:
            return MemoryError()
    raise Malformed("it names an error that is not expected")


def _wrong(one: Any) -> dict[str, Any]:
    match one:
        case [[*where], str(said)] if all(isinstance(part, (str, int)) for part in where):
            return {"loc": tuple(where), "msg": said}
    raise Malformed("an error is not a place with a message")
