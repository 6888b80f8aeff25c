"""What is done to one document, and once: priority, deletion, rows, a webhook under a key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from perdure import Context, Document, Pipeline, Result, Row
from tests.api.server import Server

lined = Pipeline("lined", attempts=1)


@lined.stage
def read(doc: Document, ctx: Context) -> Result[int]:
    lines = doc.text.splitlines()
    return Result(len(lines), rows=[Row("lines", number=n, data=line) for n, line in enumerate(lines)])


@pytest.fixture
def server(store_url: str) -> Any:
    with Server(store_url, pipelines=[lined], allow_loopback=True) as running:
        yield running


def added(client: Any, text: str = "one\ntwo", **options: Any) -> str:
    id_: str = client.post("/v3/documents", json={"text": text, "pipeline": "lined", **options}).json()["id"]
    return id_


def test_rows_are_read_by_name(server: Server) -> None:
    client = server.client("acme")
    id_ = added(client)
    server.run(server.service.run_until_idle())
    assert client.get(f"/v3/documents/{id_}/rows/lines").json()["rows"] == [
        {"key": {"number": 0}, "data": "one"},
        {"key": {"number": 1}, "data": "two"},
    ]
    first = client.get(f"/v3/documents/{id_}/rows/lines", params={"limit": 1}).json()
    assert (first["rows"], first["next"]) == ([{"key": {"number": 0}, "data": "one"}], "1")
    last = client.get(f"/v3/documents/{id_}/rows/lines", params={"limit": 1, "after": first["next"]}).json()
    assert (last["rows"], last["next"]) == ([{"key": {"number": 1}, "data": "two"}], None)
    assert client.get(f"/v3/documents/{id_}/rows/nothing").json() == {"rows": [], "next": None}
    assert client.get(f"/v3/documents/{id_}/rows/%00").json() == {"rows": [], "next": None}


def test_a_priority_changes_while_a_document_waits_for_its_turn(server: Server) -> None:
    client = server.client("acme")
    first, second = added(client, "a"), added(client, "b")
    changed = client.post(
        f"/v3/documents/{second}/priority", json={"priority": 50, "reason": "a customer waits"}
    )
    assert changed.json() == {"id": second, "answer": "changed"}
    assert client.post(f"/v3/documents/{second}/priority", json={"priority": 101}).status_code == 422
    server.run(server.service.run_until_idle())
    ended = {id_: client.get(f"/v3/documents/{id_}").json() for id_ in (first, second)}
    assert ended[second]["last_attempt_at"] <= ended[first]["last_attempt_at"]
    late = client.post(f"/v3/documents/{second}/priority", json={"priority": 1})
    assert (late.status_code, late.json()["code"]) == (409, "move_forbidden")


def test_an_ended_document_is_deleted_with_all_that_is_its_own(server: Server) -> None:
    client = server.client("acme")
    id_, other = added(client), added(client, "other")
    server.run(server.service.run_until_idle())
    gone = client.delete(f"/v3/documents/{id_}", params={"reason": "asked for by its owner"})
    assert gone.json() == {"id": id_, "answer": "purged"}
    for path in ("", "/content", "/rows/lines", "/attempts", "/timeline"):
        assert client.get(f"/v3/documents/{id_}{path}").status_code == 404
    assert client.delete(f"/v3/documents/{id_}").status_code == 404
    assert client.get(f"/v3/documents/{other}").json()["status"] == "done"
    audit = server.run(server.service.audit())
    assert audit.clean
    assert (audit.balance.accepted, audit.balance.documents, audit.balance.purged) == (2, 1, 1)
    (act,) = server.run(server.service.acts(verb="purge"))
    assert (act.who, act.org, act.target, act.reason) == ("key test", "acme", id_, "asked for by its owner")
    assert added(client) != id_, "what was deleted is not known any more"


def test_what_is_in_progress_is_deleted_only_if_it_may_be_cancelled(server: Server) -> None:
    client = server.client("acme")
    id_ = added(client)
    refused = client.delete(f"/v3/documents/{id_}")
    assert (refused.status_code, refused.json()["code"]) == (409, "move_forbidden")
    assert "in progress" in refused.json()["detail"]
    assert client.delete(f"/v3/documents/{id_}", params={"cancel": True}).json()["answer"] == "purged"
    assert client.get(f"/v3/documents/{id_}").status_code == 404
    assert server.run(server.service.audit()).clean


def test_a_reader_deletes_nothing(server: Server) -> None:
    id_ = added(server.client("acme"))
    assert server.client("acme", "read").delete(f"/v3/documents/{id_}?cancel=true").status_code == 403


def test_a_webhook_under_a_key_is_made_once(server: Server) -> None:
    client, headers = server.client("acme"), {"Idempotency-Key": "hook-1"}
    asked = {"url": "http://127.0.0.1:8899/hook"}

    def make(_: int) -> Any:
        return client.post("/v3/webhooks", json=asked, headers=headers)

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(make, range(10)))
    assert {one.status_code for one in answers} == {201}
    assert len({one.text for one in answers}) == 1
    (made,) = client.get("/v3/webhooks").json()["webhooks"]
    assert made["id"] == answers[0].json()["id"]
    other = client.post("/v3/webhooks", json={"url": "http://127.0.0.1:8899/other"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    document = client.post("/v3/documents", json={"text": "a", "pipeline": "lined"}, headers=headers)
    assert document.json()["code"] == "idempotency_key_reused"
    theirs = server.client("zeta").post("/v3/webhooks", json=asked, headers=headers)
    assert theirs.json()["id"] != made["id"]


def test_an_organisation_has_so_many_webhooks_and_no_more(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.store.webhooks.PER_ORG_MAX", 2)
    client, last = server.client("acme"), {"Idempotency-Key": "last"}
    url = "http://127.0.0.1:8899/"
    assert client.post("/v3/webhooks", json={"url": url}).status_code == 201
    made = client.post("/v3/webhooks", json={"url": url}, headers=last)
    refused = client.post("/v3/webhooks", json={"url": url})
    assert (refused.status_code, refused.json()["code"]) == (422, "webhooks_too_many")
    assert client.post("/v3/webhooks", json={"url": url}, headers=last).json() == made.json()
