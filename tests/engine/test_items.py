"""`ctx.items`: each item runs once, is saved with the rows of its body, and comes back on a resume."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.engine.result import Batch, Row
from perdure.errors import Permanent, Unstorable
from tests.engine.port import PAGES, FakePort, Page, context, key, name_of, read

PLACES: dict[str, int] = {}


def test_results_come_in_order_and_every_item_is_saved() -> None:
    port = FakePort()
    assert list(context(port).items(PAGES, key=key, run=read)) == ["page 7", "page 8", "page 9"]
    assert port.saves == [("7", b'"page 7"', []), ("8", b'"page 8"', []), ("9", b'"page 9"', [])]


def test_an_item_is_saved_when_the_next_is_asked_for_with_the_rows_of_its_body() -> None:
    port = FakePort()
    ctx = context(port)
    ctx.emit(Row("head"))
    seen = []
    for text in ctx.items(PAGES, key=key, run=read):
        seen.append((text, len(port.saves)))
        ctx.emit(Row("texts", text=text))
    assert seen == [("page 7", 0), ("page 8", 1), ("page 9", 2)]
    assert [rows for _, _, rows in port.saves] == [
        ["{}", '{"text":"page 7"}'],
        ['{"text":"page 8"}'],
        ['{"text":"page 9"}'],
    ]
    assert ctx.take_emitted() == []


def test_saved_items_return_without_running_and_their_rows_are_dropped() -> None:
    port = FakePort({"7": b'"saved 7"', "9": b'"saved 9"'})
    ctx = context(port)
    ctx.emit(Row("head"))
    ran: list[int] = []

    def run(page: Page) -> str:
        ran.append(page.number)
        return read(page)

    restored = []
    texts = []
    for text in ctx.items(PAGES, key=key, run=run):
        ctx.emit(Row("texts", text=text))
        restored.append(ctx.restored)
        texts.append(text)
    assert (texts, ran, restored) == (["saved 7", "page 8", "saved 9"], [8], [True, False, True])
    assert port.saves == [("8", b'"page 8"', ["{}", '{"text":"page 8"}'])]
    assert ctx.take_emitted() == []
    assert not ctx.restored


def test_an_early_break_leaves_the_item_unsaved_and_its_rows_to_the_stage() -> None:
    for saved in ({}, {"7": b'"page 7"'}):
        port = FakePort(saved)
        ctx = context(port)
        for text in ctx.items(PAGES, key=key, run=read):
            ctx.emit(Row("texts", text=text))
            break
        ctx.emit(Row("summary"))
        assert port.saves == []
        assert [row.name for row in ctx.take_emitted()] == ["texts", "summary"]


def test_an_error_in_run_or_body_saves_nothing_more() -> None:
    port = FakePort()

    def run(page: Page) -> str:
        if page.number == 9:
            raise ValueError("torn page")
        return read(page)

    with pytest.raises(ValueError, match="torn"):
        list(context(port).items(PAGES, key=key, run=run))
    assert [name for name, _, _ in port.saves] == ["7", "8"]
    port = FakePort()
    with pytest.raises(KeyError):
        [PLACES[text] for text in context(port).items(PAGES, key=key, run=read)]
    assert port.saves == []


def test_the_default_key_is_the_index_or_the_position() -> None:
    port = FakePort()
    ctx = context(port)
    list(ctx.items(["a", "b"], run=str.upper))  # str has an index method, which is no key
    assert [name for name, _, _ in port.saves] == ["0", "1"]
    port = FakePort()
    list(context(port).items([Batch("ab", index=4), Batch("c", index=2)], run=len))
    assert port.saves == [("4", b"2", []), ("2", b"1", [])]


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ((1, "1"), "item_key_repeated"),
        ((None,), "item_key_invalid"),
        ((True,), "item_key_invalid"),
        (("",), "item_key_invalid"),
        (("x" * 501,), "item_key_invalid"),
    ],
    ids=name_of,
)
def test_keys_must_be_usable_and_differ(keys: tuple[Any, ...], code: str) -> None:
    with pytest.raises(Permanent) as caught:
        list(context().items(keys, key=lambda item: item))
    assert caught.value.code == code


def test_keys_must_differ_over_all_loops_of_a_stage() -> None:
    ctx = context()
    list(ctx.items(["a"]))
    with pytest.raises(Permanent, match="give key="):
        list(ctx.items(["b"]))


def test_without_run_items_are_marked_as_done() -> None:
    port = FakePort({"0": b"null"})
    ctx = context(port)
    things = [object(), object()]
    assert list(ctx.items(things)) == things
    assert port.saves == [("1", b"null", [])]


def test_results_have_the_type_that_run_promises_live_and_resumed() -> None:
    def numbers(page: Page) -> tuple[int, bytes]:
        return page.number, b"\xff"

    port = FakePort()
    live = list(context(port).items(PAGES, key=key, run=numbers))
    resumed = list(
        context(FakePort({name: raw for name, raw, _ in port.saves})).items(PAGES, key=key, run=numbers)
    )
    assert live == resumed == [(7, b"\xff"), (8, b"\xff"), (9, b"\xff")]
    json_like: list[Any] = list(context().items([1], run=lambda number: (number,)))
    assert json_like == [[1]]
    json_like = list(context().items([{"number": 3}], run=lambda kw: Page(**kw)))
    assert json_like == [{"number": 3}]


def test_a_result_that_does_not_fit_or_cannot_be_stored_is_refused() -> None:
    def wrong(page: Page) -> int:
        return "x"  # type: ignore[return-value]

    class Opaque: ...

    def opaque(page: Page):  # type: ignore[no-untyped-def]
        return Opaque()

    opaque.__annotations__["return"] = Opaque

    with pytest.raises(Permanent) as caught:
        list(context().items(PAGES, key=key, run=wrong))
    assert caught.value.code == "output_invalid"
    with pytest.raises(Unstorable):
        list(context().items(PAGES, key=key, run=lambda _: object()))
    with pytest.raises(Unstorable):
        list(context().items(PAGES, key=key, run=opaque))


def test_a_save_that_cannot_be_read_runs_the_item_again() -> None:
    port = FakePort({"7": b"{broken"})
    assert next(context(port).items(PAGES, key=key, run=read)) == "page 7"


def test_rows_emitted_inside_run_commit_with_their_item() -> None:
    port = FakePort()
    ctx = context(port)

    def run(page: Page) -> int:
        ctx.emit(Row("inner", page=page.number))
        return page.number

    for number in ctx.items(PAGES, key=key, run=run):
        ctx.emit(Row("outer", page=number))
    assert port.saves[0][2] == ['{"page":7}', '{"page":7}']
