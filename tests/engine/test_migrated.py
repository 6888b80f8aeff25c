"""A store that a newer release migrates under a running program: the program stops, and writes nothing more."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.errors import SchemaNewer
from perdure.settings import Settings
from perdure.store.base import Query, Steps
from perdure.store.open import open_store
from tests.doors.command import COMMAND, environment

ROOT = Path(__file__).parents[2]
LATER = "INSERT INTO migration (name, needs, applied_ms) VALUES ('9999_later', {}, 0)"


def migrate(url: str, needs: int = 99) -> None:
    """As a release does that knows more."""

    def steps() -> Steps[None]:
        yield Query(LATER.format(needs))

    async def run() -> None:
        store = open_store(url)
        await store.driver.open()
        await store.driver.write(steps)
        await store.driver.close()

    asyncio.run(run())


@pytest.mark.parametrize("needs", [1, 99], ids=["that we can work on", "that we cannot"])
def test_an_app_at_work_notices_a_migration(store_url: str, needs: int) -> None:
    pipeline = Pipeline("notes", attempts=1)
    running, go = threading.Event(), threading.Event()

    @pipeline.stage
    def work(doc: Document) -> None:
        running.set()
        go.wait(30)

    told: list[BaseException] = []
    with Perdure(store_url, pipelines=[pipeline], settings=Settings(poll_s=0.1), concurrency=2) as app:
        first = app.add(text="a", pipeline=pipeline).id

        def run() -> None:
            try:
                app.run_until_idle()
            except SchemaNewer as error:
                told.append(error)

        at_work = threading.Thread(target=run)
        at_work.start()
        assert running.wait(30)
        migrate(store_url, needs)
        if needs == 1:
            app.add(text="b", pipeline=pipeline)
            go.set()
            at_work.join(30)
            assert (told, app.status(first).state) == ([], "done")
            return
        at_work.join(30)
        assert not at_work.is_alive()
        with pytest.raises(SchemaNewer, match="upgrade"):
            app.add(text="b", pipeline=pipeline)
        go.set()
    assert len(told) == 1

    store = open_store(store_url)

    async def look() -> tuple[str, int, int]:
        await store.driver.open()
        try:
            found = await store.status("default", first)
            assert found is not None
            rows = await store._rows("SELECT count(*) FROM document")
            return found.state, found.attempts_made, rows[0][0]
        finally:
            await store.driver.close()

    state, attempts, documents = asyncio.run(look())
    assert (state, attempts, documents) == ("running", 1, 1)  # until its lease is over


def test_a_worker_ends_and_says_why(store_url: str) -> None:
    worker = subprocess.Popen(
        [*COMMAND, "worker", "tests.doors.slow:app", "--store", store_url],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        store = open_store(store_url)

        async def works() -> None:
            await store.open()
            while not any(one.kind == "worker" for one in await store.workers()):
                await asyncio.sleep(0.05)
            await store.close()

        asyncio.run(asyncio.wait_for(works(), 60))
        migrate(store_url)
        _, said = worker.communicate(timeout=90)
    finally:
        worker.kill()
    assert worker.returncode == 1
    assert "upgrade this program [schema_newer]" in said
