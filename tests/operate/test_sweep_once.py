"""A sweep by hand has not watched the workers: after a clock was set ahead it takes nothing from one that lives."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Document, Pipeline
from perdure.cli.sweep import show
from perdure.operate import sweeping
from perdure.store.operations import Beat, Claim
from perdure.store.records import Claimed
from perdure.testing import Trial, trial

HOUR_S = 3_600
TOKEN = 11
books = Pipeline("books", lease_s=30)


@books.stage
def read(doc: Document) -> str:
    return doc.text


def in_hand(app: Trial) -> tuple[int, Claimed]:
    """Another worker, and what it has claimed."""
    app.add(text="a", pipeline=books)
    store = app.service.store
    worker = app._call(store.register("worker", "other", ["documents"]))
    (claimed,) = app._call(store.claim(Claim(worker, ("documents",), TOKEN, 1, 1)))
    return worker, claimed


def lose_lock(app: Trial, worker: int) -> None:
    """As when the worker's process ends, or its connection to PostgreSQL."""
    app._call(app.service.store.driver.unlock("worker", worker))


def old_server(app: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has been up for long."""

    async def up_for_s() -> float:
        return 1e9

    monkeypatch.setattr(app.service.store, "up_for_s", up_for_s)


def test_lease_of_a_living_worker_is_left_to_it_and_that_is_said(
    store_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with trial(books, store=store_url) as app:
        old_server(app, monkeypatch)
        worker, claimed = in_hand(app)
        app.clock.advance(HOUR_S)

        swept = app.sweep()

        assert (swept.recovered, swept.left) == (0, 1)
        assert app._call(app.service.store.beat(Beat(worker, ((claimed.job.id, TOKEN),)))) == set()
        show(swept)
        assert "1 expired leases are left to their workers, which are alive" in capsys.readouterr().out
        assert app.sweep().left == 0, "it was renewed"


def test_lease_of_a_dead_worker_is_taken(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "APART_S", 0.0)
    with trial(books, store=store_url) as app:
        old_server(app, monkeypatch)
        worker, _ = in_hand(app)
        lose_lock(app, worker)
        app.clock.advance(31)

        swept = app.sweep()

        assert (swept.recovered, swept.left) == (1, 0)


def test_worker_that_lost_its_lock_and_beats_keeps_its_lease(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "APART_S", 0.0)
    with trial(books, store=postgres_url) as app:
        old_server(app, monkeypatch)
        store = app.service.store
        worker, claimed = in_hand(app)
        lose_lock(app, worker)
        app.clock.advance(HOUR_S)
        looked = store.peers

        async def beaten(*given: Any) -> list[tuple[int, int]]:
            found = await looked(*given)
            await store.beat(Beat(worker, ()))
            return found

        monkeypatch.setattr(store, "peers", beaten)

        swept = app.sweep()

        assert (swept.recovered, swept.left) == (0, 1)
        assert app._call(store.beat(Beat(worker, ((claimed.job.id, TOKEN),)))) == set()
