"""What operators see of a worker: whose documents it has in hand, its slots, and the sandbox of its cells."""

from __future__ import annotations

import time
from typing import Any

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.api.overview import WorkerView
from perdure.cli.drawing import Safe
from perdure.cli.status import show_overview
from perdure.settings import Settings
from tests.engine.test_large import LARGE_BYTES, SETTINGS, WAIT_S, Yard, text


def told(app: Perdure, **wanted: Any) -> dict[str, Any]:
    """The facts of the only worker, as soon as they say this."""
    until_s = time.monotonic() + WAIT_S
    while True:
        workers = app.overview()["workers"]
        if len(workers) == 1 and wanted.items() <= workers[0].items():
            WorkerView.model_validate(workers[0])
            return dict(workers[0])
        assert time.monotonic() < until_s, workers
        time.sleep(0.02)


def test_the_slots_of_a_worker_by_organisation(store_url: str) -> None:
    yard = Yard()
    with Perdure(store_url, pipelines=[yard.pipeline], concurrency=3, settings=SETTINGS) as app:
        for n in range(2):
            app.add(text=text(n), name="stays", org="b", pipeline=yard.pipeline)
        app.add(text=text(1, LARGE_BYTES), name="stays", org="a", pipeline=yard.pipeline)
        with yard.works(app):
            yard.wait_for(stays=3)
            worker = told(app, slots=3, large_slots=1, sandbox="not used")
            assert worker["organisations"] == [
                {"org": "b", "in_hand": 2, "large": 0},
                {"org": "a", "in_hand": 1, "large": 1},
            ]
            out = Safe()
            with out.capture() as drawn:
                show_overview(app.overview(), out)
            words = " ".join(drawn.get().split())
            assert "3 of 3+1" in words
            assert "works for b 2, a 1 (1 large)" in words


@pytest.mark.parametrize("sandbox", ["off", "auto"])
def test_whether_the_sandbox_is_in_force(tmp_path: Any, sandbox: Any) -> None:
    pipeline = Pipeline("files")
    yard = Yard()

    @pipeline.stage(isolate=True, sandbox=True)
    def read(doc: Document) -> int:
        return 0

    settings = Settings(poll_s=0.05, sandbox=sandbox)
    url = f"sqlite:///{tmp_path}/perdure.db"
    with Perdure(url, pipelines=[yard.pipeline, pipeline], concurrency=1, settings=settings) as app:
        app.add(text="a", name="stays", pipeline=yard.pipeline)
        with yard.works(app):
            if sandbox == "off":
                told(app, sandbox="off")
            else:
                while (found := told(app)["sandbox"]) is None:
                    time.sleep(0.02)
                assert found in ("in force", "not available")


def test_a_worker_that_has_said_nothing_yet_is_shown(store_url: str) -> None:
    with Perdure(store_url, pipelines=[Yard().pipeline]) as app:
        number = app._call(app.service.store.register("worker", "host:1", ["documents"]))
        worker = told(app, slots=None, large_slots=None, sandbox=None, organisations=[])
        out = Safe()
        with out.capture() as drawn:
            show_overview(app.overview(), out)
        assert "host:1" in drawn.get()
        app._call(
            app.service.store.tell_about(worker["id"], '{"slots": 4, "large_slots": 2, "sandbox": "off"}')
        )
        told(app, id=number, slots=4, large_slots=2, sandbox="off")
