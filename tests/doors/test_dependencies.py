"""`perdure dependencies`: what is down and why, for people and as JSON."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from perdure import Document, Perdure, Pipeline
from perdure.store.base import BREAKER
from perdure.store.open import open_store
from tests.doors.command import perdure, refused, succeeded

parcels = Pipeline("parcels")


@parcels.stage(needs=["scales"])
def lift(doc: Document) -> int:
    return 1


def test_an_empty_store_has_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    succeeded("migrate", "--store", url)
    assert succeeded("dependencies", "--store", url) == "No stage needs a dependency.\n"
    refused(1, "store_unavailable", "dependencies", "--store", f"sqlite:///{tmp_path}/other.db")


def test_one_that_is_down_says_since_when_why_and_by_whom(store_url: str) -> None:
    with Perdure(store_url, pipelines=[parcels]) as app:
        app.add(text="a", pipeline=parcels)
        assert [(d.name, d.state) for d in app.dependencies()] == [("scales", "up")]

    async def fail() -> None:
        store = open_store(store_url)
        await store.open()
        await store.hold("scales", "connection refused", BREAKER)
        now_ms = await store.now_ms()
        await store.record_calls(
            [("scales", 1, True, 1_700, now_ms, 1_500), ("scales", 0, False, 20, now_ms, 0)]
        )
        await store.close()

    asyncio.run(fail())
    facts = json.loads(succeeded("dependencies", "--json", "--store", store_url))
    (scales,) = facts["dependencies"]
    assert (scales["state"], scales["held_by"], scales["reason"]) == ("down", "breaker", "connection refused")
    assert (scales["held"], scales["probe_at_ms"] - scales["since_ms"]) == (1, 4_000)
    assert facts["calls"] == [
        {
            "api_name": "scales", "operations": 2, "retry_rate": 0.5, "success_after_retry": 1.0,
            "retries_per_retried": 1.0, "p95_added_ms": 1_500, "failure_rate": 0.5,
        }
    ]  # fmt: skip
    shown = " ".join(succeeded("dependencies", "--store", store_url, COLUMNS="120").split())
    for words in ("scales down", "scales 2 50.0% 1.0 100.0% 50.0% 1.5 s"):
        assert words in shown
    assert re.search(r"connection refused breaker 1 (in \d|now)", shown), shown
    with Perdure(store_url, pipelines=[parcels]) as app:
        assert [(k.api_name, k.operations) for k in app.kpis()] == [("scales", 2)]
        app.release("scales")
        assert app.run_until_idle().done == 1
        assert [(d.state, d.held) for d in app.dependencies() if d.name == "scales"] == [("up", 0)]


def test_hold_and_release_by_hand(store_url: str) -> None:
    with Perdure(store_url, pipelines=[parcels]) as app:
        id_ = app.add(text="a", pipeline=parcels).id
        held = succeeded("hold", "scales", "--reason", "broken", "--store", store_url)
        assert held == "scales is held; 1 document waits for it\n"
        assert (app.status(id_).state, app.dependencies()[0].reason) == ("held", "broken")
        assert succeeded("release", "scales", "--store", store_url) == "scales is released\n"
        assert app.status(id_).state == "queued"
    refused(2, "input_invalid", "hold", "", "--store", store_url)


def test_a_name_that_nobody_knows_is_noticed(store_url: str) -> None:
    with Perdure(store_url, pipelines=[parcels]):
        pass
    said = refused(2, "dependency_unknown", "release", "scalse", "--store", store_url)
    assert "scales" in said
    assert "did you mean: scales?" in refused(2, "dependency_unknown", "hold", "scalse", "--store", store_url)
    assert succeeded("hold", "scalse", "--new", "--store", store_url) == "scalse is held\n"
    assert perdure("hold", "scales", "--store", store_url).stderr == ""
    assert succeeded("release", "scalse", "--store", store_url) == "scalse is released\n"
