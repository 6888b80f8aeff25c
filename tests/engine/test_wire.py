"""Plain values cross as bytes; any other bytes end with one error, whatever they claim."""

from __future__ import annotations

import math
import pickle
import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.engine import wire
from perdure.engine.crossing import RemoteError, decode_error, encode_error
from perdure.engine.wire import DEPTH_MAX, Malformed, decode, encode
from perdure.errors import Flickering, PerdureError, Permanent

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary()
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5)
)


def same(one: Any, other: Any) -> bool:
    """Equal, and NaN is NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


@given(PLAIN)
@example([math.nan, -math.inf, "\ud800", b"\xff", {"": [{}]}])
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert same(decode(encode(value)), value)


@given(st.binary())
@example(pickle.dumps(print))
@example(b"l\xff\xff\xff\xff")
@example(b"s\x00\x00\x00\x01\xff")
def test_any_bytes_are_a_value_or_malformed(body: bytes) -> None:
    with suppress(Malformed):
        encode(decode(body))


@given(PLAIN, st.data())
def test_a_message_with_one_byte_changed_is_a_value_or_malformed(value: Any, data: st.DataObject) -> None:
    body = bytearray(encode(value))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Malformed):
        encode(decode(bytes(body)))


@given(st.binary(), PLAIN)
def test_any_bytes_are_an_error_or_malformed(body: bytes, value: Any) -> None:
    for message in (body, encode(value)):
        with suppress(Malformed):
            assert isinstance(decode_error(message), PerdureError)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"?", b"i1234567", b"d1234567", b"nn", b"l\0\0\0\1", b"m\0\0\0\1n", b"s\0\0\0\2a",
        b"m\0\0\0\1nn", encode({"a": 1, "b": 2}).replace(b"b", b"a"), b"s\0\0\0\1\xff",
        b"l\0\0\0\1" * 100_000 + b"n", (b"m\0\0\0\1" + encode("")) * 100_000 + b"n",
    ],
)  # fmt: skip
def test_what_is_no_message(body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(body)


def test_counts_that_nothing_bears_out_take_no_memory() -> None:
    tracemalloc.start()
    try:
        for tag in (b"l", b"m", b"s", b"b"):
            with pytest.raises(Malformed):
                decode(b"l\0\0\0\1" + tag + b"\xff\xff\xff\xff" + b"n" * 1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_there_is_a_most_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "VALUES_MAX", 10)
    assert decode(encode([None] * 9)) == [None] * 9
    with pytest.raises(Malformed, match="more than 10 values"):
        decode(encode([None] * 10))


@pytest.mark.parametrize("value", [object(), 1 << 63, {1: 2}, {"a": print}, math])
def test_what_is_not_plain_is_not_encoded(value: object) -> None:
    with pytest.raises((TypeError, OverflowError)):
        encode(value)


def test_depth_is_bounded_on_both_sides() -> None:
    value: list[Any] = []
    for _ in range(DEPTH_MAX - 1):
        value = [value]
    assert decode(encode(value)) == value
    with pytest.raises(ValueError, match="nested deeper"):
        encode([value])


# --- errors ----------------------------------------------------------------------------------

PARTS: list[Any] = ["Permanent", "Permanent", "torn", "torn", None, "", {}]


def forged(**changed: Any) -> bytes:
    parts = dict(zip(("named", "type", "message", "code", "status", "trace", "fields"), PARTS, strict=True))
    return encode(list((parts | changed).values()))


@pytest.mark.parametrize(
    "named",
    [
        "os.system", "builtins.eval", "SystemExit", "KeyboardInterrupt", "CellCrashed", "NurseryLost", "RemoteError",
        "hide", "redacted", "PerdureError.__init_subclass__", "annotations", "tests.engine.cellwork.Torn", "Torn",
    ],
)  # fmt: skip
def test_no_name_reaches_beyond_the_errors_that_cross(named: str) -> None:
    assert type(decode_error(forged(named=named))) is RemoteError


@pytest.mark.parametrize(
    "changed",
    [
        {"fields": {"retry_after_s": 1.0}}, {"fields": {"__class__": "x"}}, {"fields": []}, {"status": "500"},
        {"status": 10**6}, {"message": b"bytes"}, {"message": "x" * 20_000}, {"code": None}, {"trace": 1},
        {"named": "DependencyDown"}, {"named": "Transient", "fields": {"retry_after_s": "soon"}},
        {"named": "RateLimited", "fields": {"delay_s": 1.0, "ours": 1}},
        {"named": "DependencyDown",
         "fields": {"name": "x" * 300, "confirmed": True, "heard": False, "unnamed": False}},
    ],
)  # fmt: skip
def test_an_error_of_another_form_is_malformed(changed: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        decode_error(forged(**changed))


class Broken(Permanent):
    """Its own fields and text break."""

    def __init__(self) -> None:
        Exception.__init__(self)

    def __str__(self) -> str:
        raise OSError("no text")


def test_an_error_that_breaks_crosses_all_the_same() -> None:
    found = decode_error(encode_error(Broken()))
    assert (type(found), found.code) == (Permanent, "permanent")


def test_a_call_that_failed_by_accident_crosses_with_its_chance_and_waits() -> None:
    told = Flickering("503", retry_after_s=290.0, soon_s=2.5, asked_s=40.0, chance=0.06)
    found = decode_error(encode_error(told))
    assert isinstance(found, Flickering)
    assert (found.retry_after_s, found.soon_s, found.asked_s, found.chance) == (290.0, 2.5, 40.0, 0.06)
