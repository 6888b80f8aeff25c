"""What nobody finished: leases that ran out, documents that fall due, old queue rows; and parts that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Document, Pipeline, RetryLater
from perdure.core.events import AttemptEnded, JobRecovered
from perdure.core.model import Job
from perdure.engine import sweeper
from perdure.engine.keeper import Keeper
from perdure.engine.slate import Slate
from perdure.engine.sweeper import Retention, Sweeper, Swept
from perdure.errors import StoreUnavailable
from perdure.store.operations import Beat, Claim, Save
from perdure.store.records import Claimed
from perdure.testing import Trial, drain, failing, recording, tick, trial

books = Pipeline("books", lease_s=30)


@books.stage
def read(doc: Document) -> str:
    return doc.text


def sweep(app: Trial) -> Swept:
    return app._call(app.sweeper.sweep(app.clock.monotonic_s()))


def other_worker(app: Trial) -> int:
    return app._call(app.service.store.register("worker", "other", ["documents"]))


def claim(app: Trial, worker: int, token: int, limit: int = 1) -> list[Claimed]:
    return app._call(app.service.store.claim(Claim(worker, ("documents",), token, limit, limit)))


def die(app: Trial, worker: int) -> None:
    """What the operating system does when the worker's process ends."""
    app._call(app.service.store.driver.unlock("worker", worker))


def test_a_lease_is_taken_back_after_it_ran_out_and_not_before(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        events = recording(app)
        id_ = app.add(text="a", pipeline=books).id
        (claimed,) = claim(app, other_worker(app), 11)
        app.clock.advance(29)
        assert sweep(app).recovered == 0
        assert app.status(id_).state == "running"
        app.clock.advance(2)
        assert sweep(app).recovered == 1
        assert len(events.of(JobRecovered)) == 1
        save = Save(claimed.job, "read", "", 30_000)
        assert not app._call(app.service.store.save(save))
        assert app._call(app.service.store.tally()).fenced == 1
        assert drain(app).done == 1
        assert [(a.outcome, a.charged) for a in app.attempts(id_)] == [("later", False), ("done", True)]


def test_many_leases_are_taken_back_in_batches_without_a_pause(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "RECOVER_BATCH", 2)
    monkeypatch.setattr(sweeper, "RECOVER_ROUNDS", 2)
    with trial(books, store=store_url) as app:
        events = recording(app)
        for n in range(9):
            app.add(text=str(n), pipeline=books)
        worker = other_worker(app)
        claim(app, worker, 11, 9)
        app.clock.advance(31)
        swept = sweep(app)
        assert (swept.recovered, swept.more) == (4, True)
        # of another worker: after its first sweep, a keeper leaves its own worker time to renew
        keeper = Keeper(
            app.service.store, app.service.events, other_worker(app), Slate.private(), app.sweeper
        )
        stopping = asyncio.Event()

        async def until_over() -> None:
            sweeping = asyncio.create_task(keeper._every(600, keeper._sweep, stopping))
            async with asyncio.timeout(90):
                while len(events.of(JobRecovered)) < 9:
                    await asyncio.sleep(0.01)
                stopping.set()
                await sweeping

        app._call(until_over())
        assert not sweep(app).more
        assert {(one.outcome, one.recovered) for one in events.of(AttemptEnded)} == {("later", True)}
        assert drain(app).done == 9


def test_a_lease_that_is_renewed_is_not_taken_back(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        id_ = app.add(text="a", pipeline=books).id
        worker = other_worker(app)
        (claimed,) = claim(app, worker, 11)
        for _ in range(5):
            app.clock.advance(20)
            beat = Beat(worker, ((claimed.job.id, 11), (claimed.job.id, 12)))
            assert app._call(app.service.store.beat(beat)) == {(claimed.job.id, 12)}
            assert sweep(app).recovered == 0
        assert app.status(id_).last_heartbeat_ms == app.clock.now_ms()


def test_a_lease_that_is_renewed_after_the_sweep_has_read_it_is_not_taken_back(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trial(books, store=store_url) as app:
        app.add(text="a", pipeline=books)
        store, worker = app.service.store, other_worker(app)
        (claimed,) = claim(app, worker, 11)
        read_expired = store.expired

        async def renewed(*given: Any) -> list[Job]:
            found = await read_expired(*given)
            assert await store.beat(Beat(worker, ((claimed.job.id, 11),))) == set()
            return found

        app.clock.advance(31)
        monkeypatch.setattr(store, "expired", renewed)
        assert sweep(app).recovered == 0


def test_a_worker_that_beats_keeps_leases_that_ended_long_ago_for_a_while(store_url: str) -> None:
    """The clock was set ahead: it renews them soon, or it does not do so at all."""
    with trial(books, store=store_url) as app:
        app.add(text="a", pipeline=books)
        claim(app, other_worker(app), 11)
        app.sweeper.lives = lambda worker: True
        app.clock.advance(3_600)

        recovered = [app._call(app.sweeper.sweep(at_s)).recovered for at_s in (100.0, 119.0, 121.0)]

        assert recovered == [0, 0, 1]


def test_only_a_dead_workers_documents_are_suspect(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        ids = [app.add(text=str(n), pipeline=books).id for n in range(2)]
        frozen, dead = other_worker(app), other_worker(app)
        claim(app, frozen, 11)
        claim(app, dead, 12)
        die(app, dead)
        app.clock.advance(31)
        assert sweep(app).recovered == 2
        assert [app.status(id_).suspect for id_ in ids] == [False, True]
        assert [app.status(id_).attempts_made for id_ in ids] == [0, 0]


def test_a_document_is_not_taken_back_for_ever(store_url: str) -> None:
    fragile = Pipeline("fragile", postpones_max=3)

    @fragile.stage
    def explode(doc: Document) -> None: ...

    with trial(fragile, store=store_url) as app:
        id_ = app.add(text="a", pipeline=fragile).id
        for token in range(11, 20):
            worker = other_worker(app)
            if not claim(app, worker, token):
                break
            die(app, worker)
            app.clock.advance(31)
            assert sweep(app).recovered == 1
        status = app.status(id_)
        assert (status.state, status.error_code) == ("dead", "postpones_exhausted")
        # the first death proves nothing, then three are given back, and the next is one too many
        assert status.claims == 5


def test_what_falls_due_is_promoted_in_one_sweep_however_many(store_url: str) -> None:
    with trial(books, store=store_url, concurrency=2000) as app:
        app.add_many([{"text": str(n), "delay_s": 60} for n in range(1_100)], pipeline=books)
        assert sweep(app).promoted == 0
        app.clock.advance(60)
        assert sweep(app).promoted == 1_100


def test_more_old_rows_than_go_at_once_are_pruned_soon_and_the_balance_is_looked_at_each_minute(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "PROMOTE_BATCH", 1)
    monkeypatch.setattr(sweeper, "PRUNE_ROUNDS", 3)
    monkeypatch.setattr(sweeper, "FORGET_BATCH", 1)
    with trial(books, store=store_url, concurrency=50) as app:
        app.add_many([{"text": str(n)} for n in range(8)], pipeline=books)
        drain(app)
        app.clock.advance(8 * 86_400)
        looks: list[float] = []
        look = app.service.store.look

        async def looking() -> Any:
            looks.append(app.clock.monotonic_s())
            return await look()

        monkeypatch.setattr(app.service.store, "look", looking)
        assert [sweep(app).pruned for _ in range(3)] == [3, 3, 2], "the rest has its turn in the next sweep"
        assert len(looks) == 1
        left = app._call(app.service.store._rows("SELECT count(*) FROM feed"))
        assert left == [(5,)], "several batches in a minute"


def test_queue_rows_go_by_age_and_count_and_the_documents_stay(store_url: str) -> None:
    with trial(books, store=store_url, concurrency=50) as app:
        app.sweeper = Sweeper(
            app.service.store, app.service.events, Retention(3_600_000, 5), server_young_s=0
        )
        ids = [added.id for added in app.add_many([{"text": str(n)} for n in range(20)], pipeline=books)]
        with failing(read, *[ValueError("x")] * 20):
            dead = app.add(text="dead", pipeline=books, attempts=1).id
            app.raise_(dead)
            app.service.concurrency = 1
            tick(app)
        app.service.concurrency = 50
        while tick(app):
            app.clock.advance(1)
        app.clock.advance(61)
        assert sweep(app).pruned >= 15
        app.clock.advance(3_700)
        sweep(app)
        jobs = app._call(app.service.store._rows("SELECT state, count(*) FROM job GROUP BY state"))
        assert jobs == [("dead", 1)]
        assert [app.status(id_).state for id_ in ids] == ["done"] * 20
        assert len(app.attempts(ids[0])) == 1
        assert app.output(ids[0], "read") == "0"
        assert app.requeue(ids[0], from_stage="read") == "requeued"
        assert drain(app).done == 1
        assert app.requeue(dead) == "requeued"


def test_a_part_that_fails_is_named_and_the_others_are_done(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trial(books, store=store_url) as app, failing(read, RetryLater(delay_s=60)):
        id_ = app.add(text="a", pipeline=books).id
        tick(app)
        app.clock.advance(60)

        async def away(*_: Any) -> None:
            raise StoreUnavailable("gone")

        monkeypatch.setattr(app.service.store, "expired", away)
        swept = sweep(app)
        assert swept.failed == ["recover: StoreUnavailable: gone"]
        assert swept.promoted == 1
        assert app.status(id_).state == "queued"


def test_right_after_a_restart_of_the_server_leases_are_left_alone(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        app.add(text="a", pipeline=books)
        claim(app, other_worker(app), 11)
        app.clock.advance(31)
        young = Sweeper(app.service.store, app.service.events, server_young_s=float("inf"))
        if app.service.store.dialect_name == "postgres":  # a file has no server that could restart
            assert app._call(young.sweep(0)).recovered == 0
        assert sweep(app).recovered == 1
