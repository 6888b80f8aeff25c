"""JSON from callers: checked before it is parsed, parsed, and validated.

Depth, number of values and length of numbers are limited, and so are the errors that an answer lists. A parser holds
the interpreter until it is through: only a body that is `light` is read in the server, all others in a process of their
own (`readers`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from perdure.api.refused import ERRORS_MAX, Invalid, Refused

DEPTH_MAX = 200
NUMBER_CHARS_MAX = 1000
LIGHT_BYTES = 128 << 10
LIGHT_MARKS = 4000  # that may part values; a parser takes about a microsecond for each value
#: Every match begins where the last one ended; a string that does not end is the last alternative and takes the rest.
_TOKEN = re.compile(
    r'[ \t\r\n,:]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")|([\[{])|([\]}])|([^ \t\r\n,:\[\]{}"]++)|(".*)|\Z)',
    re.DOTALL,
)
_STRING, _OPEN, _CLOSE, _WORD, _BROKEN = range(1, 6)
#: Characters that numbers consist of, all made alike: a number that is too long is then found by its length.
_NUMBERS = str.maketrans(dict.fromkeys("0123456789.+-eE", "0"))
_LONG_NUMBER = "0" * (NUMBER_CHARS_MAX + 1)
M = TypeVar("M", bound=BaseModel)
ITEMS_MAX = 1000  # of a list of models; longer ones are refused by their length


def is_light(*texts: bytes | str) -> bool:
    """Whether these are read in a few milliseconds, whatever is in them."""
    return sum(map(len, texts)) <= LIGHT_BYTES and sum(map(marks, texts)) <= LIGHT_MARKS


def marks(text: bytes | str) -> int:
    """How many characters there are that may part values: it has hardly more keys and values."""
    if isinstance(text, str):
        return sum(map(text.count, ",:[{"))
    return sum(map(text.count, (b",", b":", b"[", b"{")))


def read(body: bytes | str | Path, values_max: int) -> Any:
    """Parse a JSON text, which may be in a file. Raises: Refused."""
    try:
        text = body if isinstance(body, str) else _decoded(body)
        if not _is_within(text, values_max):
            _look_through(text, values_max)
        try:
            return json.loads(text)
        except ValueError:
            _look_through(text, values_max)  # which may know better what is wrong
            raise
    except (ValueError, RecursionError) as error:
        raise Refused(422, "request_invalid", f"the body is not JSON: {error}") from None


def _decoded(body: bytes | Path) -> str:
    raw = body.read_bytes() if isinstance(body, Path) else body
    return raw.decode(json.detect_encoding(raw), "surrogatepass")


def _is_within(text: str, values_max: int) -> bool:
    """Whether a quick look tells that it is within the limits: what it counts is never too little."""
    if marks(text) + 2 > values_max or _LONG_NUMBER in text.translate(_NUMBERS):
        return False
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return True
    try:
        from_json(f"[{text}]")  # refuses what is nested deeper than 201 levels
    except ValueError:
        return False
    return True


def _look_through(text: str, values_max: int) -> None:
    """Check the limits before values are made, which may take fifty times the memory. Raises: ValueError, Refused."""
    depth = values = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastindex
        if kind == _CLOSE:
            depth -= 1
            continue
        values += 1
        if kind == _OPEN:
            depth += 1
            if depth > DEPTH_MAX:
                raise Refused(422, "request_invalid", f"the JSON is nested deeper than {DEPTH_MAX} levels")
        elif kind == _WORD and token.end(_WORD) - token.start(_WORD) > NUMBER_CHARS_MAX:
            raise Refused(
                422, "request_invalid", f"the JSON has a number of more than {NUMBER_CHARS_MAX} characters"
            )
        elif kind == _BROKEN:
            raise ValueError(f"the string that begins at character {token.start(_BROKEN)} does not end")
        if values > values_max:
            raise Refused(413, "json_too_long", f"the JSON has more than {values_max} keys and values")


def read_object(body: bytes | Path, values_max: int) -> dict[str, Any]:
    """As `read`, where an object is wanted."""
    if not body:
        raise Refused(422, "request_invalid", "the body is not JSON: it is empty")
    value = read(body, values_max)
    if not isinstance(value, dict):
        raise Refused(422, "request_invalid", "the body must be a JSON object")
    return value


def validated(model: type[M], value: Any) -> M:
    """Validate a value. Raises: Invalid."""
    unknown = _unknown(model, value, ("body",))
    first = list(islice(unknown, ERRORS_MAX + 1))
    if len(first) > ERRORS_MAX:  # before there is an error for each of a million
        errors = [{"loc": where, "msg": "Extra inputs are not permitted"} for where in first[:ERRORS_MAX]]
        raise Invalid(errors, left=1 + sum(1 for _ in unknown))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        errors = [{"loc": ("body", *one["loc"]), "msg": one["msg"]} for one in found[:ERRORS_MAX]]
        raise Invalid(errors, left=len(found) - len(errors)) from None


def _unknown(
    model: type[BaseModel], value: Any, at: tuple[str | int, ...]
) -> Iterator[tuple[str | int, ...]]:
    """Find keys that the model does not have, also in lists of models."""
    if not isinstance(value, dict) or model.model_config.get("extra") != "forbid":
        return
    known = {field.alias or name: field for name, field in model.model_fields.items()}
    for name in value:
        if name not in known:
            yield (*at, name)
            continue
        inner = next(iter(get_args(known[name].annotation)), None)
        if isinstance(inner, type) and issubclass(inner, BaseModel) and isinstance(value[name], list):
            for number, one in enumerate(value[name][:ITEMS_MAX]):
                yield from _unknown(inner, one, (*at, name, number))
