"""The worker takes from a cell what a cell can honestly say, and nothing else."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.chunk import Chunk, Connection
from perdure.engine import cell_messages, wire
from perdure.engine.cell_messages import Checker, ask, item
from perdure.engine.result import Produced, Row, SpawnDocument, SpawnJob, chunk_set
from perdure.engine.wire import Malformed, TooLarge
from perdure.errors import Permanent
from tests.engine.test_wire import PLAIN

STATEMENT = "INSERT INTO mine VALUES ($1)"
CHUNKS = [Chunk("a", 0, 0, 1, "x", "page=1", 1, "model", b"1234"), Chunk("b", 1, 1, 2, "y")]
ROW = Row("pages", {"n": [1, None]}, number=1, name="ä").emitted()
JOB = SpawnJob("after", "after", "doc", b'{"a":1}')
CHILD = SpawnDocument("books", "key", "bytes", b"\0", "name", b'{"a":[]}', "shelf", None, True)
PARAMETERS: tuple[object, ...] = (
    None, True, -1, 1.5, "text", b"bytes", [1, "a"], dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    dt.date(2026, 1, 2), dt.time(3, 4), Decimal("1.20"), uuid.UUID(int=5),
)  # fmt: skip
PRODUCED = Produced(
    b'{"a":NaN}', (ROW,), (JOB, CHILD), ((STATEMENT, PARAMETERS),), chunk_set(CHUNKS),
    (Connection("a", "d", "b", 0.5, "m"),),
)  # fmt: skip
ANSWER = cell_messages.answer(PRODUCED, [ROW, CHILD])
ASKS = [
    item("page-1", b"[1]", [ROW, JOB, CHILD]), ask("nearest", 0.5, 3), ask("connect", 1, 3), ask("progress"),
    ask("calls", {"openai": 3}, None, {"calls": []}),
]  # fmt: skip


def checker(statements: frozenset[str] | None = frozenset([STATEMENT])) -> Checker:
    return Checker("doc", statements)


def test_an_honest_answer_comes_whole() -> None:
    assert checker().answer(ANSWER) == (PRODUCED, [ROW, CHILD])
    bare = Produced(b"null")
    assert checker().answer(cell_messages.answer(bare, [])) == (bare, [])


def test_honest_asks_come_whole() -> None:
    asked = [checker().asked(body) for body in ASKS]
    assert [one.verb for one in asked] == ["item", "nearest", "connect", "progress", "calls"]
    assert asked[0].parts == ("page-1", b"[1]", [ROW, JOB, CHILD])
    assert asked[4].parts == ({"openai": 3}, None, {"calls": []})


def test_a_statement_must_be_declared_unless_the_stage_could_run_in_the_worker() -> None:
    with pytest.raises(Permanent, match="did not declare") as refused:
        checker(frozenset()).answer(ANSWER)
    assert refused.value.code == "statement_undeclared"
    assert checker(None).answer(ANSWER)[0].sql == PRODUCED.sql


def test_a_parameter_that_is_not_plain_is_the_stages_fault() -> None:
    with pytest.raises(Permanent, match="cannot leave a process"):
        cell_messages.answer(Produced(b"1", sql=((STATEMENT, (object(),)),)), [])


def test_a_spawned_job_is_of_this_document_and_no_module_is_named() -> None:
    strange = SpawnJob("after", "after", "another", b"{}", "os")
    produced, _ = checker().answer(cell_messages.answer(Produced(b"1", spawn=(strange,)), []))
    assert produced.spawn == (SpawnJob("after", "after", "doc", b"{}"),)


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value in it."""
    yield path
    parts = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, part in parts:
        yield from spots(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@given(st.sampled_from([ANSWER, *ASKS]), PLAIN, st.data())
def test_a_message_with_one_part_changed_is_taken_or_malformed(
    body: bytes, new: Any, data: st.DataObject
) -> None:
    value = wire.decode(body)
    changed = wire.encode(replaced(value, data.draw(st.sampled_from(list(spots(value)))), new))
    for read in (checker().answer, checker().asked):
        with suppress(Malformed, Permanent):  # the second for a statement that is another one now
            read(changed)


def part(index: int, new: Any, body: bytes = ANSWER) -> bytes:
    return wire.encode(replaced(wire.decode(body), (index,), new))


CHILD_PARTS = ["child", "books", "key", "bytes", b"\0", "name", b"{}", None, False]


@pytest.mark.parametrize(
    "body",
    [
        wire.encode(None), wire.encode([]), wire.encode([b"1"]), part(0, "1"), part(0, b"{"), part(0, b"1,2"),
        part(0, b"1]\0["), part(0, b"[" * 100_000), part(1, None), part(1, [["row", "a", "{}", b"1", b"1"]]),
        part(1, [["row", "A", "{}", b"1"]]), part(1, [["row", "a", '{"b": 1}', b"1"]]),
        part(1, [["row", "a", '{"b":[1]}', b"1"]]), part(1, [["row", "a", f'{{"b":"{"x" * 3000}"}}', b"1"]]),
        part(2, [["job", "../os", "after", b"{}"]]), part(2, [["job", "after", "after", b"{}", "os"]]),
        part(2, [[*CHILD_PARTS[:3], "url", *CHILD_PARTS[4:]]]), part(2, [[*CHILD_PARTS[:6], b"[]", None, False]]),
        part(2, [[*CHILD_PARTS, "os"]]), part(3, [[STATEMENT, [{"os": "x"}]]]), part(3, [[STATEMENT, None]]),
        part(3, [[STATEMENT, [{"decimal": "9" * 2000}]]]), part(4, [["a"] * 10]),
        part(4, [["a", 0, 0, 1, "x", "", None, "model", b"123", ""]]),
        part(4, [["a", 0, 0, 1, "x", "", None, None, None, ""]] * 2),
        part(4, [["a", -1, 0, 1, "x", "", None, None, None, ""]]),
        part(4, [["a", 0, 0, 1 << 40, "x", "", None, None, None, ""]]),
        part(5, [["a", "b", "c", float("nan"), "m"]]), part(5, [["a", "b", "c", "1", "m"]]), part(6, [["row"]]),
    ],
)  # fmt: skip
def test_a_forged_answer_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        checker().answer(body)


@pytest.mark.parametrize(
    "body",
    [
        ask("run", "os.system"), wire.encode([]), wire.encode({}), ask("item"), item("", b"1", []),
        item("a\0", b"1", []), item("x" * 501, b"1", []), item("a", b"no JSON", []), ask("nearest", "0", 1),
        ask("nearest", 0.5, -1), ask("connect", float("nan"), 1), ask("connect", 0.5, True), ask("progress", 1),
        ask("calls", {"a": -1}, None, {}), ask("calls", {"a": True}, None, {}), ask("calls", {}, 1, {}),
        ask("calls", {}, None, []), ask("calls", {str(n): 1 for n in range(1001)}, None, {}),
    ],
)  # fmt: skip
def test_a_forged_ask_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        checker().asked(body)


@pytest.mark.parametrize(
    ("bound", "most"), [("ITEMS_MAX", 3), ("EMITTED_MAX", 9), ("BYTES_MAX", 3 * len(ASKS[0]))]
)
def test_a_run_has_bounds(bound: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_messages, bound, most)
    one = checker()
    for _ in range(3):
        one.asked(ASKS[0])
    with pytest.raises(TooLarge, match=f"more than {most}"):
        one.asked(ASKS[0])


def test_json_of_too_many_values_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_messages, "JSON_VALUES_MAX", 10)
    checker().answer(part(0, b"[1,2,3]"))
    with pytest.raises(TooLarge, match="more than 10 commas"):
        checker().answer(part(0, b"[" + b"[]," * 10 + b"1]"))


@pytest.mark.parametrize("piece", [1, 7, 1 << 18])
def test_commas_in_a_text_are_no_values(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_messages, "COUNTED_BYTES", piece)
    monkeypatch.setattr(cell_messages, "JSON_VALUES_MAX", 10)
    monkeypatch.setattr(cell_messages, "VALUES_SURE", 5)
    table = json.dumps(['1,2,[3,{"4",\\' * 10, {"a,b": 'c"', "\\": "{" * 99}]).encode()
    checker().answer(part(0, table))
    with pytest.raises(TooLarge, match="more than 10 commas"):
        checker().answer(part(0, table[:-1] + b',"a,b",[],[],[],[]]'))


def test_the_values_of_a_run_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_messages, "RUN_VALUES_MAX", 10)
    one = checker()
    for number in range(3):
        one.asked(item(f"page-{number}", b"[1,2,3]", []))
    with pytest.raises(Malformed, match="more than 10 values"):
        one.asked(item("page-4", b"[1,2,3]", []))
