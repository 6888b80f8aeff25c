"""Whether the server can work, what it counts, and whether all that was accepted is there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import StoreUnavailable
from perdure.store.operations import Beat
from tests.api.server import Server


def test_ready_says_what_would_keep_documents_waiting(server: Server) -> None:
    client = server.client()
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = {
        "status": "ready",
        "schema_fits": True,
        "workers_alive": 0,
        "workers_silent": [],
        "workers_down": [],
    }
    assert client.get("/readyz").json() == ready

    async def seen_while_working() -> Any:
        working = asyncio.create_task(server.service.run())
        try:
            async with asyncio.timeout(90):
                while not (found := await server.service.readiness()).workers_alive:
                    await asyncio.sleep(0.05)
            return found
        finally:
            await server.service.stop()
            await working

    assert server.run(seen_while_working()).workers_alive == 1


def test_ready_says_which_worker_does_not_answer(server: Server) -> None:
    store = server.service.store

    async def silent() -> int:
        worker = await store.register("worker", "host:12", ["documents"])
        await store.beat(Beat(worker, (), silent_ms=40_000))
        return worker

    worker = server.run(silent())
    found = server.client().get("/readyz")
    assert (found.status_code, found.json()["status"], found.json()["workers_alive"]) == (200, "degraded", 0)
    (told,) = found.json()["workers_silent"]
    assert told.startswith(f"worker {worker} has not answered for 4")
    server.run(store.beat(Beat(worker, ())))
    assert server.client().get("/readyz").json()["status"] == "ready"


def test_ready_says_when_the_schema_was_changed_by_a_newer_program(server: Server) -> None:
    from perdure.store.base import Query

    newer = Query("INSERT INTO migration (name, needs, applied_ms) VALUES ('9999_new', 99, 1)")
    server.run(server.service.store._change(newer))
    assert server.client().get("/readyz").json()["schema_fits"] is False


def test_a_store_that_is_away_is_said_without_where_it_is(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise StoreUnavailable("cannot reach PostgreSQL: ('10.1.2.3', 5432)")

    monkeypatch.setattr(server.service, "readiness", away)
    answer = server.client().get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert answer.headers["retry-after"] == "5"
    assert "10.1.2.3" not in answer.text


def test_metrics_take_a_key_that_may_operate(server: Server) -> None:
    operator = server.client("acme", "operate")
    operator.get("/healthz")
    answer = operator.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "perdure_workers 0.0" in answer.text
    assert server.client("acme").get("/metrics").status_code == 403
    assert server.client().get("/metrics").status_code == 401


def test_metrics_are_everybodys_where_that_is_said(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/perdure.db", metrics_open=True) as server:
        client = server.client("acme")
        client.post("/v3/documents", json={"text": "a", "pipeline": "notes"})
        assert "perdure_documents" in server.client().get("/metrics").text


def test_an_audit_is_run_and_remembered(server: Server) -> None:
    client, operator = server.client("acme"), server.client("acme", "operate")
    for n in range(3):
        client.post("/v3/documents", json={"text": f"{n}", "pipeline": "notes"})
    before = operator.get("/v3/audit").json()
    assert before["balance"] == {"accepted": 3, "documents": 3, "purged": 0}
    assert before["last"]["audited_ms"] is None
    found = operator.post("/v3/audit").json()
    assert (found["clean"], found["difference"], found["states"]["open"]) == (True, 0, 3)
    assert all(check["found"] == 0 for check in found["checks"])
    assert operator.get("/v3/audit").json()["last"]["problems"] == 0
    assert client.post("/v3/audit").status_code == 403


def test_an_audit_tells_how_far_it_is(server: Server) -> None:
    operator = server.client("acme", "read", "write", "operate")
    operator.post("/v3/documents", json={"text": "a", "pipeline": "notes"})
    answer = operator.post("/v3/audit?recount=true", headers={"Accept": "application/x-ndjson"})
    *steps, last = [json.loads(line) for line in answer.text.splitlines()]
    assert {"what": "documents", "rows": 1} in steps
    assert last["clean"]


def test_one_audit_at_a_time(server: Server) -> None:
    operator = server.client("acme", "operate")
    lock = server.app.state.auditing
    server.run(lock.acquire())
    refused = operator.post("/v3/audit")
    assert (refused.status_code, refused.json()["code"]) == (409, "audit_running")
    server.loop.call_soon_threadsafe(lock.release)


def test_what_operators_see_is_what_the_command_says(server: Server) -> None:
    operator = server.client("acme", "operate")
    server.run(server.service.hold("openai", "it is slow", new=True))
    facts = json.loads(json.dumps(server.run(server.service.overview())))
    found = operator.get("/v3/status").json()
    assert found.keys() == facts.keys()
    for name in facts.keys() - {"now_ms"}:
        assert found[name] == facts[name], name
    for name in ("queues", "workers", "dependencies"):
        assert operator.get(f"/v3/{name}").json()[name] == facts[name]
    verbs = [one["verb"] for one in operator.get("/v3/acts").json()["acts"]]
    assert verbs == ["hold", "key-add"]
