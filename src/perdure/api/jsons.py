"""JSON from callers: checked before it is parsed, and parsed in a thread if it is large.

Depth, number of values and length of numbers are limited, and so are the errors that an answer lists.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any, ParamSpec, TypeVar, get_args

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from perdure.api.problems import ERRORS_MAX, Refused

DEPTH_MAX = 200
NUMBER_CHARS_MAX = 1000
SMALL_CHARS = 16 << 10  # what is read where it came in; more is read in a thread
LARGE_BYTES = 1 << 20  # more waits for a place
PLACES, PLACES_OF_ONE = 4, 2
#: Every match begins where the last one ended; a string that does not end is the last alternative and takes the rest.
_TOKEN = re.compile(
    r'[ \t\r\n,:]*+(?:("[^"\\]*+(?:\\.[^"\\]*+)*+")|([\[{])|([\]}])|([^ \t\r\n,:\[\]{}"]++)|(".*)|\Z)',
    re.DOTALL,
)
_STRING, _OPEN, _CLOSE, _WORD, _BROKEN = range(1, 6)
#: Of its own: files that others upload must not wait for a thread.
_THREADS = ThreadPoolExecutor(PLACES, "perdure-json")
P = ParamSpec("P")
T = TypeVar("T")
ITEMS_MAX = 1000  # of a list of models; longer ones are refused by their length


async def aside(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do the work here if it is about few bytes, else in a thread."""
    if size <= SMALL_CHARS:
        return work(*args, **kwargs)
    run = partial(copy_context().run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, run)


def read(body: bytes | str, values_max: int) -> Any:
    """Parse a JSON text. Raises: Refused."""
    try:
        text = body if isinstance(body, str) else body.decode(json.detect_encoding(body), "surrogatepass")
        _look_through(text, values_max)
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(422, "request_invalid", f"the body is not JSON: {error}") from None


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


class Invalid(RequestValidationError):
    """A request with so many errors that only the first are listed."""

    def __init__(self, errors: list[dict[str, Any]], left: int) -> None:
        super().__init__(errors)
        self.left = left


def validated(model: type[BaseModel], value: Any) -> Any:
    """Validate a value. Raises: RequestValidationError, with the first errors if there are very many."""
    unknown = _unknown(model, value, ("body",))
    first = list(islice(unknown, ERRORS_MAX + 1))
    if len(first) > ERRORS_MAX:  # before there is an error for each of a million
        errors = [{"loc": where, "msg": "Extra inputs are not permitted"} for where in first]
        raise Invalid(errors, left=sum(1 for _ in unknown))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from None


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


class Places:
    """Places for large JSON in memory, each held until the request is answered."""

    def __init__(self, most: int = PLACES, most_of_one: int = PLACES_OF_ONE) -> None:
        self._most_of_one = most_of_one
        self._all = asyncio.Semaphore(most)
        self._of: dict[str, asyncio.Semaphore] = {}
        self._wanting: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, org: str) -> AsyncIterator[None]:
        """Wait for a place; one organisation cannot have all of them."""
        own = self._of.setdefault(org, asyncio.Semaphore(self._most_of_one))
        self._wanting[org] += 1
        try:
            async with own, self._all:
                yield
        finally:
            self._wanting[org] -= 1
            if not self._wanting[org]:
                del self._wanting[org], self._of[org]
