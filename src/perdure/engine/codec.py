"""Values to JSON and back, by their annotation: what a stage saved is what a later attempt loads.

Called by pipeline (outputs and inputs of stages), context (items) and result (rows, inputs of spawned jobs). pydantic
does the work and is imported at first use. A pydantic model's own configuration governs its fields; everything else
writes bytes as base64 and keeps NaN and Infinity.
"""

from __future__ import annotations

import math
import sys
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from perdure.errors import InputInvalid, Permanent, PipelineInvalid, Unstorable

if TYPE_CHECKING:
    from pydantic import TypeAdapter

OUTPUT_BYTES_MAX = 256 * 1024 * 1024

_ERRORS_SHOWN = 3
_NON_FINITE = ("NaN", "Infinity", "-Infinity")
#: Parts of types that cannot hold them: what is not among these is looked into.
_WITHOUT_NUMBERS = frozenset(
    "tuple list set frozenset dict nullable default union dataclass dataclass-args dataclass-field typed-dict "
    "typed-dict-field model model-fields model-field definitions definition-ref str bytes int bool none literal".split()
)


class Codec:
    """Encodes and decodes values of one type. `what` names the value in error messages ("stage chunk")."""

    __slots__ = ("_adapter", "type", "what")

    def __init__(self, type_: Any = Any, what: str = "value") -> None:
        self.type = type_
        self.what = what
        self._adapter: TypeAdapter[Any] | None = None

    def check(self) -> TypeAdapter[Any]:
        """PipelineInvalid where values of this type can never be stored; what stores them otherwise."""
        if self._adapter is None:
            self._adapter = _adapter(self.type, self.what)
        return self._adapter

    def encode(self, value: Any) -> bytes:
        """JSON in UTF-8. Permanent(output_invalid) if it does not fit the type, Unstorable if it cannot be JSON."""
        if self.type is Any and isinstance(value, (bytes, bytearray)):
            raise Unstorable(f"{self.what} is bytes without an annotation that says so; annotate it as bytes")
        adapter = self._adapter or self.check()
        try:
            fitting = adapter.validator.validate_python((value,))
        except ValueError as error:  # pydantic's own is one; naming it would import it at every call
            message = f"{self.what} is not {type_name(self.type)}: {_reasons(error)}"
            raise Permanent("output_invalid", message) from error
        raw = self._dump(adapter, fitting)
        if len(raw) > OUTPUT_BYTES_MAX:
            raise Unstorable(f"{self.what} has {len(raw)} bytes, the most allowed is {OUTPUT_BYTES_MAX}")
        return raw

    def decode(self, raw: bytes) -> Any:
        """The value, validated. InputInvalid if these bytes do not hold one of this type."""
        adapter = self._adapter or self.check()
        try:
            (value,) = adapter.validator.validate_json(b"[" + raw + b"]", by_alias=False, by_name=True)
        except ValueError as error:
            message = f"{self.what} cannot be read as {type_name(self.type)}: {_reasons(error)}"
            raise InputInvalid(message) from error
        return value

    def saved(self, value: Any) -> tuple[bytes, Any]:
        """Encode, and the value as a later attempt will load it: whoever goes on with that one sees no difference
        between a first run and a resumed one. Unstorable if it would not come back."""
        raw = self.encode(value)
        if self.type is str and type(value) is str and value.isascii():
            return raw, value  # what most stages give, and it comes back as it went
        try:
            return raw, self.decode(raw)
        except InputInvalid as error:
            raise Unstorable(f"{self.what} would not survive being saved: {error}") from error

    def _dump(self, adapter: TypeAdapter[Any], fitting: Any) -> bytes:
        try:
            try:
                raw = adapter.serializer.to_json(fitting, by_alias=False, round_trip=True, warnings=False)
            except ValueError:
                raw = _dump_cleaned(adapter, fitting)
        except (RecursionError, ValueError, TypeError) as error:
            raise Unstorable(f"{self.what} cannot be stored as JSON: {error}") from error
        if b"null" in raw and _may_hold_numbers(adapter):
            from pydantic_core import from_json

            # A pydantic model writes NaN as null unless its configuration says otherwise.
            before = _non_finite(adapter.dump_python(fitting, round_trip=True, warnings=False))
            if before and before > _non_finite(from_json(raw)):
                raise Unstorable(
                    f"{self.what} holds NaN or Infinity in a model that would write it as null: "
                    "set ser_json_inf_nan='constants' in its model_config"
                )
        return raw[1:-1]


ANY = Codec()


def clean(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD; NUL and everything else is kept."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def type_name(type_: Any) -> str:
    """The type as a reader would write it."""
    return type_.__qualname__ if isinstance(type_, type) and not typing.get_args(type_) else str(type_)


def _adapter(type_: Any, what: str) -> TypeAdapter[Any]:
    from pydantic import PydanticUserError

    try:
        try:
            return _build_once(type_)
        except TypeError:  # unhashable metadata in an Annotated
            return _build(type_)
    except (PydanticUserError, TypeError, NameError) as error:
        raise PipelineInvalid(f"{what}: {type_name(type_)} cannot be stored: {error}") from error


def _build(type_: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(
        ser_json_inf_nan="constants",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        revalidate_instances="always",
    )
    # The tuple of one carries the configuration into dataclasses and typed dicts, which alone would refuse it.
    alone: Any = types.GenericAlias(tuple, (_portable(type_, {}),))
    return TypeAdapter(alone, config=config)


_build_once = lru_cache(maxsize=1024)(_build)


def _portable(type_: Any, known: dict[Any, Any]) -> Any:
    """The type with `typing.TypedDict`s, which pydantic refuses before Python 3.12, made into their equivalents."""
    if sys.version_info >= (3, 12):
        return type_
    if typing.is_typeddict(type_) and type(type_).__module__ == "typing":
        return known[type_] if type_ in known else _portable_dict(type_, known)
    arguments = typing.get_args(type_)
    translated = tuple(_portable(argument, known) for argument in arguments)
    if all(new is old for new, old in zip(translated, arguments, strict=True)):
        return type_
    origin = typing.get_origin(type_)
    return typing.Union[translated] if origin is types.UnionType else origin[translated]  # noqa: UP007


def _portable_dict(type_: Any, known: dict[Any, Any]) -> Any:
    from typing import NotRequired, Required

    from typing_extensions import TypedDict

    known[type_] = type_  # where it contains itself, which pydantic then refuses with good advice
    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(type_).items():
        inner = _portable(hint, known)
        fields[name] = Required[inner] if name in type_.__required_keys__ else NotRequired[inner]
    known[type_] = TypedDict(type_.__name__, fields)  # type: ignore[operator]
    return known[type_]


def _reasons(error: ValueError) -> str:
    """What is wrong and where, without the values: they are the document's."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return type(error).__name__
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [
        f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}".removeprefix(": ")
        for problem in problems[:_ERRORS_SHOWN]
    ]
    more = len(problems) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _dump_cleaned(adapter: TypeAdapter[Any], fitting: Any) -> bytes:
    """Parsers produce lone surrogates, which UTF-8 cannot hold. Whatever was wrong besides fails here once more."""
    from pydantic_core import to_json

    try:
        plain = adapter.dump_python(fitting, mode="json", by_alias=False, round_trip=True, warnings=False)
    except UnicodeEncodeError:  # in the key of a dict
        plain = adapter.dump_python(fitting, by_alias=False, round_trip=True, warnings=False)
    return to_json(_without_surrogates(plain), inf_nan_mode="constants", bytes_mode="base64")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(part) for part in value]
    return value


@lru_cache(maxsize=1024)
def _may_hold_numbers(adapter: TypeAdapter[Any]) -> bool:
    """Whether values of this type could have numbers in them that JSON has no word for."""
    return not _kinds(adapter.core_schema) <= _WITHOUT_NUMBERS


def _kinds(schema: Any) -> set[str]:
    """What a schema of pydantic consists of."""
    if isinstance(schema, Mapping):
        own = {schema["type"]} if isinstance(schema.get("type"), str) else set()
        return own.union(*map(_kinds, schema.values()))
    return set().union(*map(_kinds, schema)) if isinstance(schema, (list, tuple)) else set()


def _non_finite(value: Any) -> int:
    """How many numbers in it JSON has no word for."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, str):
        return value in _NON_FINITE
    if isinstance(value, Mapping):
        return sum(_non_finite(part) for part in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return sum(map(_non_finite, value))
    return 0
