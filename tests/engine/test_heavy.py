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


def met(app: Trial, documents: list[tuple[str, Path]], text: str) -> list[object]:
    """Which documents were in work beside another one of the same directory; each is of an organisation."""
    for _, directory in documents:
        directory.mkdir(exist_ok=True)
    ids = [
        (org, app.add(text=f"{directory}\n{n} {text}", pipeline=heavy, org=org).id)
        for n, (org, directory) in enumerate(documents)
    ]
    assert drain(app).done == len(ids)
    return [app.output(id_, "meet", org=org) for org, id_ in ids]


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolate, "cores", lambda: 2)


@pytest.mark.usefixtures("one_at_a_time")
def test_heavy_documents_of_an_organisation_run_one_at_a_time_beside_others(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    with trial(heavy, cells=True, concurrency=4) as app:
        assert met(app, [("one", own), ("two", other), ("one", own)], HEAVY) == [False, False, False]


@pytest.mark.usefixtures("one_at_a_time")
def test_heavy_documents_do_not_wait_for_those_of_others(tmp_path: Path) -> None:
    with trial(heavy, cells=True, concurrency=4) as app:
        assert met(app, [("one", tmp_path), ("two", tmp_path)], HEAVY) == [True, True]


@pytest.mark.usefixtures("one_at_a_time")
def test_small_documents_do_not_wait_for_each_other(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    with trial(heavy, cells=True, concurrency=4) as app:
        assert met(app, [("one", own), ("two", other), ("one", own)], "small") == [True, False, True]


@pytest.mark.usefixtures("one_at_a_time")
def test_heavy_documents_of_the_only_organisation_use_all_processors(tmp_path: Path) -> None:
    with trial(heavy, cells=True, concurrency=4) as app:
        assert met(app, [("one", tmp_path), ("one", tmp_path)], HEAVY) == [True, True]


def test_half_of_the_processors_are_for_heavy_documents_of_an_organisation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def places(cores: int) -> int:
        monkeypatch.setattr(isolate, "cores", lambda: cores)
        turns = isolate.Nursery().heavy("one")
        entered = 0
        while not turns.locked():
            await turns.acquire()
            entered += 1
        return entered

    assert [asyncio.run(places(cores)) for cores in (1, 2, 3, 8)] == [1, 1, 1, 4]
