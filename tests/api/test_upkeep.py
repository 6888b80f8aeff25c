"""Verbs of operators over HTTP: run again from a stage on, limits, sweeps, imports; with their scopes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perdure import Document, Permanent, Pipeline
from perdure.client import Client
from tests.api.server import Server

letters = Pipeline("letters", attempts=1)


@letters.stage(model="old")
def write(doc: Document) -> str:
    if doc.text == "dies":
        raise Permanent("too_heavy", "nobody can lift it")
    return str(doc.text)


@pytest.fixture
def server(store_url: str) -> object:
    with Server(store_url, pipelines=[letters]) as running:
        yield running


def added(server: Server, org: str, text: str) -> str:
    """A document of the organisation that has ended."""
    id_: str = server.run(server.service.add(text=text, org=org, pipeline="letters")).id
    server.run(server.service.run_until_idle())
    return id_


LINES = {"Content-Type": "application/x-ndjson"}
RERUN = {"pipeline": "letters", "from_stage": "write", "where": {"model": "old"}, "reason": "better"}


def test_a_rerun_takes_the_callers_organisation_alone(server: Server) -> None:
    ours, theirs = added(server, "acme", "a"), added(server, "zeta", "a")
    answer = server.client("acme", "write").post("/v3/rerun", json={**RERUN, "dry_run": True})
    assert (answer.status_code, answer.json()["found"], answer.json()["requeued"]) == (200, 1, 0)
    answer = server.client("acme", "write").post("/v3/rerun", json=RERUN)
    assert (answer.json()["found"], answer.json()["requeued"]) == (1, 1)
    states = {id_: server.run(server.service.status(id_)).generation for id_ in (ours, theirs)}
    assert states == {ours: 2, theirs: 1}
    (act,) = server.run(server.service.acts(verb="requeue"))
    assert (act.who, act.target, act.reason) == ("key test", ours, "better")
    assert answer.json()["looked_at"] == 1, "how many documents others have is none of its business"


def test_a_rerun_goes_on_from_any_id(server: Server) -> None:
    """Ids that another system gave may have any form, and so may names of organisations."""
    for n in range(3):
        added(server, "a@cme", f"{n}")
    client, seen, after = server.client("a@cme", "write"), 0, None
    for _ in range(4):
        answer = client.post("/v3/rerun", json={**RERUN, "dry_run": True, "limit": 1, "after": after}).json()
        seen, after = seen + answer["found"], answer["last"]
        if after is None:
            break
    assert seen == 3


def test_what_others_call_theirs_is_not_told(server: Server) -> None:
    """Neither by a list of names nor by another answer to a name that only others have."""
    for org, collection in (("zeta", "merger"), ("acme", "invoices")):
        server.run(server.service.add(text="dies", pipeline="letters", org=org, collection=collection))
    server.run(server.service.run_until_idle())
    client = server.client("acme")
    for path in ("/v3/dead", "/v3/dead/groups"):
        for name in ("merger", "mergers", "zz"):
            answer = client.get(path, params={"failed": f"{name}.failed"})
            assert (answer.status_code, answer.json()["code"]) == (422, "name_unknown")
            assert "merger" not in answer.json()["detail"].partition(";")[2]
        assert client.get(path, params={"failed": "invoices.failed"}).status_code == 200
        assert "invoices" in client.get(path, params={"failed": "invoice.failed"}).json()["detail"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({**RERUN, "where": {}}, "confirm_needed"),
        ({**RERUN, "where": {"org": "zeta"}}, "request_invalid"),
        ({**RERUN, "after": "x@zeta"}, "cursor_invalid"),
        ({**RERUN, "from_stage": "paint"}, "stage_unknown"),
        ({**RERUN, "pipeline": "books"}, "pipeline_unknown"),
        ({**RERUN, "limit": 0}, "request_invalid"),
    ],
)
def test_a_wrong_rerun_is_refused(body: dict[str, object], code: str, server: Server) -> None:
    answer = server.client("acme", "write").post("/v3/rerun", json=body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["code"] == code


def test_a_limit_of_a_name_that_nothing_has_is_refused(server: Server) -> None:
    operator = server.client("acme", "operate", "write")
    assert operator.post("/v3/documents", json={"text": "a"}).status_code in (200, 201, 202)
    for key, code in (("org:acne", 422), ("dependency:visoin", 422), ("example.og", 422), ("org:acme", 200)):
        answer = operator.post("/v3/limits", json={"key": key, "concurrency": 1})
        assert answer.status_code == code, answer.text
        if code != 200:
            assert answer.json()["code"] == "limit_key_unknown"
    limits = operator.get("/v3/limits").json()["limits"]
    assert [(one["key"], one["concurrency"]) for one in limits] == [("org:acme", 1)]


def test_limits_are_set_shown_and_lifted(server: Server) -> None:
    operator = server.client("acme", "operate")
    answer = operator.post(
        "/v3/limits", json={"key": "host:example.org", "concurrency": 2, "reason": "gently", "new": True}
    )
    assert [(one["key"], one["concurrency"]) for one in answer.json()["limits"]] == [("host:example.org", 2)]
    assert operator.get("/v3/limits").json() == answer.json()
    unknown = operator.get("/v3/limits", params={"key": "host:example.og"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "limit_key_unknown")
    assert "did you mean: host:example.org?" in unknown.json()["detail"]
    operator.post("/v3/limits", json={"key": "host:example.org"})
    assert not [one for one in operator.get("/v3/limits").json()["limits"] if one["concurrency"] is not None]
    acts = server.run(server.service.acts(verb="limit"))
    assert {act.who for act in acts} == {"key test"}
    assert acts[-1].reason.endswith("gently")


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_packed_file_is_the_callers(cut: bool, server: Server) -> None:
    packed = bytearray(gzip.compress(bytes(range(256)) * 100))
    packed[40:60] = b"\xff" * 20
    sent = gzip.compress(b"{}\n" * 1000)[:-20] if cut else bytes(packed)
    answer = server.client("acme", "operate").post("/v3/dead/import", content=sent, headers=LINES)
    assert (answer.status_code, answer.json()["code"]) == (422, "file_unreadable")
    assert "/" not in answer.json()["detail"], "where the server keeps it is none of their business"


def test_follow_up_jobs_are_not_exported(server: Server) -> None:
    answer = server.client("acme").get("/v3/dead/export", params={"job": "detect_connections"})
    assert (answer.status_code, answer.json()["code"]) == (422, "where_unknown")


def test_a_sweep_is_done_and_in_the_trail(server: Server) -> None:
    answer = server.client("acme", "operate").post("/v3/sweep", json={"reason": "now"})
    assert (answer.status_code, answer.json()["status"]) == (200, "success")
    (act,) = server.run(server.service.acts(verb="sweep"))
    assert (act.who, act.reason) == ("key test", "now")


@pytest.mark.parametrize("lines", [b" " * (64 << 20), b'{"content": "' + b"A" * (64 << 20)])
def test_a_packed_body_counts_by_what_is_in_it(lines: bytes, tmp_path: Path) -> None:
    """A megabyte of gzip unpacks to a gigabyte, which would be written to the disk line by line."""
    with Server(f"sqlite:///{tmp_path}/perdure.db", document_bytes_max=8 << 20) as small:
        answer = small.client("acme", "operate").post(
            "/v3/dead/import", content=gzip.compress(lines), headers=LINES
        )
    assert (answer.status_code, answer.json()["code"]) == (413, "input_too_large")


@pytest.mark.parametrize("packed", [False, True])
def test_an_export_is_imported_elsewhere(packed: bool, server: Server) -> None:
    id_ = added(server, "acme", "dies")
    operator = server.client("acme", "read", "write", "operate")
    lines = operator.get("/v3/dead/export").content
    assert operator.post("/v3/dead/purge", json={"all": True, "confirm": True}).json()["purged"] == 1
    sent = gzip.compress(lines) if packed else lines
    answer = operator.post("/v3/dead/import", params={"reason": "back"}, content=sent, headers=LINES)
    assert (answer.status_code, answer.json()["imported"], answer.json()["refused"]) == (200, 1, 0)
    assert operator.get(f"/v3/documents/{id_}").json()["id"] == id_
    assert operator.post("/v3/dead/import", content=sent, headers=LINES).json()["exists"] == 1
    bad = operator.post("/v3/dead/import", content=b"{}\n", headers=LINES).json()
    assert (bad["refused"], bad["answers"][0]["line"]) == (1, 1)
    acts = server.run(server.service.acts(verb="import"))
    assert [act.reason for act in acts if "a request" in act.target] == ["back"]


@pytest.mark.parametrize(
    ("route", "body", "scope"),
    [
        ("/v3/rerun", RERUN, "write"),
        ("/v3/limits", {"key": "k"}, "operate"),
        ("/v3/sweep", {}, "operate"),
        ("/v3/dead/import", {}, "operate"),
    ],
)
def test_each_asks_for_its_scope(route: str, body: dict[str, object], scope: str, server: Server) -> None:
    others = {"read", "write", "operate"} - {scope}
    answer = server.client("acme", *others).post(route, json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")


def test_a_client_deletes_what_has_ended(server: Server) -> None:
    id_ = added(server, "acme", "a")
    with Client(server.url, key=server.key("acme")) as client:
        assert client.delete(id_, reason="a mistake").answer == "purged"
        assert client.documents() == []
        waiting = client.add(text="b", pipeline="letters").id
        assert client.delete(waiting, cancel=True).answer == "purged"


def test_a_rerun_takes_the_words_of_other_systems_for_states(server: Server) -> None:
    added(server, "acme", "fine")
    client = server.client("acme")
    asked = {"pipeline": "letters", "from_stage": "write", "dry_run": True}
    for word in ("done", "completed", "COMPLETED"):
        answer = client.post("/v3/rerun", json={**asked, "where": {"state": word}})
        assert (answer.status_code, answer.json()["found"]) == (200, 1), answer.text
    for word, code in (("odd", "state_unknown"), ("running", "input_invalid")):
        answer = client.post("/v3/rerun", json={**asked, "where": {"state": word}})
        assert (answer.status_code, answer.json()["code"]) == (422, code)


@pytest.mark.parametrize(
    "path", ["/v3/audit", "/v3/webhooks/deliveries/retry", "/v3/webhooks/deliveries/1-2-3/retry", "/v3/sweep"]
)
def test_a_body_has_known_fields_alone(path: str, server: Server) -> None:
    client = server.client("acme", "read", "write", "operate")
    for body in ({"recuont": True}, {"reason": "x", "dryrun": True}, [1]):
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid"), answer.text
    assert client.post(path).status_code in (200, 404)


def test_the_reason_of_an_audit_that_counts_anew_is_kept(server: Server) -> None:
    client = server.client("acme", "operate")
    for accept in ("application/json", "application/x-ndjson"):
        asked = {"reason": "a doubt"}
        answer = client.post("/v3/audit", params={"recount": True}, json=asked, headers={"Accept": accept})
        assert answer.status_code == 200
    acts = server.run(server.service.acts(verb="recount"))
    assert [(act.who, act.reason) for act in acts] == [("key test", "a doubt")] * 2
