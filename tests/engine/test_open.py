"""Apps that are not open, closed, opened again, left in the middle, or asked to work twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure import AsyncPerdure, Document, Perdure, Pipeline
from perdure.errors import PerdureError, StoreError, UsageError
from perdure.settings import Settings

QUICK = Settings(poll_s=0.2, grace_s=0.3)


def until(condition: Callable[[], Any], within_s: float = 90) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.01)


def notes() -> Pipeline:
    pipeline = Pipeline("notes")

    @pipeline.stage
    def read(doc: Document) -> str:
        return doc.text

    return pipeline


def test_an_app_works_once_at_a_time(tmp_path: Path) -> None:
    pipeline = Pipeline("slow")
    started, go = threading.Event(), threading.Event()

    @pipeline.stage
    def work(doc: Document) -> None:
        started.set()
        go.wait(90)

    with Perdure(f"sqlite:///{tmp_path}/books.db", pipelines=[pipeline], settings=QUICK) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        running = threading.Thread(target=app.run_until_idle)
        running.start()
        assert started.wait(90)
        for again in (app.run_until_idle, app.run):
            with pytest.raises(RuntimeError, match="works already"):
                again()
        go.set()
        running.join(90)
        assert app.status(id_).state == "done"


def test_leaving_the_block_stops_the_work_in_good_order(store_url: str) -> None:
    pipeline = Pipeline("slow")
    started = threading.Event()

    @pipeline.stage
    async def work(doc: Document) -> None:
        started.set()
        await asyncio.sleep(60)

    with Perdure(store_url, pipelines=[pipeline], settings=QUICK) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        running = threading.Thread(target=app.run)
        running.start()
        assert started.wait(90)
    running.join(90)
    assert not running.is_alive()
    with Perdure(store_url, pipelines=[pipeline], settings=QUICK) as app:
        assert (app.status(id_).state, app.status(id_).attempts_made) == ("queued", 0)
        running = threading.Thread(target=app.run)
        running.start()
        until(lambda: app.service._working.locked())
    running.join(90)  # told to stop while it was getting ready
    assert not running.is_alive()


@pytest.mark.parametrize("verb", ["add", "status", "run_until_idle", "run", "pause"])
def test_an_app_that_is_not_open_says_so(tmp_path: Path, verb: str) -> None:
    pipeline = notes()
    app = Perdure(f"sqlite:///{tmp_path}/books.db", pipelines=[pipeline])
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: app.add(text="a", pipeline=pipeline),
        "status": lambda: app.status("x"),
        "run_until_idle": app.run_until_idle,
        "run": app.run,
        "pause": lambda: app.pause("documents"),
    }
    for _ in range(2):
        with pytest.raises(UsageError, match="not open"):
            calls[verb]()
    assert not (tmp_path / "books.db").exists()


def test_an_awaited_app_that_is_not_open_says_so(store_url: str) -> None:
    pipeline = notes()

    async def scene() -> None:
        app = AsyncPerdure(store_url, pipelines=[pipeline])
        for call in (
            app.add(text="a", pipeline=pipeline),
            app.status("x"),
            app.cancel("x"),
            app.run_until_idle(),
        ):
            with pytest.raises(StoreError) as refused:
                await call
            assert refused.value.code == "store_closed"

    asyncio.run(scene())


def test_an_app_that_is_open_is_not_opened_again(tmp_path: Path) -> None:
    app = Perdure(f"sqlite:///{tmp_path}/books.db", pipelines=[notes()])
    with app, pytest.raises(UsageError, match="open already"):
        app.__enter__()
    with app:
        assert app.documents() == []


def test_an_app_can_be_closed_and_opened_again(store_url: str) -> None:
    pipeline = notes()
    app = Perdure(store_url, pipelines=[pipeline], settings=QUICK)
    for n in range(2):
        with app:
            app.add(text=str(n), pipeline=pipeline)
            assert app.run_until_idle().done == 1
        with pytest.raises(UsageError, match="not open"):
            app.documents()


def test_an_app_that_is_opened_again_checks_its_blobs_again(store_url: str) -> None:
    pipeline = notes()
    app = AsyncPerdure(store_url, pipelines=[pipeline], settings=QUICK)
    waited = 0

    async def work() -> None:
        nonlocal waited
        await app.start()
        try:
            check = app.blobs.check

            async def slow() -> None:
                nonlocal waited
                await asyncio.sleep(0.01)
                await check()
                waited += 1

            app.blobs.check = slow  # type: ignore[method-assign]
            await app.run_until_idle()
        finally:
            await app.close()

    asyncio.run(work())
    first = waited
    asyncio.run(work())  # in another event loop
    assert waited == 2 * first > 0


def test_a_store_that_cannot_be_opened_leaves_nothing_running(tmp_path: Path) -> None:
    before = threading.active_count()
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(PerdureError), Perdure(f"sqlite:///{blocked}/books.db", pipelines=[notes()]):
        pass
    until(lambda: threading.active_count() <= before)


def test_threads_do_not_pile_up_with_every_run(tmp_path: Path) -> None:
    pipeline = notes()
    before = set(threading.enumerate())  # a stage of another test may hang for good
    with Perdure(f"sqlite:///{tmp_path}/books.db", pipelines=[pipeline], settings=QUICK) as app:
        app.add(text="first", pipeline=pipeline)
        app.run_until_idle()
        new = "perdure-stage-"
        until(lambda: not [t for t in set(threading.enumerate()) - before if t.name.startswith(new)])


@pytest.mark.parametrize("awaited", [False, True], ids=["plain", "awaited"])
def test_a_start_that_failed_after_connecting_leaves_nothing_behind(
    postgres_store_url: str, awaited: bool
) -> None:
    pipeline = notes()
    database = urlsplit(postgres_store_url).path.removeprefix("/")

    async def set_read_only(on: bool) -> None:
        connection = await asyncpg.connect(postgres_store_url)
        try:
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute(f'ALTER DATABASE "{database}" SET default_transaction_read_only = {on}')
        finally:
            await connection.close()

    app = Perdure(postgres_store_url, pipelines=[pipeline], settings=QUICK)

    async def add() -> str:
        async with app as service:
            return (await service.add(text="a", pipeline=pipeline)).answer

    def enter() -> str:
        if awaited:
            return asyncio.run(add())
        with app:
            return app.add(text="a", pipeline=pipeline).answer

    with Perdure(postgres_store_url):  # which makes what only the first one makes
        pass
    asyncio.run(set_read_only(True))
    with pytest.raises(StoreError):
        enter()
    asyncio.run(set_read_only(False))
    answers: list[str] = []
    entering = threading.Thread(target=lambda: answers.append(enter()), daemon=True)
    entering.start()
    entering.join(90)
    assert answers == ["added"]
