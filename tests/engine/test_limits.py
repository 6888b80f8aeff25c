"""Limits of organisations and dependencies in pipelines: built-in ones and your own."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from perdure import Document, Perdure, Pipeline, Transient
from perdure.errors import InputInvalid
from perdure.pipelines.document import documents
from perdure.pipelines.image.pipeline import images
from perdure.testing import drain, tick, trial


class Peak:
    """How many were inside at once."""

    def __init__(self) -> None:
        self.now, self.most = Counter[str](), Counter[str]()

    async def visit(self, *names: str) -> None:
        self.now.update(names)
        for name in names:
            self.most[name] = max(self.most[name], self.now[name])
        await asyncio.sleep(0.05)
        self.now.subtract(names)


def two_stages(peak: Peak, **more: Any) -> Pipeline:
    """read, then ask, which needs llm."""
    books = Pipeline("books", **more)

    @books.stage
    async def read(doc: Document) -> str:
        await peak.visit(doc.org, "all")
        return doc.text

    @books.stage(needs=["llm"])
    async def ask(doc: Document, read: str) -> str:
        await peak.visit(doc.org, "all", "llm")
        return read

    return books


def test_an_organisation_and_a_dependency_have_limits_without_a_key(store_url: str) -> None:
    peak = Peak()
    books = two_stages(peak)
    with Perdure(store_url, pipelines=[books], concurrency=8) as app:
        for org in ("acme", "other"):
            app.add_many([{"text": f"{org} {n}", "org": org} for n in range(6)], pipeline=books)
        app.limit("org:acme", concurrency=2, new=False)
        app.limit("dependency:llm", concurrency=3, new=False)
        assert app.run_until_idle().done == 12
        # how far they are used depends on the machine, but others are not kept within the limit of acme
        assert peak.most["acme"] <= 2
        assert peak.most["llm"] <= 3
        assert peak.most["all"] >= 3
        assert {s.attempts_made for s in app.documents()} == {1}
        assert {(one.key, one.used, one.parked) for one in app.limits()} == {
            ("org:acme", 0, 0),
            ("dependency:llm", 0, 0),
        }


def test_all_three_limits_hold_for_one_document(store_url: str) -> None:
    peak = Peak()
    books = two_stages(peak, concurrency_key=lambda doc: "host")
    with Perdure(store_url, pipelines=[books], concurrency=8) as app:
        for org in ("acme", "other"):
            app.add_many([{"text": f"{org} {n}", "org": org} for n in range(6)], pipeline=books)
        app.limit("org:acme", concurrency=1, new=True)
        app.limit("dependency:llm", concurrency=2, new=True)
        app.limit("host", concurrency=3, new=True)
        assert app.run_until_idle().done == 12
        assert peak.most["acme"] == 1
        assert peak.most["llm"] <= 2
        assert 2 <= peak.most["all"] <= 3


def test_a_document_that_comes_back_to_a_dependency_needs_room_again(store_url: str) -> None:
    peak, books = Peak(), Pipeline("books")

    @books.stage(needs=["llm"])
    async def ask(doc: Document) -> str:
        await peak.visit("llm")
        return doc.text

    @books.stage
    async def think(doc: Document, ask: str) -> str:
        await peak.visit("thought")
        return ask

    @books.stage(needs=["llm"])
    async def again(doc: Document, think: str) -> str:
        await peak.visit("llm")
        return think

    with Perdure(store_url, pipelines=[books], concurrency=6) as app:
        app.limit("dependency:llm", concurrency=1, new=True)
        app.add_many([{"text": str(n)} for n in range(6)], pipeline=books)
        assert app.run_until_idle().done == 6
        assert peak.most["llm"] == 1
        assert {s.attempts_made for s in app.documents()} == {1}


def test_the_limit_of_a_dependency_holds_for_a_stage_with_a_fallback(store_url: str) -> None:
    peak, pictures = Peak(), Pipeline("pictures")

    @pictures.stage(needs=["sight"])
    async def describe(doc: Document) -> str:
        await peak.visit("sight")
        return "seen"

    @describe.fallback
    def guess(doc: Document) -> str:
        return "guessed"

    with Perdure(store_url, pipelines=[pictures], concurrency=6) as app:
        app.limit("dependency:sight", concurrency=2, new=True)
        app.add_many([{"text": str(n)} for n in range(8)], pipeline=pictures)
        assert app.run_until_idle().done == 8
        assert 1 <= peak.most["sight"] <= 2
        app.hold("sight")  # it does not wait for what it can do without
        app.add(text="one more", pipeline=pictures)
        assert app.run_until_idle().done == 1


def test_a_rate_starts_so_many_a_second_and_a_retry_counts_again(store_url: str) -> None:
    books, began = Pipeline("books", attempts=2, backoff_s=1), []

    @books.stage
    def read(doc: Document) -> None:
        began.append(doc.id)
        if began.count(doc.id) == 1:
            raise Transient("once")

    with trial(books, store=store_url, concurrency=10) as app:
        app.limit("org:default", rate_per_s=2, new=True)
        app.add_many([{"text": str(n)} for n in range(4)], pipeline=books)
        counts = []
        for _ in range(6):
            counts.append(tick(app))
            app.clock.advance(1)
        assert counts[0] <= 2
        assert all(number <= 2 for number in counts)
        assert drain(app).done + sum(s.state == "done" for s in app.documents()) >= 4
        assert len(began) == 8


def test_why_names_the_limit_and_how_to_change_it(store_url: str) -> None:
    books = Pipeline("books")

    @books.stage
    def read(doc: Document) -> None: ...

    with trial(books, store=store_url, concurrency=10) as app:
        app._call(app.service.store.register("worker", "host:1", ["documents"]))
        app.limit("org:default", rate_per_s=0.5, new=True)
        ids = [added.id for added in app.add_many([{"text": str(n)} for n in range(3)], pipeline=books)]
        assert tick(app) == 1
        told = next(app.why(id_) for id_ in ids if app.status(id_).state == "queued")
        assert "under the limit of org:default (0.5 may start per second, 2 wait)" in str(told)
        assert "perdure limit org:default" in str(told)


def test_a_limit_of_a_name_that_nothing_has_is_refused_with_the_nearest(store_url: str) -> None:
    books = two_stages(Peak())
    with trial(books, store=store_url) as app:
        app.add(text="a", org="acme", pipeline=books)
        for wrong, right in (("org:acne", "org:acme"), ("dependency:lln", "dependency:llm")):
            with pytest.raises(InputInvalid, match=right) as refused:
                app.limit(wrong, concurrency=1, new=False)
            assert refused.value.code == "limit_key_unknown"


@pytest.mark.parametrize("key", ["", "org:", "dependency:", "dependency:A b", "a\0b"])
def test_a_key_that_no_document_can_have_is_refused(key: str) -> None:
    books = two_stages(Peak())
    with trial(books) as app:
        with pytest.raises(InputInvalid):
            app.limit(key, concurrency=1, new=True)
        assert app.limits() == []


def test_a_concurrency_key_that_looks_like_such_a_limit_is_refused(store_url: str) -> None:
    books = Pipeline("books", concurrency_key=lambda doc: f"org:{doc.org}")

    @books.stage
    def read(doc: Document) -> None: ...

    with trial(books, store=store_url) as app, pytest.raises(InputInvalid) as refused:
        app.add(text="a", pipeline=books)
    assert refused.value.code == "limit_key_reserved"


def test_the_built_in_pipelines_keep_them_too(store_url: str) -> None:
    with Perdure(store_url, pipelines=[documents, images], concurrency=6) as app:
        app.limit("dependency:vision", concurrency=1, new=False)  # of the stage that describes images
        for org in ("acme", "other"):
            for n in range(4):
                app.add(text=f"{n} " * 50, org=org, pipeline="document")
        app.limit("org:acme", concurrency=1, new=False)
        assert app.run_until_idle().done == 8
        assert {(one.key, one.used, one.parked) for one in app.limits()} == {
            ("org:acme", 0, 0),
            ("dependency:vision", 0, 0),
        }
        ran = [one for s in app.documents(org="acme") for one in app.attempts(s.id, org="acme")]
        spans = sorted((one.started_ms, one.ended_ms) for one in ran)
        assert len(spans) >= 4
        assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))
