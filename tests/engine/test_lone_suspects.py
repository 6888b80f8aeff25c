"""Suspects that no other process can run, limits of those that have none, and stages that are isolated by size."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from perdure import DependencyDown, Document, Perdure, Pipeline
from perdure.core.events import AnyEvent, WorkerStalled
from perdure.engine import execution
from perdure.engine.slate import Slate
from perdure.errors import PipelineInvalid
from perdure.settings import Settings
from perdure.testing import drain, trial
from tests.engine import suspects
from tests.engine.suspects import pids
from tests.engine.test_suspects import let_a_worker_die


def test_suspects_that_run_here_do_so_one_at_a_time(store_url: str) -> None:
    local, at_once = Pipeline("local"), [0, 0]

    @local.stage
    async def read(doc: Document) -> None:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(0.01)
        at_once[0] -= 1

    with trial(local, store=store_url, cells=True, concurrency=10) as app:
        ids = [app.add(text=str(n), pipeline=local).id for n in range(4)]
        let_a_worker_die(app, 4)
        assert drain(app).done == 4
        assert at_once == [0, 1]
        assert {app.status(id_).attempts_made for id_ in ids} == {1}


def test_those_of_queues_with_slots_of_their_own_do_not_run_beside_them(store_url: str) -> None:
    at_once, most = 0, 0

    async def read(doc: Document) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.1)
        at_once -= 1

    made = [Pipeline("local"), Pipeline("films", queue="films", concurrency=2)]
    for pipeline in made:
        pipeline.stage(read)
    with Perdure(store_url, pipelines=made) as app:
        ids = [app.add(text=str(n), pipeline=pipeline).id for n in range(3) for pipeline in made]
        app._call(app.service.store.driver.script("UPDATE job SET suspect = TRUE"))
        assert app.run_until_idle().done == 6
        assert {app.status(id_).attempts_made for id_ in ids} == {1}
    assert most == 1


def test_suspects_in_cells_and_here_pass_a_gate_that_has_room_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CELLS_MEMORY_MB", "1")
    local = Pipeline("local")

    @local.stage
    def read(doc: Document) -> None: ...

    with trial([local, suspects.letters], cells=True, concurrency=10) as app:
        for n in range(3):
            app.add(text=f"local {n}", pipeline=local)
            app.add(text=f"letter {n}", pipeline=suspects.letters, meta={"notes": str(tmp_path)})
        let_a_worker_die(app, 6)
        assert drain(app).done == 6
    found = pids(tmp_path, "read")
    assert len(found) == 3
    assert os.getpid() not in found


def test_a_suspect_without_limits_is_ended_and_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SUSPECT_STALL_S", "0.3")
    local = Pipeline("local", attempts=5)

    @local.stage
    async def read(doc: Document) -> None:
        await asyncio.Event().wait()

    with trial(local, cells=True) as app:
        id_ = app.add(text="a", pipeline=local).id
        let_a_worker_die(app, 1)
        assert drain(app).dead == 1
        history = [(a.outcome, a.charged, a.error_code) for a in app.attempts(id_)]
        assert history == [
            ("later", False, "worker_lost"),
            ("retry", True, "no_progress"),
            ("dead", True, "no_progress"),
        ]


def test_a_suspect_that_would_be_quarantined_falls_back_instead() -> None:
    local = Pipeline("local", attempts=5)

    @local.stage(timeout=0.2, needs=["ocr"])
    async def read(doc: Document) -> str:
        await asyncio.Event().wait()
        raise DependencyDown("ocr")

    @read.fallback
    def without() -> str:
        return "a guess"

    with trial(local, cells=True) as app:
        id_ = app.add(text="a", pipeline=local).id
        let_a_worker_die(app, 1)
        drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", True)
        assert app.output(id_, "read") == "a guess"


def test_a_fallback_that_hangs_is_ended_and_seen_on_the_slate(monkeypatch: pytest.MonkeyPatch) -> None:
    local, seen = Pipeline("local", attempts=1), list[bool]()

    @local.stage(timeout=0.2)
    async def read(doc: Document) -> str:
        raise ValueError("no")

    @read.fallback
    async def without() -> str:
        seen.extend(one.here for one in slates[-1].held())
        await asyncio.Event().wait()
        return "never"

    slates: list[Slate] = []
    private = Slate.private

    def noted() -> Slate:
        slates.append(private())
        return slates[-1]

    monkeypatch.setattr(Slate, "private", noted)
    with trial(local) as app:
        id_ = app.add(text="a", pipeline=local).id
        assert drain(app).dead == 1
        assert app.status(id_).error_code == "stage_timeout"
        assert seen == [True]


def test_a_stage_is_isolated_from_a_size_on(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CROSSING_MAX", 1_000)
    with trial(suspects.sized, store=store_url, cells=True) as app:
        for text in ("small", "large" * 100, "huge!" * 500):
            app.add(text=text, meta={"notes": str(tmp_path)}, pipeline=suspects.sized)
            assert drain(app).done == 1
    small, large, huge = pids(tmp_path, "weigh")
    assert small == huge == os.getpid() != large  # what it makes of the huge one might not fit into a message


def test_a_size_must_not_be_negative() -> None:
    def read(doc: Document) -> None: ...

    with pytest.raises(PipelineInvalid, match="isolate_from must be 0 or more"):
        Pipeline("local").stage(isolate_from=-1)(read)


@pytest.mark.full
def test_an_embedded_app_whose_loop_stands_still_says_so(tmp_path: Path) -> None:
    local = Pipeline("local", lease_s=2)

    @local.stage
    async def block(doc: Document) -> None:
        time.sleep(5)  # noqa: ASYNC251 - that is what it is for

    told: list[AnyEvent] = []
    settings = Settings(loop_stall_s=1.0)
    with Perdure(f"sqlite:///{tmp_path}/a.db", pipelines=[local], settings=settings) as app:
        app.subscribe(told.append)
        id_ = app.add(text="a", pipeline=local).id
        app.run_until_idle(wait=30)
        status = app.status(id_)
    stalls = [one for one in told if isinstance(one, WorkerStalled)]
    assert len(stalls) == 1
    assert "in block" in stalls[0].stack
    assert (status.state, status.attempts_made, status.claims) == ("done", 1, 1)  # nobody else was there
