"""A dependency in each state that it can be in: every door shows the same, and no word contradicts another."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from perdure import AsyncPerdure, Document, Perdure, Pipeline, RateLimited
from perdure.core.pace import FORGET_MS, Pace
from perdure.errors import Flickering
from perdure.store.base import BREAKER, Query
from perdure.store.open import open_store
from perdure.store.operations import Report
from perdure.store.sql_store import SqlStore
from perdure.watch.board import Board, Key
from perdure.watch.metrics import BREAKER_STATES, DEPENDENCY_STATES
from perdure.watch.overall import Overall
from tests.api.server import Server
from tests.doors.command import succeeded

#: What calls of a stage raise that needs a service in this state.
RAISED: dict[str, Callable[[], Exception] | None] = {
    "up": None,
    "half_open": None,
    "flickering": lambda: Flickering("it failed 4 times", soon_s=600.0, asked_s=600.0, chance=0.5),
    "acquitted": lambda: Flickering("it failed 4 times", soon_s=600.0, chance=0.5),
    "pressed": lambda: RateLimited("no turn", delay_s=600.0, ours=True),
    "paused": lambda: RateLimited("it asked to wait", delay_s=600.0, ours=True, paused=True),
    "down": None,
    "operated": None,
    "ramping": None,
    "forgotten": None,
}
STATES = {name: name for name in RAISED} | {
    "acquitted": "flickering", "operated": "down", "forgotten": "up", "half_open": "up",
}  # fmt: skip
#: The state of the breaker, where it is not closed.
BREAKERS = {"down": "open", "operated": "open", "ramping": "half_open", "half_open": "half_open"}
#: What `why` says of a document that waits for it, and what it must not say.
SAID = {
    "up": ("It is done", "down"),
    "half_open": ("It is done", "down"),
    "flickering": ("it was asked to wait", "down"),
    "acquitted": ("the service fails now and then", "down"),
    "pressed": ("waits for its turn: requests are limited", "down"),
    "paused": ("it was asked to wait", "are limited"),
    "down": ("which has been down for", "limited"),
    "operated": ("which ann has held for", "breaker"),
    "ramping": ("which is back after", "has been down"),
    "forgotten": ("It is done", "down"),
}
#: The share of requests that is answered; None: nobody knows, and there is no sample.
SHARES = {
    "up": 1.0, "half_open": 1.0, "flickering": 0.591, "acquitted": 0.54, "pressed": 0.75, "paused": 0.0, "down": 0.0,
    "operated": None,
    "ramping": None, "forgotten": 1.0,
}  # fmt: skip


def pipeline_of(name: str) -> Pipeline:
    made, raised = Pipeline(f"needs_{name}"), RAISED[name]

    @made.stage(needs=[name])
    def ask(doc: Document) -> str:
        if raised is not None:
            raise raised()
        return "fine"

    return made


async def bring_about(store: SqlStore) -> None:
    """As workers and the sweeper write it."""
    now_ms = await store.now_ms()
    long_ago = now_ms - FORGET_MS - 1
    paces = {
        "flickering": Pace("free", now_ms, 0.6, good=12.0, bad=8.0, counted_ms=now_ms),
        "acquitted": Pace("free", now_ms, 0.54, counted_ms=now_ms, acquitted=1),
        "pressed": Pace("pressed", now_ms, 1.0, 5.0, 9.0, good=2.0, bad=0.0, counted_ms=now_ms),
        "forgotten": Pace(
            "pressed", long_ago, 0.6, 5.0, 9.0, good=2.0, counted_ms=long_ago, pause_ms=now_ms - 1
        ),
    }
    for name, pace in paces.items():
        await store._change(Query(store.sql.DEPENDENCY_ADD, (name, now_ms)))
        told = (name, 10.0, None, 0, now_ms, pace.to_text())
        await store._change(Query(store.sql.DEPENDENCY_TOLD, told))
    await store.exchange("paused", Report(1, 3, 0, 0, 3, 0.0, 0.0, 3.0, pause_ms=600_000))
    await store.exchange(
        "half_open", Report(1, 30, 15, 15, 0, 4.0, 0.0, 3.0, in_flight=2, looking=True, standing=True)
    )
    await store.probed("ramping", True, False)
    # these workers go on reporting while the doors are asked
    await store._change(Query("UPDATE dependency_worker SET seen_ms = seen_ms + 600000"))


async def measured(url: str) -> dict[Key, float]:
    """As it is scraped."""
    store = open_store(url)
    await store.open()
    try:
        return await Overall(store, Board.private()).read()
    finally:
        await store.close()


def of_services(found: dict[Key, float], name: str) -> dict[str, float]:
    return {key[1]: value for key, value in found.items() if key[0] == name}


async def of_library(url: str, ids: dict[str, str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Dependencies, and the sentence about each document."""
    app = AsyncPerdure(url)
    await app.start()
    try:
        said = {name: (await app.why(id_)).sentence for name, id_ in ids.items()}
        return [asdict(one) for one in await app.dependencies()], said
    finally:
        await app.close()


def by_name(dependencies: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in dependencies}


def rows_of(text: str) -> dict[str, list[str]]:
    """The rows of a table of services, by their names."""
    rows = [re.split(" {2,}", line) for line in text.splitlines()]
    return {cells[0]: cells for cells in rows if cells[0] in RAISED and len(cells) > 2}


def steady(sentence: str) -> str:
    """Without times, which differ from door to door."""
    return re.sub(r"(in )?(\d+(\.\d+)?|<1) (ms|s|min|h)\b|\bnow\b", "T", sentence)


def test_every_door_says_the_same_of_a_dependency_in_each_state(store_url: str) -> None:
    pipelines = {name: pipeline_of(name) for name in RAISED}

    async def with_store(do: Callable[[SqlStore], Any]) -> None:
        store = open_store(store_url)
        await store.open()
        await do(store)
        await store.close()

    with Perdure(store_url, pipelines=list(pipelines.values())) as app:
        for name, by in (("down", BREAKER), ("ramping", BREAKER), ("operated", "ann")):
            asyncio.run(with_store(lambda store, name=name, by=by: store.hold(name, "http_503", by)))  # type: ignore[misc]
        ids = {name: app.add(text=name, pipeline=one, org="acme").id for name, one in pipelines.items()}
        app.run_until_idle()
        asyncio.run(with_store(bring_about))
        said = {name: app.why(id_).sentence for name, id_ in ids.items()}
        states = {name: app.status(id_).state for name, id_ in ids.items()}
        blocking = [[asdict(one) for one in app.dependencies()], app.overview()["dependencies"]]

    library, said_to_library = asyncio.run(of_library(store_url, ids))
    commands = [
        json.loads(succeeded(one, "--json", "--store", store_url)) for one in ("dependencies", "status")
    ]
    tables = [
        rows_of(succeeded(one, "--store", store_url, COLUMNS="240")) for one in ("dependencies", "status")
    ]
    with Server(store_url, pipelines=tuple(pipelines.values())) as server:
        operator, reader = server.client("acme", "operate"), server.client("acme", "read")
        answers = [operator.get(f"/v3/{one}").json() for one in ("dependencies", "status")]
        said_over_http = {
            n: reader.get(f"/v3/documents/{id_}/why").json()["sentence"] for n, id_ in ids.items()
        }
    found = asyncio.run(measured(store_url))

    doors = [facts["dependencies"] for facts in (*commands, *answers)] + [*blocking, library]
    shown = {name: by_name(doors[0])[name] for name in RAISED}
    assert all(door == doors[0] for door in doors)
    for sentences in (said_to_library, said_over_http):
        assert {n: steady(one) for n, one in sentences.items()} == {n: steady(one) for n, one in said.items()}
    assert {name: one["state"] for name, one in shown.items()} == STATES
    assert (shown["half_open"]["in_flight"], shown["half_open"]["rate_per_s"]) == (2, 3.0)
    shares, seconds = (
        of_services(found, f"perdure_dependency_{name}") for name in ("success_share", "held_seconds")
    )
    assert {name: share for name, share in SHARES.items() if share is not None} == shares
    for name, one in shown.items():
        state, breaker, (words, never) = one["state"], BREAKERS.get(name, "closed"), SAID[name]
        assert words in said[name], (name, said[name])
        assert never not in said[name], (name, said[name])
        assert (states[name] == "held") == (state in ("down", "ramping")), (name, states[name])
        assert (seconds[name] > 0) == (one["since_ms"] is not None) == (state in ("down", "ramping"))
        assert (one["reason"] is None) == (state == "up" and breaker == "closed")
        assert (one["paused_until_ms"] is not None) == (state == "paused")
        assert (one["limit_per_s"] is not None) == (state == "pressed")
        assert one["breaker"] == breaker
        assert one["success_share"] == (None if SHARES[name] == 1.0 else SHARES[name])

        assert found["perdure_dependency_breaker_state", name] == BREAKER_STATES.index(breaker)
        assert found["perdure_dependency_tokens", name] == pytest.approx(one["tokens"])
        assert found["perdure_dependency_limit_per_second", name] == (one["limit_per_s"] or 0)
        assert (found["perdure_dependency_paused_seconds", name] > 0) == (state == "paused")
        marked = {word for word in DEPENDENCY_STATES if found["perdure_dependency_state", name, word]}
        assert marked == {state}

        amiss = state != "up" or breaker != "closed"
        for rows, expected in zip(tables, (True, amiss), strict=True):
            assert (name in rows) == expected, name
            if expected:
                assert rows[name][1:3] == [state + " 1/s" * (state == "ramping"), breaker]
                assert one["reason"] is None or one["reason"] in rows[name]
