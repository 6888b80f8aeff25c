"""What is saved comes back: every kind of value a stage may give, and the clear refusal of what cannot be stored."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import sys
import typing
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
import typing_extensions
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from perdure.engine import codec as codec_module
from perdure.engine.codec import Codec, clean
from perdure.errors import InputInvalid, Permanent, PipelineInvalid, Unstorable
from tests.engine.port import name_of

BINARY = b"\xff\x00\xfe?>"


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


@dataclasses.dataclass
class Page:
    number: int
    raw: bytes
    score: float = 0.5
    parts: list[Page] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    raw: bytes
    when: dt.datetime


@dataclasses.dataclass
class Derived:
    number: int
    double: int = dataclasses.field(init=False, default=0)


class Old(typing.TypedDict, total=False):
    raw: typing.Required[bytes]
    note: str


class New(typing_extensions.TypedDict):
    page: Page


class Point(NamedTuple):
    x: float
    raw: bytes


class Model(BaseModel):
    text: str = Field(default="", validation_alias="in", serialization_alias="out")
    score: float | None = None
    raw: bytes = b""


class Faithful(BaseModel, ser_json_inf_nan="constants", ser_json_bytes="base64", val_json_bytes="base64"):
    score: float
    raw: bytes
    empty: None = None


NOW = dt.datetime(2024, 2, 29, 12, 30, 1, 999, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**200),
        (float, 0.1 + 0.2),
        (float, math.inf),
        (str, "NUL \0 and 😀 null NaN"),
        (bytes, BINARY),
        (bytes | None, None),
        (None, None),
        (bool, True),
        (list[str], ["a", ""]),
        (dict[dt.date, int], {NOW.date(): 1}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (Page, Page(1, BINARY, -math.inf, [Page(2, b"")])),
        (list[Frozen], [Frozen(BINARY, NOW)]),
        (Derived, Derived(4)),
        (dict[str, Old], {"a": {"raw": BINARY}, "b": {"raw": b"", "note": "x"}}),
        (New, {"page": Page(1, BINARY)}),
        (Point, Point(1.5, BINARY)),
        (list[Colour], [Colour.RED, Colour.TWO]),
        (dt.timedelta, dt.timedelta(days=-1, microseconds=3)),
        (Decimal, Decimal("1.10")),
        (uuid.UUID, uuid.uuid5(uuid.NAMESPACE_URL, "x")),
        (Path, Path("/a/b")),
        (Model, Model.model_validate({"in": "text", "raw": b"plain"})),
        (Faithful, Faithful(score=-math.inf, raw=BINARY)),
        (Annotated[int, {"unhashable": "metadata"}], 3),
        (int | str, "5"),
        (Any, {"a": [1, 2.5, None, True, "x"], "b": {}}),
    ],
    ids=name_of,
)
def test_a_value_comes_back_as_it_was(kind: Any, value: Any) -> None:
    codec = Codec(kind)
    raw, back = codec.saved(value)
    assert back == value
    assert type(back) is type(value)
    assert codec.decode(raw) == value


def test_nan_is_kept_also_deep_inside() -> None:
    assert math.isnan(Codec(float).saved(math.nan)[1])
    assert math.isnan(Codec(list[Page]).saved([Page(1, b"", math.nan)])[1][0].score)
    assert math.isnan(Codec().saved({"a": [math.nan, None]})[1]["a"][0])


def test_nan_in_a_model_that_would_lose_it_is_refused() -> None:
    with pytest.raises(Unstorable, match="ser_json_inf_nan"):
        Codec(list[Model]).encode([Model(score=math.nan)])
    with pytest.raises(Unstorable, match="ser_json_inf_nan"):
        Codec().encode({"deep": Model(score=math.inf)})
    assert math.isnan(Codec(Faithful).saved(Faithful(score=math.nan, raw=BINARY))[1].score)


def test_the_value_for_the_next_stage_is_what_a_resume_would_load() -> None:
    assert Codec().saved((1, {2: "x"}))[1] == [1, {"2": "x"}]
    assert Codec(int).saved("5")[1] == 5
    assert Codec(Page).saved({"number": 1, "raw": BINARY})[1] == Page(1, BINARY)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("é\0", "é\0"),
        ("end\ud800", "end\ufffd"),
    ],
)
def test_lone_surrogates_are_replaced_wherever_they_are(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
    assert Codec(str).saved(text)[1] == cleaned
    assert Codec().saved({text: [text]})[1] == {cleaned: [cleaned]}
    assert Codec(Model).saved(Model.model_validate({"in": text}))[1].text == cleaned


@pytest.mark.parametrize(
    ("kind", "value", "where"),
    [
        (int, "x", "valid integer"),
        (list[str], "text", "valid list"),
        (Page, Page(1, None), "raw: "),  # type: ignore[arg-type]
        (Page, Page(1, b"", 0, [Page("x", b"")]), "parts.0.number: "),  # type: ignore[arg-type]
        (None, 4, "None"),
        (Colour, "green", "red"),
    ],
    ids=name_of,
)
def test_an_output_that_does_not_fit_its_annotation_is_refused(kind: Any, value: Any, where: str) -> None:
    with pytest.raises(Permanent, match=where) as caught:
        Codec(kind, "what stage chunk gives").encode(value)
    assert caught.value.code == "output_invalid"
    assert str(caught.value).startswith("what stage chunk gives is not ")


def test_the_message_does_not_repeat_what_the_document_says() -> None:
    with pytest.raises(Permanent) as caught:
        Codec(list[int]).encode(["secret"] * 9)
    assert "secret" not in str(caught.value)
    assert str(caught.value).endswith("; and 6 more")


@pytest.mark.parametrize("raw", [b"", b"1,2", b"\xff", b'"x"', b"[", b"{}"])
def test_bytes_that_hold_no_such_value_are_refused(raw: bytes) -> None:
    with pytest.raises(InputInvalid, match="cannot be read as int"):
        Codec(int).decode(raw)


def test_what_cannot_be_json_is_unstorable() -> None:
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    for value in (object(), {"a": [lambda: 1]}, deep, math):
        with pytest.raises(Unstorable, match="cannot be stored as JSON"):
            Codec().encode(value)
    with pytest.raises(Unstorable, match="annotate it as bytes"):
        Codec().encode(b"x")
    with pytest.raises(Unstorable):
        Codec(Model).encode(Model(raw=BINARY))
    with pytest.raises(Unstorable, match="would not survive"):
        Codec(dict[tuple[int, int], int]).saved({(1, 2): 3})


def test_an_output_may_not_be_larger_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_module, "OUTPUT_BYTES_MAX", 10)
    assert Codec().encode("x" * 8) == b'"xxxxxxxx"'
    with pytest.raises(Unstorable, match="11 bytes"):
        Codec().encode("x" * 9)


def test_a_type_that_can_never_be_stored_is_found_by_check() -> None:
    class Opaque: ...

    with pytest.raises(PipelineInvalid, match=r"what stage x gives: .*Opaque cannot be stored"):
        Codec(Opaque, "what stage x gives").check()
    Codec(list[New]).check()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes them from Python 3.12 on")
def test_a_typed_dict_out_of_reach_is_refused_with_advice() -> None:
    @dataclasses.dataclass
    class Holder:
        inner: Old

    with pytest.raises(PipelineInvalid, match="typing_extensions"):
        Codec(Holder).check()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
@settings(max_examples=100, deadline=None)
def test_every_json_value_comes_back(value: Any) -> None:
    assert Codec().saved(value)[1] == value


@given(st.lists(st.builds(Page, st.integers(), st.binary(), st.floats(allow_nan=False)), max_size=4))
@settings(max_examples=50, deadline=None)
def test_every_dataclass_comes_back(pages: list[Page]) -> None:
    assert Codec(list[Page]).saved(pages)[1] == pages
