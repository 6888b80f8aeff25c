"""Operators' verbs over HTTP: dead letters, queues, dependencies, the trail, webhooks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure import Document, Permanent, Pipeline
from tests.api.server import Server

fragile = Pipeline("fragile", attempts=1)
GOOD = {"now"}


@fragile.stage
def read(doc: Document) -> str:
    if doc.text.startswith("bad") and "mended" not in GOOD:
        raise Permanent("not_good", "it is bad")
    return doc.text


@pytest.fixture
def server(store_url: str) -> Any:
    GOOD.discard("mended")
    with Server(store_url, pipelines=[fragile], allow_loopback=True) as running:
        yield running


def filled(server: Server, org: str = "acme", number: int = 5) -> list[str]:
    client = server.client(org)
    texts = [{"text": f"bad {n}", "pipeline": "fragile", "dedupe": False} for n in range(number)]
    made = client.post("/v3/documents/bulk", json={"documents": texts}).json()["documents"]
    server.run(server.service.run_until_idle())
    return [one["id"] for one in made]


def test_dead_letters_are_listed_grouped_and_inspected(server: Server) -> None:
    ids = filled(server)
    filled(server, "zeta", 2)
    client = server.client("acme")
    first = client.get("/v3/dead", params={"limit": 3, "code": "not_good"}).json()
    rest = client.get("/v3/dead", params={"limit": 3, "after": first["next"]}).json()
    assert {one["id"] for one in first["documents"] + rest["documents"]} == set(ids)
    assert rest["next"] is None
    (group,) = client.get("/v3/dead/groups").json()["groups"]
    assert (group["count"], group["code"], group["stages"]) == (5, "not_good", ["read"])
    assert group["advice"]
    found = client.get(f"/v3/dead/{ids[0]}").json()
    assert found["document"]["message"] == "it is bad"
    assert found["attempts"]


def test_a_requeue_has_dry_run_and_answers(server: Server) -> None:
    ids = filled(server)
    others = filled(server, "zeta", 2)
    client = server.client("acme")
    unsaid = client.post("/v3/dead/requeue", json={})
    assert (unsaid.status_code, unsaid.json()["code"]) == (422, "confirm_needed")
    dry = client.post("/v3/dead/requeue", json={"all": True, "dry_run": True}).json()
    assert dry["found"] == 5
    assert client.get(f"/v3/documents/{ids[0]}").json()["status"] == "dead"
    done = client.post("/v3/dead/requeue", json={"all": True, "reason": "mended"}).json()
    assert done["requeued"] == 5
    assert {one["id"] for one in done["answers"]} == set(ids)
    assert client.get(f"/v3/documents/{ids[0]}").json()["status"] == "queued"
    assert server.client("zeta").get(f"/v3/documents/{others[0]}").json()["status"] == "dead"


def test_a_requeue_tells_how_far_it_is(server: Server) -> None:
    filled(server)
    answer = server.client("acme").post(
        "/v3/dead/requeue", json={"all": True}, headers={"Accept": "application/x-ndjson"}
    )
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1]["requeued"] == 5


def test_what_takes_long_is_told_line_by_line_or_not_begun(server: Server) -> None:
    filled(server)
    client = server.client("acme")
    slow = client.post("/v3/dead/requeue", json={"all": True, "rate": 0.01})
    assert (slow.status_code, slow.json()["code"]) == (422, "stream_needed")
    flag = client.post("/v3/dead/requeue", json={"all": True, "canary": True})
    assert (flag.status_code, flag.json()["code"]) == (422, "request_invalid")
    assert len(client.get("/v3/dead").json()["documents"]) == 5
    assert client.post("/v3/dead/requeue", json={"all": True, "rate": 100}).json()["requeued"] == 5


def test_an_export_can_be_imported_after_a_purge(
    server: Server, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = filled(server)
    monkeypatch.setattr("perdure.operate.purge.PAGE", 2)
    operator = server.client("acme", "read", "write", "operate")
    exported = operator.get("/v3/dead/export")
    (act,) = operator.get("/v3/acts", params={"verb": "export"}).json()["acts"]
    assert act["target"].endswith("5 exported to a stream")
    assert {json.loads(line)["id"] for line in exported.text.splitlines()} == set(ids)
    refused = operator.post("/v3/dead/purge", json={"all": True})
    assert refused.json()["code"] == "confirm_needed"
    assert (
        server.client("acme").post("/v3/dead/purge", json={"all": True, "confirm": True}).status_code == 403
    )
    assert operator.post("/v3/dead/purge", json={"all": True, "confirm": True}).json()["purged"] == 5
    assert operator.get("/v3/dead").json()["documents"] == []
    assert operator.get(f"/v3/documents/{ids[0]}").status_code == 404
    file = tmp_path / "dead.jsonl"
    file.write_bytes(exported.content)
    assert server.run(server.service.import_(file)).imported == 5
    assert len(operator.get("/v3/dead").json()["documents"]) == 5


def test_why_and_timeline_are_there(server: Server) -> None:
    (id_, *_) = filled(server, number=1)
    client = server.client("acme")
    assert "dead" in client.get(f"/v3/documents/{id_}/why").json()["sentence"]
    kinds = [one["kind"] for one in client.get(f"/v3/documents/{id_}/timeline").json()["timeline"]]
    assert kinds[0] == "added"
    assert "ended" in kinds


def test_queues_dependencies_and_the_trail(server: Server) -> None:
    operator = server.client("acme", "operate")
    name = operator.get("/v3/queues").json()["queues"][0]["name"]
    assert operator.post(f"/v3/queues/{name}/pause", json={"reason": "a pause"}).json()["state"] == "paused"
    assert operator.get("/v3/queues").json()["queues"][0]["paused"]
    operator.post(f"/v3/queues/{name}/resume")
    assert operator.post("/v3/queues/nowhere/pause").json()["code"] == "queue_unknown"
    assert operator.post("/v3/dependencies/openai/release").json()["code"] == "dependency_unknown"
    refused = operator.post("/v3/dependencies/openai/hold", json={"reason": "it is slow"})
    assert (refused.status_code, refused.json()["code"]) == (422, "dependency_unknown")
    down = operator.post("/v3/dependencies/openai/hold", json={"reason": "it is slow", "new": True}).json()
    assert (down["state"], "no stage is known to need openai" in down["warning"]) == ("down", True)
    (held,) = operator.get("/v3/dependencies").json()["dependencies"]
    assert (held["state"], held["reason"]) == ("down", "it is slow")
    operator.post("/v3/dependencies/openai/release")
    acts = operator.get("/v3/acts").json()["acts"]
    assert [(one["verb"], one["who"]) for one in acts[:4]] == [
        ("release", "key test"),
        ("hold", "key test"),
        ("resume", "key test"),
        ("pause", "key test"),
    ]
    assert operator.get("/v3/workers").json() == {"workers": []}
    assert operator.get("/v3/status").json()["headline"]
    assert server.client("acme").get("/v3/status").status_code == 403


def test_webhooks_are_made_listed_and_removed_within_the_organisation(server: Server) -> None:
    mine, theirs = server.client("acme"), server.client("zeta")
    made = mine.post("/v3/webhooks", json={"url": "http://127.0.0.1:8899/hook", "events": ["document.dead"]})
    assert made.status_code == 201
    assert made.json()["secret"].startswith("whsec_")
    assert "secret" not in mine.get("/v3/webhooks").json()["webhooks"][0]
    assert theirs.get("/v3/webhooks").json()["webhooks"] == []
    assert theirs.delete(f"/v3/webhooks/{made.json()['id']}").status_code == 404
    assert mine.post("/v3/webhooks", json={"url": "http://10.0.0.1/x"}).json()["code"] == "address_forbidden"
    assert (
        mine.post("/v3/webhooks", json={"url": "https://a.example", "events": ["x"]}).json()["code"]
        == "event_unknown"
    )
    assert mine.get("/v3/webhooks/deliveries").json() == {"deliveries": [], "next": None}
    assert mine.post("/v3/webhooks/deliveries/nothing/retry").status_code == 404
    assert mine.post("/v3/webhooks/deliveries/retry").json() == {"deliveries": 0}
    assert mine.delete(f"/v3/webhooks/{made.json()['id']}").status_code == 204
    assert mine.get("/v3/webhooks").json()["webhooks"] == []


def test_a_key_that_only_reads_does_not_see_what_is_secret_in_an_address(server: Server) -> None:
    writer, url = server.client("acme"), "https://hooks.example.org:8443/services/T0/s3cret?token=t0ken"
    assert writer.post("/v3/webhooks", json={"url": url}).json()["url"] == url
    assert [one["url"] for one in writer.get("/v3/webhooks").json()["webhooks"]] == [url]
    for scopes in (("read",), ("read", "operate")):
        seen = server.client("acme", *scopes).get("/v3/webhooks").json()["webhooks"]
        assert [one["url"] for one in seen] == ["https://hooks.example.org:8443/…"]


def test_a_token_that_is_none_changes_nothing(server: Server) -> None:
    (id_, *_) = filled(server, number=1)
    client = server.client("acme")
    for verb, more in (("finish", {"output": 1}), ("fail", {}), ("beat", {})):
        answer = client.post(f"/v3/documents/{id_}/remote/{verb}", json={"token": 12345, **more})
        assert answer.status_code in (409, 422), answer.text
