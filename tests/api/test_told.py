"""What the API tells of a document is true and complete: its state, its last failure, its place in lists."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from perdure import Document, Permanent, Pipeline, RetryLater
from perdure.api import build
from perdure.api.entries import KINDS, TYPES
from perdure.client import ApiError, Client
from perdure.core.model import State
from perdure.core.state_words import WORDS
from perdure.errors import InputInvalid
from tests.api.server import Server, paths_of_openapi

DOCUMENTS = "/v3/documents"
UNKNOWN = "0197aaaa"

frail = Pipeline("frail", attempts=2, backoff_s=900)
other = Pipeline("other", attempts=1)


@other.stage
def note(doc: Document) -> str:
    return str(doc.text)


@frail.stage
def read(doc: Document) -> str:
    if "bad" in doc.text:
        raise Permanent("not_wanted", "bad words")
    if "slow" in doc.text:
        raise ValueError("not yet")
    if "later" in doc.text:
        raise RetryLater("not now", delay_s=3_000)
    return str(doc.text)


@pytest.fixture
def server(store_url: str) -> Iterator[Server]:
    with Server(store_url, pipelines=(frail, other)) as running:
        yield running


def add(client: Any, text: str) -> dict[str, Any]:
    answer = client.post(DOCUMENTS, json={"text": text, "pipeline": "frail"})
    assert answer.status_code < 300, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_an_unknown_parameter_is_refused_on_every_route(server: Server) -> None:
    client = server.client("acme", "read", "write", "operate")
    wrong = []
    for path, methods in paths_of_openapi().items():
        for method, route in methods.items():
            known = [p["name"] for p in route.get("parameters", ()) if p["in"] == "query"]
            url = re.sub(r"\{\w+\}", UNKNOWN, path)
            answer = client.request(method.upper(), url, params={"quite_unknown": "1"})
            said = answer.json()
            fits = said["code"] == "parameter_unknown" and "quite_unknown" in said["detail"]
            if answer.status_code != 422 or not fits or not all(name in said["detail"] for name in known):
                wrong.append((method, path, answer.text))
            for name in known:
                near = client.request(method.upper(), url, params={f"{name}x": "1"}).json()
                if f"did you mean {name}?" not in near["detail"]:
                    wrong.append((method, path, near))
    assert wrong == []


def test_the_openapi_document_is_made_before_the_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[threading.Thread] = []
    make = FastAPI.openapi

    def noted(app: FastAPI) -> dict[str, Any]:
        made.append(threading.current_thread())
        return make(app)

    monkeypatch.setattr(FastAPI, "openapi", noted)
    monkeypatch.setattr(build, "_described", {}, raising=False)
    with Server(f"sqlite:///{tmp_path}/p.db") as server:
        assert len(made) == 1
        client = server.client("acme")
        assert client.get(DOCUMENTS, params={"limit": 1}).status_code == 200
        assert client.patch(DOCUMENTS).status_code == 405
        assert DOCUMENTS in client.get("/openapi.json").json()["paths"]
        assert [thread for thread in made if thread is server._thread] == []


def test_the_state_has_one_name_and_the_other_one_is_accepted(server: Server) -> None:
    client = server.client("acme")
    dead, waits = add(client, "bad")["id"], add(client, "slow")["id"]
    server.run(server.service.run_until_idle())

    for word, id_ in (("dead", dead), ("failed", dead), ("waiting", waits), ("pending", waits)):
        for name in ("state", "status"):
            found = client.get(DOCUMENTS, params={name: word}).json()["documents"]
            assert [(one["id"], one["state"]) for one in found] == [(id_, one["status"]) for one in found]
            assert len(found) == 1
    both = client.get(DOCUMENTS, params={"state": "dead", "status": "done"})
    assert both.json()["code"] == "input_invalid"
    one = client.get(f"{DOCUMENTS}/{dead}").json()
    assert (one["state"], one["status"]) == ("dead", "dead")


def test_one_that_waits_tells_why_and_its_attempts_have_fingerprints(server: Server) -> None:
    client = server.client("acme")
    ids = {"slow": add(client, "slow")["id"], "later": add(client, "later")["id"]}
    server.run(server.service.run_until_idle())

    one = client.get(f"{DOCUMENTS}/{ids['slow']}").json()
    assert one["state"] == "waiting"
    assert one["due_at"] is not None
    assert one["error"] == {"code": "unexpected", "message": "not yet"}
    assert client.get(f"{DOCUMENTS}/{ids['later']}").json()["error"]["code"] == "retry_later"
    listed = {d["id"]: d["error"] for d in client.get(DOCUMENTS).json()["documents"]}
    assert listed[ids["slow"]] == one["error"]
    (attempt,) = client.get(f"{DOCUMENTS}/{ids['slow']}/attempts").json()["attempts"]
    assert re.fullmatch("[0-9a-f]{16}", attempt["fingerprint"])


def test_a_dead_document_that_is_added_again_starts_again(server: Server) -> None:
    client = server.client("acme")
    added = add(client, "bad")
    assert (added["answer"], added["state"]) == ("added", None)
    again = add(client, "bad")
    assert (again["answer"], again["id"], again["state"]) == ("exists", added["id"], "queued")
    server.run(server.service.run_until_idle())

    key = {"Idempotency-Key": "once"}
    body = {"text": "bad", "pipeline": "frail"}
    for _ in range(2):  # the second one is answered as the first
        answer = client.post(DOCUMENTS, json=body, headers=key).json()
        assert answer == {"id": added["id"], "answer": "requeued", "state": "dead"}
    assert client.get(f"{DOCUMENTS}/{added['id']}").json()["generation"] == 2
    server.run(server.service.run_until_idle())
    bulk = client.post(f"{DOCUMENTS}/bulk", json={"documents": [body, body]}).json()["documents"]
    assert [(one["answer"], one["state"]) for one in bulk] == [("requeued", "dead"), ("exists", "queued")]
    assert client.get(f"{DOCUMENTS}/{added['id']}").json()["generation"] == 3


def test_states_are_answered_in_the_words_that_are_asked_for(server: Server) -> None:
    client = server.client("acme")
    for text in ("fine", "bad", "slow"):
        add(client, text)
    server.run(server.service.run_until_idle())
    add(client, "new")

    for system, table in WORDS.items():
        plain = client.get(DOCUMENTS).json()["documents"]
        found = client.get(DOCUMENTS, params={"words": system}).json()["documents"]
        assert [one["state"] for one in found] == [table[State(one["state"])] for one in plain]
        for one in found:
            detail = client.get(f"{DOCUMENTS}/{one['id']}", params={"words": system}).json()
            assert (detail["state"], detail["status"]) == (one["state"], one["state"])
            assert detail["due_at"] == one["due_at"]
    assert client.get(DOCUMENTS, params={"words": "klingon"}).json()["code"] == "words_unknown"
    with Client(server.url, key=server.key("acme")) as theirs:
        (dead,) = theirs.documents(state="dead", words="bullmq")
        assert theirs.wait(dead.id, 1.0, words="images").state == dead.state == "failed"


def test_each_filter_of_a_list_keeps_what_fits_and_nothing_else(server: Server) -> None:
    client, ids = server.client("acme"), {}
    body = {"text": "one", "pipeline": "frail", "collection": "threads", "name": "First.txt"}
    ids["one"] = client.post(DOCUMENTS, json=body).json()["id"]
    server.run(server.service.run_until_idle())
    between = datetime.now(UTC)
    body = {"text": "two", "pipeline": "other", "name": "Second.txt"}
    ids["two"] = client.post(DOCUMENTS, json=body).json()["id"]
    after, before = {"created_after": between.isoformat()}, {"created_before": between.isoformat()}
    finished_before = {"finished_before": (between + timedelta(days=1)).isoformat()}
    finished_after = {"finished_after": (between - timedelta(days=1)).isoformat()}
    cases: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
        "state": [({"state": "done"}, ["one"]), ({"state": "queued"}, ["two"]), ({"state": "dead"}, [])],
        "status": [({"status": "completed"}, ["one"]), ({"status": "queued"}, ["two"])],
        "collection": [({"collection": "threads"}, ["one"]), ({"collection": "documents"}, ["two"])],
        "pipeline": [({"pipeline": "frail"}, ["one"]), ({"pipeline": "other"}, ["two"])],
        "name": [({"name": "irst"}, ["one"]), ({"name": ".txt"}, ["two", "one"]), ({"name": "%"}, [])],
        "created_after": [(after, ["two"])], "created_before": [(before, ["one"])],
        "finished_after": [(finished_after, ["one"])], "finished_before": [(finished_before, ["one"])],
        "words": [({"words": "bullmq", "state": "completed"}, ["one"])],
        "after": [({"after": ids["two"]}, ["one"])], "limit": [({"limit": 1}, ["two"])],
    }  # fmt: skip
    parameters = paths_of_openapi()[DOCUMENTS]["get"]["parameters"]
    assert set(cases) == {one["name"] for one in parameters if one["in"] == "query"}
    for asked, names in (case for of_one in cases.values() for case in of_one):
        found = client.get(DOCUMENTS, params=asked).json()["documents"]
        assert [one["id"] for one in found] == [ids[name] for name in names], asked


@pytest.mark.parametrize(("word", "media_type"), sorted(TYPES.items()))
def test_a_type_is_a_word_or_a_media_type(word: str, media_type: str, server: Server) -> None:
    client = server.client("acme")
    for said in (word, media_type):
        id_ = client.post(DOCUMENTS, json={"text": said, "pipeline": "frail", "type": said}).json()["id"]
        (org, whole) = server.run(server.service._key(id_, "acme"))
        assert server.run(server.service.store.document(org, whole)).media_type == media_type
    for said in KINDS:
        assert (
            client.post(DOCUMENTS, json={"text": said, "pipeline": "frail", "type": said}).status_code == 201
        )


def test_lists_have_ranges_and_continue_where_they_ended(server: Server) -> None:
    client = server.client("acme")
    ids = [add(client, f"text {n}")["id"] for n in range(5)]
    server.run(server.service.run_until_idle())
    times = [client.get(f"{DOCUMENTS}/{id_}").json()["created_at"] for id_ in ids]

    def found(**asked: Any) -> list[str]:
        page = client.get(DOCUMENTS, params=asked).json()["documents"]
        return [one["id"] for one in page]

    assert found(created_after=times[3]) == ids[:2:-1]
    assert found(created_before=times[2]) == ids[1::-1]
    assert found(created_after=times[1], created_before=times[3]) == ids[2:0:-1]
    long_ago, soon = datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(days=1)
    assert found(finished_after=long_ago.isoformat(), finished_before=soon.isoformat()) == ids[::-1]
    assert found(finished_before=long_ago.isoformat()) == []
    page = client.get(DOCUMENTS, params={"limit": 2}).json()
    assert client.delete(f"{DOCUMENTS}/{ids[3]}").json()["answer"] == "purged"
    assert found(after=page["next"]) == ids[2::-1]
    assert found(after=ids[2]) == ids[1::-1]
    assert client.get(DOCUMENTS, params={"after": ids[3]}).json()["code"] == "cursor_invalid"
    naive = client.get(DOCUMENTS, params={"created_after": "2030-01-01T00:00:00"})
    assert (naive.status_code, naive.json()["code"]) == (422, "input_invalid")
    assert naive.json()["detail"].endswith("not 2030-01-01T00:00:00")
    with Client(server.url, key=server.key("acme")) as theirs:
        assert theirs.documents(created_after=soon) == []
        assert len(theirs.documents(finished_after=long_ago, limit=1)) == 4
        with pytest.raises(ApiError, match="did you mean created_after"):
            theirs.documents(created_aftr=soon)


def test_an_id_may_be_abbreviated_where_it_is_the_only_one(server: Server) -> None:
    client, other = server.client("acme", "read", "write", "operate"), server.client("other")
    id_ = add(client, "bad")["id"]
    theirs = add(other, "bad")["id"]
    server.run(server.service.run_until_idle())
    short = id_[:-4]

    for verb in ("", "/attempts", "/why", "/timeline", "/chunks", "/connections", "/rows/x", "/content"):
        assert client.get(f"{DOCUMENTS}/{short}{verb}").status_code == 200, verb
        assert other.get(f"{DOCUMENTS}/{short}{verb}").status_code == 404, verb
    assert client.get(f"{DOCUMENTS}/{short}").json()["id"] == id_
    assert client.get(f"/v3/dead/{short}").status_code == 200
    assert client.get(f"{DOCUMENTS}/{id_[:5]}").status_code == 404
    assert client.post(f"{DOCUMENTS}/{short}/requeue").json() == {"id": id_, "answer": "requeued"}
    assert client.post(f"{DOCUMENTS}/{short}/cancel").json() == {"id": id_, "answer": "cancelled"}
    assert client.delete(f"{DOCUMENTS}/{short}").json() == {"id": id_, "answer": "purged"}
    assert other.get(f"{DOCUMENTS}/{theirs[:-2]}").json()["id"] == theirs

    many = [add(client, f"text {n}")["id"] for n in range(3)]
    common = next(many[0][:n] for n in range(36, 0, -1) if all(one.startswith(many[0][:n]) for one in many))
    if len(common) >= 6:  # the clock may have begun another span of hours between them
        refused = client.get(f"{DOCUMENTS}/{common}")
        assert (refused.status_code, refused.json()["code"]) == (422, "id_ambiguous")
        assert all(one in refused.json()["detail"] for one in many)
        assert theirs not in refused.json()["detail"]


def test_nul_in_a_text_is_refused_at_the_door(server: Server) -> None:
    client = server.client("acme")
    large = "x" * 100_000
    for body in ({"text": "a\0b"}, {"text": f"{large}\0"}):
        answer = client.post(DOCUMENTS, json={**body, "pipeline": "frail"})
        assert (answer.status_code, answer.json()["code"]) == (422, "text_nul")
    assert client.get(DOCUMENTS).json()["documents"] == []


def test_errors_name_what_the_door_has(server: Server) -> None:
    answer = server.client("acme").post(DOCUMENTS, json={"pipeline": "frail"})
    assert answer.json()["detail"] == "hand in exactly one of url, text, json, file; got nothing"
    with Client(server.url, key=server.key("acme")) as client:
        for given in ({}, {"text": "a", "data": b"b"}):
            with pytest.raises(InputInvalid, match="exactly one of url, text, data, path; got"):
                client.add(**given)  # type: ignore[arg-type]
