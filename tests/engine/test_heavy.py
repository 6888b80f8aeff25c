"""Cells of heavy documents leave half of the processors to documents of other organisations."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.engine import isolate
from perdure.engine.execution import HEAVY_BYTES
from perdure.testing import Trial, drain, trial
from tests.engine.heavy import heavy

HEAVY = "x" * HEAVY_BYTES


def met(app: Trial, directory: Path, orgs: list[str], text: str) -> list[object]:
    ids = [
        (org, app.add(text=f"{directory}\n{n} {text}", pipeline=heavy, org=org).id)
        for n, org in enumerate(orgs)
    ]
    assert drain(app).done == len(ids)
    return [app.output(id_, "meet", org=org) for org, id_ in ids]


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolate, "cores", lambda: 2)


@pytest.mark.usefixtures("one_at_a_time")
def test_heavy_documents_run_one_at_a_time_beside_others(tmp_path: Path) -> None:
    with trial(heavy, cells=True, concurrency=4) as app:
        assert met(app, tmp_path, ["one", "two"], HEAVY) == [False, False]


@pytest.mark.usefixtures("one_at_a_time")
def test_small_documents_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with trial(heavy, cells=True, concurrency=4) as app:
        assert met(app, tmp_path, ["one", "two"], "small") == [True, True]


@pytest.mark.usefixtures("one_at_a_time")
def test_heavy_documents_of_the_only_organisation_use_all_processors(tmp_path: Path) -> None:
    with trial(heavy, cells=True, concurrency=4) as app:
        assert met(app, tmp_path, ["one", "one"], HEAVY) == [True, True]


def test_half_of_the_processors_are_for_heavy_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    async def places(cores: int) -> int:
        monkeypatch.setattr(isolate, "cores", lambda: cores)
        nursery = isolate.Nursery()
        entered = 0
        while not nursery.heavy.locked():
            await nursery.heavy.acquire()
            entered += 1
        return entered

    assert [asyncio.run(places(cores)) for cores in (1, 2, 3, 8)] == [1, 1, 1, 4]
