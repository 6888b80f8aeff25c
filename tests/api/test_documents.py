"""Documents over HTTP: every way in, and what can be read of them at once."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.server import Server

DOCUMENTS = "/v3/documents"


def test_every_way_in_gives_an_id_whose_status_is_there_at_once(server: Server) -> None:
    client = server.client("acme")
    ways: list[dict[str, Any]] = [
        {"json": {"text": "one", "pipeline": "notes"}},
        {"json": {"url": "https://example.org/a", "pipeline": "notes"}},
        {"json": {"file": base64.b64encode(b"three").decode(), "pipeline": "notes", "name": "c.txt"}},
        {"json": {"json": {"four": 4}, "pipeline": "notes"}},
        {
            "files": {"file": ("d.txt", b"five", "text/plain")},
            "data": {"pipeline": "notes", "meta": '{"a": 1}'},
        },
        {
            "content": b"six",
            "headers": {"Content-Type": "text/plain"},
            "params": {"pipeline": "notes", "name": "e.txt"},
        },
    ]
    for way in ways:
        answer = client.post(DOCUMENTS, **way)
        assert answer.status_code == 201, answer.text
        assert answer.json()["answer"] == "added"
        found = client.get(answer.headers["location"])
        assert found.status_code == 200
        assert found.json()["status"] == "queued"
        assert found.json()["completed_stages"] == []
        assert found.json()["progress"] == {"stages_done": 0, "stages": 1, "items": 0}
    assert len(client.get(DOCUMENTS).json()["documents"]) == len(ways)


def test_a_file_keeps_its_bytes_name_and_type(server: Server) -> None:
    client = server.client("acme")
    body = bytes(range(256)) * 400  # more than is kept in a row
    made = client.post(
        DOCUMENTS, files={"file": ("bücher ☃.bin", body, "application/x-own")}, data={"pipeline": "notes"}
    ).json()
    found = client.get(f"{DOCUMENTS}/{made['id']}").json()
    assert found["name"] == "bücher ☃.bin"
    content = client.get(f"{DOCUMENTS}/{made['id']}/content")
    assert content.content == body
    assert content.headers["content-type"] == "application/x-own"
    assert content.headers["x-content-type-options"] == "nosniff"


def test_a_type_cannot_say_more_than_a_type(server: Server) -> None:
    client = server.client("acme")
    asked = {"text": "x", "pipeline": "notes", "type": "text/html\r\nSet-Cookie: a=b"}
    made = client.post(DOCUMENTS, json=asked).json()
    content = client.get(f"{DOCUMENTS}/{made['id']}/content")
    assert (content.status_code, content.headers["content-type"]) == (200, "application/octet-stream")
    assert "set-cookie" not in content.headers


def test_an_apps_only_pipeline_need_not_be_named(server: Server) -> None:
    client = server.client("acme")
    made = client.post(DOCUMENTS, json={"text": "mine"})
    assert made.status_code == 201, made.text
    assert client.get(made.headers["location"]).json()["pipeline"] == "notes"


def test_the_same_content_again_exists_visibly(server: Server) -> None:
    client = server.client("acme")
    asked = {"text": "the same", "pipeline": "notes"}
    first, again = client.post(DOCUMENTS, json=asked), client.post(DOCUMENTS, json=asked)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"id": first.json()["id"], "answer": "exists", "state": "queued"}


def test_many_are_taken_in_together_or_not_at_all(server: Server) -> None:
    client = server.client("acme")
    good = [{"text": f"text {n}", "pipeline": "notes"} for n in range(100)]
    answer = client.post(f"{DOCUMENTS}/bulk", json={"documents": good})
    assert answer.status_code == 201
    assert len({one["id"] for one in answer.json()["documents"]}) == 100

    wrong = client.post(
        f"{DOCUMENTS}/bulk", json={"documents": [{"text": "new", "pipeline": "notes"}, {"pipeline": "notes"}]}
    )
    assert wrong.status_code == 422
    assert wrong.json()["code"] == "input_invalid"
    assert len(client.get(DOCUMENTS, params={"limit": 1000}).json()["documents"]) == 100


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"text": "a", "url": "https://example.org/"},
        {"text": "a", "pipeline": "nowhere"},
        {"url": "http://127.0.0.1/x"},
        {"file": "not base64!"},
        {"text": "a", "type": "sandwich"},
        {"text": "a", "priority": 1000},
    ],
)
def test_of_many_the_wrong_one_is_named(server: Server, wrong: dict[str, Any]) -> None:
    client = server.client("acme")
    documents = [{"text": "one"}, {"text": "two"}, wrong, {"text": "three"}]

    alone = client.post(DOCUMENTS, json=wrong).json()
    answer = client.post(f"{DOCUMENTS}/bulk", json={"documents": documents})

    assert (answer.status_code, answer.json()["code"]) == (422, alone["code"])
    assert answer.json()["detail"].startswith("body.documents.2"), answer.text
    assert "documents" not in alone["detail"]


@pytest.mark.parametrize(
    ("how", "got"),
    [
        ({"json": {}}, "nothing"),
        ({"json": {"text": "a", "file": "YQ=="}}, "text and file"),
        ({"json": {"text": "a", "file": ""}}, "text and file"),
        ({"files": {"file": b"a"}, "data": {"url": "https://example.org/"}}, "url and file"),
    ],
)
def test_what_to_hand_in_is_said_in_words_that_a_request_has(
    server: Server, how: dict[str, Any], got: str
) -> None:
    said = server.client("acme").post(DOCUMENTS, **how).json()
    assert said["code"] == "input_invalid"
    assert said["detail"] == f"hand in exactly one of url, text, json, file; got {got}"


def test_lists_are_read_page_by_page_without_loss(server: Server) -> None:
    client = server.client("acme")
    for n in range(25):
        client.post(DOCUMENTS, json={"text": f"text {n}", "pipeline": "notes"})
    seen, after = [], None
    while True:
        page = client.get(DOCUMENTS, params={"limit": 10} | ({"after": after} if after else {})).json()
        seen += [one["id"] for one in page["documents"]]
        if (after := page["next"]) is None:
            break
    assert len(seen) == len(set(seen)) == 25
    assert client.get(DOCUMENTS, params={"state": "pending"}).json()["documents"]
    assert client.get(DOCUMENTS, params={"state": "failed"}).json()["documents"] == []


def test_a_filter_is_read_in_the_words_that_are_answered_with(server: Server) -> None:
    client = server.client("acme")
    later = {"delay_s": 3600}
    for n in range(3):
        client.post(DOCUMENTS, json={"text": f"text {n}", "pipeline": "notes"})
        client.post(DOCUMENTS, json={"text": f"later {n}", "pipeline": "notes", **later})
    every = [one["id"] for one in client.get(DOCUMENTS).json()["documents"]]
    for words, word, number in (
        ("bullmq", "waiting", 3), ("bullmq", "delayed", 3), ("bullmq", "active", 0), ("documents", "queued", 6),
        ("images", "pending", 6), ("perdure", "waiting", 3), ("bullmq", "queued", 3),
    ):  # fmt: skip
        asked: dict[str, Any] = {"words": words, "state": word, "limit": 2}
        asked["created_after"] = "2020-01-01T00:00:00Z"
        found, after = [], None
        while True:
            page = client.get(DOCUMENTS, params=asked | ({"after": after} if after else {})).json()
            found += page["documents"]
            if (after := page["next"]) is None:
                break
        assert len(found) == number, (words, word)
        assert [one["id"] for one in found] == [id_ for id_ in every if id_ in {one["id"] for one in found}]
        assert word == "queued" or {one["state"] for one in found} <= {word}


@pytest.mark.parametrize("path", [DOCUMENTS, "/v3/dead", "/v3/webhooks/deliveries"])
@pytest.mark.parametrize("after", ["xyz", "zzz", "0", ""])
def test_a_list_does_not_begin_anew_where_its_place_is_none(server: Server, path: str, after: str) -> None:
    answer = server.client("acme").get(path, params={"after": after})
    assert (answer.status_code, answer.json()["code"]) == (422, "cursor_invalid"), answer.text


def test_requeue_and_cancel_say_what_came_of_it(server: Server) -> None:
    client = server.client("acme")
    id_ = client.post(DOCUMENTS, json={"text": "x", "pipeline": "notes"}).json()["id"]
    early = client.post(f"{DOCUMENTS}/{id_}/requeue")
    assert (early.status_code, early.json()["code"]) == (409, "move_forbidden")
    assert (
        client.post(f"{DOCUMENTS}/{id_}/cancel", json={"reason": "not wanted"}).json()["answer"]
        == "cancelled"
    )
    assert client.get(f"{DOCUMENTS}/{id_}").json()["status"] == "cancelled"
    again = client.post(f"{DOCUMENTS}/{id_}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "move_forbidden")
    assert client.post(f"{DOCUMENTS}/{id_}/requeue").json()["answer"] == "requeued"
    assert client.get(f"{DOCUMENTS}/{id_}").json()["generation"] == 2


# --- once --------------------------------------------------------------------------------------


def test_a_request_under_a_key_is_done_once(server: Server) -> None:
    client = server.client("acme")
    headers = {"Idempotency-Key": "order-7"}
    asked = {"text": "once", "pipeline": "notes", "dedupe": False}
    first = client.post(DOCUMENTS, json=asked, headers=headers)
    again = client.post(DOCUMENTS, json=asked, headers=headers)
    assert again.json() == first.json()
    assert (first.status_code, again.status_code) == (201, 201)
    other = client.post(DOCUMENTS, json={**asked, "text": "other"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    stranger = server.client("zeta").post(DOCUMENTS, json=asked, headers=headers)
    assert stranger.json()["id"] != first.json()["id"]


def test_the_hash_of_a_request_covers_its_file(server: Server) -> None:
    client = server.client("acme")
    headers = {"Idempotency-Key": "k"}

    def send(body: bytes) -> Any:
        return client.post(
            DOCUMENTS, files={"file": ("a.txt", body)}, data={"pipeline": "notes"}, headers=headers
        )

    first = send(b"one")
    assert send(b"one").json() == first.json()
    assert send(b"two").status_code == 422


def test_fifty_at_a_time_make_one_document(server: Server) -> None:
    client = server.client("acme")

    def send(_: int) -> Any:
        asked = {"text": "once", "pipeline": "notes", "dedupe": False}
        return client.post(DOCUMENTS, json=asked, headers={"Idempotency-Key": "k"}).json()

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(send, range(50)))
    assert len({json.dumps(one) for one in answers}) == 1
    assert len(client.get(DOCUMENTS).json()["documents"]) == 1


def test_many_under_a_key_are_done_once(server: Server) -> None:
    client = server.client("acme")
    asked = {"documents": [{"text": f"{n}", "pipeline": "notes", "dedupe": False} for n in range(3)]}
    first = client.post(f"{DOCUMENTS}/bulk", json=asked, headers={"Idempotency-Key": "k"})
    again = client.post(f"{DOCUMENTS}/bulk", json=asked, headers={"Idempotency-Key": "k"})
    assert first.json() == again.json()
    assert len(client.get(DOCUMENTS).json()["documents"]) == 3


def test_new_content_under_a_known_key_is_not_lost_with_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, headers = server.client("acme"), {"Idempotency-Key": "k"}
    asked = {"text": "old", "pipeline": "notes", "key": "page"}
    id_ = client.post(DOCUMENTS, json=asked).json()["id"]
    with monkeypatch.context() as broken:
        broken.setattr(server.service.store, "document", None)  # it dies after it has written down the key
        failed = client.post(DOCUMENTS, json={**asked, "text": "new"}, headers=headers)
        assert (failed.status_code, failed.headers["connection"]) == (500, "close")
    for _ in range(2):
        answer = client.post(DOCUMENTS, json={**asked, "text": "new"}, headers=headers)
        assert answer.json() == {"id": id_, "answer": "refreshed", "state": "queued"}
    assert client.get(f"{DOCUMENTS}/{id_}/content").content == b"new"
    assert client.get(f"{DOCUMENTS}/{id_}").json()["generation"] == 2


# --- what is wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [
        ({"json": {"pipeline": "notes"}}, 422, "input_invalid"),
        ({"json": {"text": "a", "url": "https://example.org", "pipeline": "notes"}}, 422, "input_invalid"),
        ({"json": {"text": "a", "surprise": 1}}, 422, "request_invalid"),
        ({"json": {"text": "a", "priority": 1000}}, 422, "request_invalid"),
        ({"json": {"text": "a", "pipeline": "nowhere"}}, 422, "pipeline_unknown"),
        ({"json": {"text": "a\x00b", "name": "a\x00b", "pipeline": "notes"}}, 422, "text_nul"),
        ({"json": {"url": "http://127.0.0.1/x", "pipeline": "notes"}}, 422, "address_forbidden"),
        ({"json": {"url": "not a url", "pipeline": "notes"}}, 422, "url_invalid"),
        ({"json": {"text": "a", "type": "sandwich"}}, 422, "type_unknown"),
        ({"json": {"file": "not base64!"}}, 422, "request_invalid"),
        ({"json": {"text": "a", "run_at": "2030-01-01T00:00:00", "pipeline": "notes"}}, 422, "input_invalid"),
        ({"json": [1, 2]}, 422, "request_invalid"),
        (
            {"content": b"x", "headers": {"Content-Type": f"multipart/form-data; boundary={'a' * 300}"}},
            422,
            "request_invalid",
        ),
        (
            {"json": {"text": "x", "pipeline": "notes", "run_at": "9999-12-31T23:59:59-10:00"}},
            422,
            "input_invalid",
        ),
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 422, "request_invalid"),
        ({"content": b'{"text": "\\ud800"}', "headers": {"Content-Type": "application/json"}}, 422, None),
        (
            {"content": b"[" * 100_000, "headers": {"Content-Type": "application/json"}},
            422,
            "request_invalid",
        ),
        ({"content": b"a=b", "headers": {"Content-Type": "application/x-www-form-urlencoded"}}, 415, None),
        ({"content": b"a"}, 415, "content_type_unknown"),
        ({"content": b"--x\r\n", "headers": {"Content-Type": "multipart/form-data"}}, 422, "request_invalid"),
        (
            {"content": b"no", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
            422,
            "request_invalid",
        ),
        ({"files": [("file", b"a"), ("file", b"b")]}, 422, "files_too_many"),
        ({"files": {"file": b"a"}, "data": {"meta": "{"}}, 422, "request_invalid"),
        ({"json": {"text": "a"}, "headers": {"Idempotency-Key": "a b"}}, 422, "request_invalid"),
    ],
)
def test_bad_input_is_told_apart_and_nothing_is_taken_in(
    server: Server, how: dict[str, Any], status: int, code: str | None
) -> None:
    client = server.client("acme")
    answer = client.post(DOCUMENTS, **how)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    if code is not None:
        assert answer.json()["code"] == code
    assert answer.json()["detail"]
    assert client.get(DOCUMENTS).json()["documents"] == []


def test_an_id_that_is_none_is_not_found(server: Server) -> None:
    client = server.client("acme")
    for id_ in ("nothing", "%00", "a" * 500, "%E2%98%83", "..%2F..", "'; drop table document"):
        answer = client.get(f"{DOCUMENTS}/{id_}")
        assert answer.status_code == 404, id_
        assert answer.headers["content-type"] == "application/problem+json"
