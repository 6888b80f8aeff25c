"""What else a stage may ask of its context: keys, progress, whether it still owns the document; and batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from perdure.engine.result import batched
from perdure.errors import LeaseLost, Permanent
from tests.engine.port import PAGES, FakePort, Page, collect, context, key, read


def test_a_run_that_was_taken_away_stops_at_the_next_item() -> None:
    port = FakePort()
    ctx = context(port)
    ctx.check()

    def pages() -> Iterator[Page]:
        yield PAGES[0]
        port.revoked = True
        yield PAGES[1]

    with pytest.raises(LeaseLost):
        list(ctx.items(pages(), key=key, run=read))
    assert ctx.cancelled
    assert len(port.saves) == 1


def test_idempotency_keys_are_stable_and_differ_where_they_should() -> None:
    plain = context(input_hash="a").idempotency_key()
    assert plain == context(input_hash="a", attempt=3, generation=2).idempotency_key()
    others = [
        context(input_hash="b").idempotency_key(),
        context(input_hash="a", version=2).idempotency_key(),
        context(input_hash="a").idempotency_key(0),
        context(input_hash="a").idempotency_key(ordinal=0),
        context(input_hash="a").idempotency_key(0, 0),
    ]
    assert len({plain, *others}) == 6


def test_inside_run_the_key_names_the_item() -> None:
    ctx = context()
    keys = list(ctx.items(PAGES, key=key, run=lambda _: ctx.idempotency_key()))
    assert keys == [ctx.idempotency_key(page.number) for page in PAGES]

    async def ask(_: Page) -> str:
        await asyncio.sleep(0)
        return actx.idempotency_key()

    actx = context(is_async=True)
    assert asyncio.run(collect(actx.aitems(PAGES, key=key, run=ask, concurrency=3))) == keys


def test_progress_and_facts_reach_those_who_ask() -> None:
    port = FakePort()
    ctx = context(port, attempt=2, generation=3)
    ctx.progress(1)
    ctx.progress(2, 4)
    assert port.progressed == [(1, None), (2, 4)]
    assert (ctx.stage, ctx.attempt, ctx.generation, ctx.document.id) == ("embed", 2, 3, "d1")
    assert ctx.log.extra is not None
    assert ctx.log.extra["document_id"] == "d1"
    with pytest.raises(Permanent, match="takes a Row"):
        ctx.emit("row")  # type: ignore[arg-type]


def test_batches_have_a_number_and_hold_neighbours() -> None:
    batches = list(batched("abcde", 2))
    assert batches == [["a", "b"], ["c", "d"], ["e"]]
    assert [batch.index for batch in batches] == [0, 1, 2]
    assert list(batched([], 2)) == []
    with pytest.raises(ValueError, match="at least one"):
        batched("abc", 0)
