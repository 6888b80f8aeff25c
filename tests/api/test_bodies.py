"""JSON and forms that would cost the server much: refused early and briefly, while it goes on answering others."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.api import jsons
from perdure.api.refused import Refused
from tests.api.server import Server
from tests.api.test_uploads import MB, RAW, answered, connected, poured

ANSWER_BYTES = 32 << 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings: dict[str, Any] = {"document_bytes_max": 2 * MB, "api_json_values_max": 200_000}
    with Server(f"sqlite:///{tmp_path_factory.mktemp('bodies')}/perdure.db", **settings) as running:
        yield running


def unknown(number: int) -> dict[str, int]:
    return {f"unknown-{n}": n for n in range(number)}


@pytest.mark.parametrize("path", ["", "/bulk", "/x/remote/finish"])
def test_of_very_many_errors_the_first_are_told_and_the_rest_counted(server: Server, path: str) -> None:
    wrong: dict[str, Any] = unknown(50_000)
    answer = server.client("acme").post(f"/v3/documents{path}", json=wrong)
    assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")
    assert len(answer.content) < ANSWER_BYTES
    assert (len(answer.json()["errors"]), answer.json()["errors_left"]) == (20, 49_980)


@pytest.mark.parametrize(
    ("body", "code"),
    [(json.dumps(unknown(5000)).encode(), "json_too_long"), (b" " * (MB + 1), "input_too_large")],
    ids=["values", "bytes"],
)
def test_a_route_that_acts_takes_a_small_body(server: Server, body: bytes, code: str) -> None:
    json_ = {"Content-Type": "application/json"}
    answer = server.client("acme").post("/v3/documents/x/requeue", content=body, headers=json_)
    assert (answer.status_code, answer.json()["code"]) == (413, code)


def test_a_body_of_null_is_as_good_as_none_where_none_is_needed(server: Server) -> None:
    client = server.client("acme")
    made = client.post("/v3/documents", json={"text": "null", "pipeline": "notes"}).json()["id"]
    null: dict[str, Any] = {"content": b"null", "headers": {"Content-Type": "application/json"}}
    assert client.post(f"/v3/documents/{made}/cancel", **null).status_code == 200


def test_errors_of_many_documents_are_told_in_few(server: Server) -> None:
    many = {"documents": [{"text": 1, "priority": "x", **unknown(5)} for _ in range(1000)]}
    answer = server.client("acme").post("/v3/documents/bulk", json=many)
    assert answer.status_code == 422
    assert len(answer.content) < ANSWER_BYTES
    assert answer.json()["errors"][0]["where"] == "body.documents.0.unknown-0"


def test_a_key_of_a_megabyte_is_not_sent_back(server: Server) -> None:
    answer = server.client("acme").post("/v3/documents", json={"text": "x", "k" * MB: 1})
    assert (answer.status_code, len(answer.content) < ANSWER_BYTES) == (422, True)
    assert answer.json()["errors"][0]["where"].startswith("body.kkk")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ('{"json": ' + "[" * 201 + "]" * 201 + "}", 422, "deeper than 200"),
        ('{"json": ' + '{"a":' * 201 + "1" + "}" * 201 + "}", 422, "deeper than 200"),
        ('{"json": ' + "1" * 1001 + "}", 422, "number of more than 1000"),
        ('{"json": 0.' + "1" * 2 * MB + "}", 422, "number of more than 1000"),
        ('{"json": [' + "0," * 200_000 + "0]}", 413, "more than 200000 keys and values"),
        (json.dumps({"json": unknown(100_001)}), 413, "more than 200000 keys and values"),
        ('{"text": "' + '\\"' * MB, 422, "does not end"),
    ],
    ids=["lists", "objects", "integer", "fraction", "values", "keys", "open string"],
)
def test_json_that_is_too_deep_too_long_or_too_much(
    server: Server, body: str, status: int, said: str
) -> None:
    client = server.client("acme")
    for path in ("", "/x/remote/finish"):
        json_ = {"Content-Type": "application/json"}
        answer = client.post(f"/v3/documents{path}", content=body.encode(), headers=json_)
        assert answer.status_code == status, answer.text[:500]
        assert said in answer.json()["detail"]


def test_json_that_is_large_but_in_order_is_taken(server: Server) -> None:
    client = server.client("acme")
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    for new in (
        {"json": {"deep": deep, "number": int("9" * 900)}}, {"json": list(range(90_000))},
        {"text": 'lines, "quoted": {[\n' * 90_000}, {"text": "a", "meta": {"k": ["ü\\"] * 100}},
    ):  # fmt: skip
        for how in ("utf-8", "utf-16"):
            body = json.dumps({**new, "pipeline": "notes"}, ensure_ascii=how != "utf-8").encode(how)
            answer = client.post("/v3/documents", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (200, 201), answer.text[:500]


@pytest.mark.parametrize("text", ["", "{", "nonsense", '{"a" 1}', "[1,]", '"\\', "]" * 300])
def test_what_is_not_json_is_said_so(text: str) -> None:
    with pytest.raises(Refused, match="not JSON"):
        jsons.read(text.encode(), 1000)


# --- forms ------------------------------------------------------------------------------------

FORM = "Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n"
PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n'


@pytest.mark.parametrize(("before", "after"), [(b"", PART + b"--b--\r\n"), (b"\r\n", b"")])
def test_bytes_around_the_parts_of_a_form_count(server: Server, before: bytes, after: bytes) -> None:
    start, piece = before + after, b"10000\r\n" + b"\n" * 65536 + b"\r\n"
    with connected(server, FORM) as client:
        client.sendall(b"%x\r\n%s\r\n" % (len(start), start))
        poured(client, piece)
        status, problem = answered(client)
    assert (status, problem["code"]) == (413, "input_too_large")


def test_a_form_with_a_short_epilogue_is_taken(server: Server) -> None:
    body = PART + b"--b--\r\n" + b"\r\n" * 1000
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = server.client("acme").post("/v3/documents", content=body, headers=headers)
    assert answer.status_code in (200, 201), answer.text


def test_an_upload_that_is_slower_than_the_least_pace_is_given_up(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"upload_pause_s": 0.5, "upload_bytes_per_s": 1 << 30}
    with Server(f"sqlite:///{tmp_path}/perdure.db", **settings) as server:
        with connected(server, f"{RAW}Content-Length: 100000\r\n") as client:
            while not select.select([client], [], [], 0.05)[0]:
                client.sendall(b"x")
            status, problem = answered(client)
        assert (status, problem["code"]) == (408, "upload_too_slow")
