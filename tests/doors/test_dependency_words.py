"""A dependency in each state that it can be in: every door shows the same, and no word contradicts another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from perdure import Document, Perdure, Pipeline, RateLimited
from perdure.core.pace import FORGET_MS, Pace
from perdure.errors import Flickering
from perdure.store.base import BREAKER, Query
from perdure.store.open import open_store
from perdure.store.operations import Report
from perdure.store.sql_store import SqlStore
from perdure.watch.board import Board
from perdure.watch.overall import Overall
from tests.api.server import Server
from tests.doors.command import succeeded

#: What calls of a stage raise that needs a service in this state.
RAISED: dict[str, Callable[[], Exception] | None] = {
    "up": None,
    "flickering": lambda: Flickering("it failed 4 times", soon_s=600.0, asked_s=600.0, chance=0.5),
    "acquitted": lambda: Flickering("it failed 4 times", soon_s=600.0, chance=0.5),
    "pressed": lambda: RateLimited("no turn", delay_s=600.0, ours=True),
    "paused": lambda: RateLimited("it asked to wait", delay_s=600.0, ours=True, paused=True),
    "down": None,
    "operated": None,
    "ramping": None,
    "forgotten": None,
}
STATES = {name: name for name in RAISED} | {"acquitted": "flickering", "operated": "down", "forgotten": "up"}
#: What `why` says of a document that waits for it, and what it must not say.
SAID = {
    "up": ("It is done", "down"),
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
    "up": 1.0, "flickering": 0.591, "acquitted": 0.54, "pressed": 0.75, "paused": 0.0, "down": 0.0, "operated": None,
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
    await store.probed("ramping", True, False)


async def measured(url: str) -> tuple[dict[str, float], dict[str, float]]:
    """Shares and seconds down, as they are scraped."""
    store = open_store(url)
    await store.open()
    try:
        found = await Overall(store, Board.private()).read()
    finally:
        await store.close()
    share, down = "perdure_dependency_success_share", "perdure_dependency_held_seconds"
    return (
        {key[1]: value for key, value in found.items() if key[0] == share},
        {key[1]: value for key, value in found.items() if key[0] == down},
    )


def by_name(dependencies: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in dependencies}


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
        ids = {name: app.add(text=name, pipeline=one).id for name, one in pipelines.items()}
        app.run_until_idle()
        asyncio.run(with_store(bring_about))
        said = {name: app.why(id_).sentence for name, id_ in ids.items()}
        states = {name: app.status(id_).state for name, id_ in ids.items()}

    commands = [
        json.loads(succeeded(one, "--json", "--store", store_url)) for one in ("dependencies", "status")
    ]
    with Server(store_url, pipelines=tuple(pipelines.values())) as server:
        operator = server.client("acme", "operate")
        answers = [operator.get(f"/v3/{one}").json() for one in ("dependencies", "status")]
    doors = [by_name(facts["dependencies"]) for facts in (*commands, *answers)]
    shares, seconds = asyncio.run(measured(store_url))

    assert all(door == doors[0] for door in doors)
    shown = {name: doors[0][name] for name in RAISED}
    assert {name: one["state"] for name, one in shown.items()} == STATES
    assert {name: share for name, share in SHARES.items() if share is not None} == shares
    for name, one in shown.items():
        state, (words, never) = one["state"], SAID[name]
        assert words in said[name], (name, said[name])
        assert never not in said[name], (name, said[name])
        assert (states[name] == "held") == (state in ("down", "ramping")), (name, states[name])
        assert (seconds[name] > 0) == (one["since_ms"] is not None) == (state in ("down", "ramping"))
        assert (one["reason"] is None) == (state == "up")
        assert (one["paused_until_ms"] is not None) == (state == "paused")
        assert (one["limit_per_s"] is not None) == (state == "pressed")
        assert one["breaker"] == {"down": "open", "ramping": "half_open"}.get(state, "closed")
        assert one["success_share"] == (None if SHARES[name] == 1.0 else SHARES[name])
