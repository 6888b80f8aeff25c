"""`perdure bench`: every measure comes to its end on both stores, and the bound does what the engine does."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.bench import bare, load, ours
from perdure.bench.report import QUICK, Sizes, measure
from perdure.service import AsyncPerdure

TINY = Sizes(60, 40, 10, 20, 5, (1_000, 2_000), 3)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/bench.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.mark.full
def test_all_that_is_promised_is_measured() -> None:
    said: list[str] = []
    found = asyncio.run(measure("sqlite", TINY, said.append))
    for name in ("drain", "stages5", "enqueue_bulk", "enqueue_single", "retry_storm"):
        rate = found[name]
        assert rate["ratio"] == pytest.approx(
            rate["ours_per_s"] / rate["bound_per_s"], rel=0.1, abs=0.001
        )  # of rates that are rounded, and low on a busy machine
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p99"]
    assert found["growth"].keys() == {"claim_ms_1k", "claim_ms_2k"}
    assert found["idle_rss_mb"] > 20
    assert any("idle worker" in line for line in said)
    assert json.dumps(found)


def test_the_quick_one_names_its_backlogs_as_documented() -> None:
    assert QUICK.backlogs == (10_000, 100_000)


@pytest.mark.full
def test_the_bound_leaves_behind_what_the_engine_would(url: str) -> None:
    by_us, by_bound = asyncio.run(_both(url))
    assert by_us == by_bound


async def _both(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    app = AsyncPerdure(url, pipelines=load.ALL, concurrency=20)
    await app.start()
    driver = await bare.connect(url)
    try:
        bound = bare.Bound(driver)
        await bound.register()
        return (
            await _outcome(
                app, lambda p: ours.drain(app, p, 30, load.FAILURES + 1 if p is load.storm else 1)
            ),
            await _outcome(app, lambda p: getattr(bound, MEASURES[p.name])(20)),
        )
    finally:
        await driver.close()
        await app.close()


MEASURES = {"one": "drain", "five": "stages5", "storm": "retry_storm"}


async def _outcome(app: AsyncPerdure, drain: Any) -> dict[str, Any]:
    """What the documents look like after a drain: their state, attempts, stages saved and history."""
    found = {}
    for pipeline in (load.one, load.five, load.storm):
        before = {status.id for status in await app.documents(limit=1_000)}
        await ours.enqueue_bulk(app, pipeline, 30)
        await drain(pipeline)
        new = [status for status in await app.documents(limit=1_000) if status.id not in before]
        assert len(new) == 30
        found[pipeline.name] = {
            (
                status.state,
                status.attempts_made,
                status.claims,
                tuple(sorted(s.stage for s in await app.store.saves(status.org, status.id, pipeline.name))),
                tuple((a.attempt, a.charged, a.stage) for a in await app.attempts(status.id)),
            )
            for status in new
        }
    return found


@pytest.mark.full
def test_a_store_that_is_none_is_refused() -> None:
    command = [sys.executable, "-m", "perdure", "bench", "--store", "mysql"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert "--store: sqlite, postgres or postgresql://…, not 'mysql' [setting_invalid]" in ended.stderr
