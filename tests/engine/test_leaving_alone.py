"""What a worker does not take, or drops: without a keeper, too late, given up; and never more than it may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.engine import worker as worker_module
from perdure.engine.isolate import Nursery
from perdure.engine.keeper import monotonic_ms
from perdure.engine.slate import Slate
from perdure.engine.worker import UNKEPT_MS, Worker
from perdure.settings import Settings
from perdure.store.records import Claimed
from perdure.testing import Trial, trial

books = Pipeline("books", lease_s=30)


@books.stage
async def read(doc: Document) -> str:
    return doc.text


@asynccontextmanager
async def a_worker(app: Trial) -> AsyncIterator[Worker]:
    """A worker that is driven by hand."""
    service = app.service
    number = await service.store.register("worker", "by hand", service.queues)
    yield service.new_worker(number, Slate.private(), Nursery([]))
    await service.store.retire(number)


def test_a_worker_whose_keeper_stands_still_claims_nothing() -> None:
    async def play(app: Trial) -> tuple[int, int]:
        async with a_worker(app) as worker:
            worker.slate.kept(monotonic_ms() - UNKEPT_MS - 1_000)
            unkept = await worker.turn()
            worker.slate.kept(monotonic_ms() + 3_600_000)
            return unkept, await worker.turn()

    with trial(books) as app:
        app.add(text="a", pipeline=books)
        assert app._call(play(app)) == (0, 1)


def test_a_claim_that_is_answered_after_most_of_its_lease_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed_ms = 0
    monkeypatch.setattr(worker_module, "monotonic_ms", lambda: monotonic_ms() + passed_ms)

    async def play(app: Trial) -> int:
        store, claim = app.service.store, app.service.store.claim

        async def slowly(*given: Any) -> list[Claimed]:
            nonlocal passed_ms
            found = await claim(*given)
            passed_ms += 21_000
            return found

        async with a_worker(app) as worker:
            monkeypatch.setattr(store, "claim", slowly)
            return await worker.turn()

    with trial(books) as app:
        id_ = app.add(text="a", pipeline=books).id
        assert app._call(play(app)) == 0
        status = app.status(id_)
        assert (status.state, status.claims, status.attempts_made, status.suspect) == ("queued", 1, 0, False)


def test_what_the_keeper_gave_up_is_lost() -> None:
    async def play(app: Trial) -> list[bool]:
        async with a_worker(app) as worker:
            slot = worker.slate.take(1, 9, 30_000, monotonic_ms())
            lost = [worker._lost(slot)]
            worker.slate.revoke(worker.slate.held()[0])
            return [*lost, worker._lost(slot)]

    with trial(books) as app:
        assert app._call(play(app)) == [False, True]


def test_no_more_documents_run_at_a_time_than_the_worker_has_slots(tmp_path: Path) -> None:
    pipeline, at_work, most = Pipeline("slow"), 0, 0

    @pipeline.stage
    async def wait(doc: Document) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.001 * int(doc.text))
        at_work -= 1

    app = Perdure(
        f"sqlite:///{tmp_path}/a.db", pipelines=[pipeline], concurrency=2, settings=Settings(poll_s=0.05)
    )
    with app:
        for n in range(12):
            app.add(text=f"{10 + 7 * n}", pipeline=pipeline)
        assert app.run_until_idle().done == 12
    assert most == 2
