"""Large documents and slow organisations in a worker: others go on meanwhile, and nobody is left out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.engine import shares
from perdure.settings import Settings
from perdure.testing import drain, trial

LARGE_BYTES = 1_000
WAIT_S = 90
SETTINGS = Settings(poll_s=0.05, large_bytes=LARGE_BYTES)


class Yard:
    """A pipeline whose documents stay in their stage until they are let go; small ones go through."""

    def __init__(self, **options: Any) -> None:
        self.pipeline = Pipeline("texts", **options)
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ended: list[str] = []
        self.changed = threading.Condition()
        self.open = False

        @self.pipeline.stage
        def read(doc: Document) -> int:
            kind = str(doc.name)
            with self.changed:
                self.inside[kind] += 1
                self.most[kind] = max(self.most[kind], self.inside[kind])
                self.changed.notify_all()
                if kind.startswith("stays"):
                    assert self.changed.wait_for(lambda: self.open, WAIT_S)
                self.inside[kind] -= 1
                self.ended.append(kind)
                self.changed.notify_all()
            return 0

    def wait_for(self, **inside: int) -> None:
        """Until so many of each kind are in their stage."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: all(self.inside[kind] >= n for kind, n in inside.items()), WAIT_S
            ), self.inside

    def wait_until_ended(self, kind: str, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.ended.count(kind) >= count, WAIT_S), self.ended

    def let_go(self) -> None:
        with self.changed:
            self.open = True
            self.changed.notify_all()

    @contextmanager
    def works(self, app: Perdure) -> Iterator[None]:
        """While a worker runs in another thread; in the end all are let go."""
        worker = threading.Thread(target=app.run_until_idle)
        worker.start()
        try:
            yield
        finally:
            self.let_go()
            worker.join(WAIT_S)
            assert not worker.is_alive()


def text(n: int, size: int = 1) -> str:
    return f"{n} ".ljust(size, "x")


def test_small_documents_of_others_are_done_while_large_ones_are_in_work(store_url: str) -> None:
    yard = Yard()
    with Perdure(store_url, pipelines=[yard.pipeline], concurrency=3, settings=SETTINGS) as app:
        for n in range(4):
            app.add(text=text(n, LARGE_BYTES), name="stays", org="a", pipeline=yard.pipeline)
        with yard.works(app):
            yard.wait_for(stays=3)  # as many as there are slots: large ones alone use all
            id_ = app.add(text="short", name="b", org="b", pipeline=yard.pipeline).id
            yard.wait_until_ended("b", 1)
            assert yard.ended == ["b"]
        assert app.status(id_, org="b").state == "done"
        assert yard.ended.count("stays") == 4
    assert yard.most["stays"] == 3


def test_large_ones_go_on_while_small_ones_hold_all_their_slots(store_url: str) -> None:
    yard = Yard()
    with Perdure(store_url, pipelines=[yard.pipeline], concurrency=2, settings=SETTINGS) as app:
        for n in range(5):
            app.add(text=text(n), name="stays", pipeline=yard.pipeline)
        with yard.works(app):
            yard.wait_for(stays=2)
            for n in range(5):
                app.add(text=text(n, LARGE_BYTES), name="large", pipeline=yard.pipeline)
            yard.wait_until_ended("large", 5)
            assert "stays" not in yard.ended
    assert (yard.most["stays"], yard.most["large"]) == (2, 1)


def test_a_pipeline_with_slots_of_its_own_has_some_for_either_size(store_url: str) -> None:
    yard = Yard(queue="own", concurrency=2)
    with Perdure(store_url, pipelines=[yard.pipeline], concurrency=3, settings=SETTINGS) as app:
        for n in range(3):
            app.add(text=text(n, LARGE_BYTES), name="stays", pipeline=yard.pipeline)
        with yard.works(app):
            yard.wait_for(stays=2)
            app.add(text="short", name="small", pipeline=yard.pipeline)
            yard.wait_until_ended("small", 1)
    assert yard.most["stays"] == 2


def test_a_worker_of_one_slot_runs_small_ones_beside_a_large_one(store_url: str) -> None:
    yard = Yard()
    with Perdure(store_url, pipelines=[yard.pipeline], concurrency=1, settings=SETTINGS) as app:
        for n in range(2):
            app.add(text=text(n, LARGE_BYTES), name="stays", org="a", pipeline=yard.pipeline)
        with yard.works(app):
            yard.wait_for(stays=1)
            app.add(text="short", name="small", org="b", pipeline=yard.pipeline)
            yard.wait_until_ended("small", 1)
            assert yard.ended == ["small"]
    assert yard.most["stays"] == 1


def test_without_slots_beside_a_worker_never_runs_more_than_its_concurrency(store_url: str) -> None:
    yard = Yard()
    strict = Settings(poll_s=0.05, large_bytes=LARGE_BYTES, large_slots=0)
    with Perdure(store_url, pipelines=[yard.pipeline], concurrency=1, settings=strict) as app:
        for n in range(3):
            app.add(text=text(n, LARGE_BYTES), name="large", pipeline=yard.pipeline)
            app.add(text=text(n), name="small", pipeline=yard.pipeline)
        assert app.run_until_idle().done == 6
    assert set(yard.most.values()) == {1}


def test_until_idle_ends_with_large_ones_and_with_workers_of_two_processes(store_url: str) -> None:
    yard = Yard()
    with (
        Perdure(store_url, pipelines=[yard.pipeline], concurrency=2, settings=SETTINGS) as app,
        Perdure(store_url, pipelines=[yard.pipeline], concurrency=2, settings=SETTINGS) as other,
    ):
        for n in range(20):
            app.add(text=text(n, LARGE_BYTES * (n % 2)), name="any", pipeline=yard.pipeline)
        with yard.works(other):
            app.run_until_idle()
        assert {one.state for one in app.documents(limit=50)} == {"done"}


def test_a_slow_organisation_leaves_a_slot_to_others(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SLOW_MS", 0)
    yard = Yard()
    with Perdure(store_url, pipelines=[yard.pipeline], concurrency=3, settings=SETTINGS) as app:
        app.add(text="first", name="b", org="b", pipeline=yard.pipeline)
        assert app.run_until_idle().done == 1
        app.add(text="again", name="b", org="b", pipeline=yard.pipeline)
        for n in range(9):
            app.add(text=text(n), name="stays", org="a", pipeline=yard.pipeline)
        with yard.works(app):
            yard.wait_for(stays=2)
            yard.wait_until_ended("b", 2)
            for n in range(5):
                app.add(text=text(n), name="b", org="b", pipeline=yard.pipeline)
                yard.wait_until_ended("b", 3 + n)
            assert yard.most["stays"] == 2


def test_who_is_alone_uses_all_slots(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SLOW_MS", 0)
    yard = Yard()
    with Perdure(store_url, pipelines=[yard.pipeline], concurrency=3, settings=SETTINGS) as app:
        for n in range(5):
            app.add(text=text(n), name="stays", org="a", pipeline=yard.pipeline)
        with yard.works(app):
            yard.wait_for(stays=3)


def test_a_document_that_grows_is_large_when_it_is_tried_again(store_url: str) -> None:
    growing = Pipeline("growing")

    @growing.stage
    def unfold(doc: Document) -> str:
        return "x" * LARGE_BYTES

    @growing.stage(attempts=3, backoff_s=0)
    def use(unfold: str) -> int:
        tried.append(len(unfold))
        if len(tried) == 1:
            raise OSError("once")
        return 0

    tried: list[int] = []
    with trial(growing, store=store_url, settings=SETTINGS) as app:
        id_ = app.add(text="small", pipeline=growing).id
        drain(app)
        assert app.status(id_).state == "done"
        lanes = app._call(app.service.store.jobs("default", id_))
        assert [(one.stage, one.lane) for one in lanes] == [("use", "~")]
    assert tried == [LARGE_BYTES, LARGE_BYTES]
