"""Clients that are slow, endless, broken or hostile: refused as soon as that shows, and nothing of theirs is left."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from perdure.api.receiving import Limits, Uploads, pieces
from perdure.api.refused import Refused
from tests.api.server import Server, paths_of_openapi

MB = 1 << 20
RAW = "Content-Type: application/octet-stream\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    settings: dict[str, Any] = {"document_bytes_max": 2 * MB, "upload_pause_s": 0.8, "upload_total_s": 1.5}
    with Server(f"sqlite:///{tmp_path}/perdure.db", **settings) as running:
        yield running


def left(server: Server) -> list[Path]:
    """Files and directories of uploads that are still there; a moment is given to remove them."""
    spool: Path = server.app.state.limits.spool
    for _ in range(100):
        if not any(spool.glob("*")):
            break
        time.sleep(0.02)
    return list(spool.glob("*"))


@contextmanager
def connected(
    server: Server, headers: str, key: str | None = None, path: str = "/v3/documents?pipeline=notes"
) -> Iterator[socket.socket]:
    """A client that has sent the head of an upload, and says the rest by hand."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=90) as client:
        bearer = key or server.key("acme")
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {bearer}\r\n"
            f"{headers}\r\n".encode()
        )
        yield client


def answered(client: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer."""
    said = b""
    while piece := client.recv(65536):
        said += piece
        head, _, body = said.partition(b"\r\n\r\n")
        if body.endswith(b"}"):
            return int(head.split()[1]), json.loads(body)
    raise AssertionError(f"no answer but {said!r}")


def poured(client: socket.socket, piece: bytes) -> int:
    """How much is taken before nobody listens any more."""
    client.settimeout(0.5)
    sent = 0
    try:
        while sent < 200 * MB:
            client.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    client.settimeout(90)
    return sent


def test_a_body_that_stops_coming_is_given_up(server: Server) -> None:
    with connected(server, f"{RAW}Content-Length: 1000\r\n") as client:
        client.sendall(b"some")
        status, problem = answered(client)
    assert (status, problem["code"]) == (408, "upload_too_slow")
    assert left(server) == []


def test_a_body_that_comes_a_byte_at_a_time_is_given_up(server: Server) -> None:
    with connected(server, f"{RAW}Content-Length: 1000\r\n") as client:
        for _ in range(12):
            client.sendall(b"x")
            time.sleep(0.1)
        status, problem = answered(client)
    assert (status, problem["code"]) == (408, "upload_too_slow")
    assert left(server) == []


def test_an_endless_body_is_read_to_the_limit_and_no_further(server: Server) -> None:
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with connected(server, f"{RAW}Transfer-Encoding: chunked\r\n") as client:
        sent = poured(client, piece)
    assert sent < 60 * MB, "what the kernel buffers, and not what we send"
    assert left(server) == []
    assert server.client("acme").get("/v3/documents").json()["documents"] == []


@pytest.mark.parametrize("size", [3 * MB, 12 * MB])
def test_who_sends_on_hears_why_it_was_refused(server: Server, size: int) -> None:
    client = server.client("acme")
    for body in (b"x" * size, iter([b"x" * MB] * (size // MB))):
        refused = client.post("/v3/documents", content=body, headers={"Content-Type": "text/plain"})
        assert (refused.status_code, refused.json()["code"]) == (413, "input_too_large")
        assert refused.headers["content-type"] == "application/problem+json"


def test_who_has_no_key_is_not_listened_to(server: Server) -> None:
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with connected(server, f"{RAW}Transfer-Encoding: chunked\r\n", key="nobody's") as client:
        assert poured(client, piece) < 60 * MB


def test_what_says_that_it_is_too_large_is_not_read_at_all(server: Server) -> None:
    with connected(server, f"{RAW}Content-Length: {3 * MB}\r\n") as client:
        status, problem = answered(client)
    assert (status, problem["code"]) == (413, "input_too_large")
    assert str(2 * MB) in problem["detail"]


def test_an_upload_that_breaks_off_leaves_nothing(server: Server) -> None:
    for headers, body in (
        (f"{RAW}Content-Length: {MB}\r\n", b"x" * 600_000),
        (
            f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {MB}\r\n",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 600_000,
        ),
    ):
        with connected(server, headers) as client:
            client.sendall(body)
            time.sleep(0.1)
    assert left(server) == []
    assert server.client("acme").get("/v3/documents").json()["documents"] == []


def test_a_form_has_so_many_parts_and_no_more(server: Server) -> None:
    client = server.client("acme")
    answer = client.post("/v3/documents", files=[(f"field{n}", (None, "x")) for n in range(60)])
    assert (answer.status_code, answer.json()["code"]) == (413, "parts_too_many")
    large = client.post("/v3/documents", files={"file": b"a"}, data={"name": "n" * (MB + 1)})
    assert (large.status_code, large.json()["code"]) == (413, "input_too_large")
    together = client.post("/v3/documents", files=[(f"field{n}", (None, "x" * MB)) for n in range(4)])
    assert (together.status_code, together.json()["code"]) == (413, "input_too_large")
    assert left(server) == []


@pytest.mark.parametrize(
    "part", ["X-Bomb: " + "b" * MB, "b" * MB + ": x", "\r\n".join(f"X-{n}: b" for n in range(20_000))]
)
def test_a_header_of_a_part_that_never_ends_takes_no_memory(server: Server, part: str) -> None:
    body = f'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n{part}\r\n\r\nx\r\n--b--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = server.client("acme").post("/v3/documents", content=body.encode(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")
    assert "header" in answer.json()["detail"].lower()


def test_headers_of_a_request_that_never_end_are_refused(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=90) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        sent = poured(client, b"X-Bomb: " + b"b" * 60_000 + b"\r\n")
    assert sent < 30 * MB
    assert server.client().get("/healthz").status_code == 200


def test_a_full_disk_is_said_before_anything_is_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64 * MB + 1000))
    client = server.client("acme")
    raw = {"Content-Type": "text/plain"}
    full = client.post("/v3/documents?pipeline=notes", content=b"x" * 2000, headers=raw)
    assert (full.status_code, full.json()["code"]) == (507, "storage_full")
    chunked = client.post("/v3/documents?pipeline=notes", content=iter([b"x" * 2000]), headers=raw)
    assert (chunked.status_code, chunked.json()["code"]) == (507, "storage_full")
    assert client.post("/v3/documents?pipeline=notes", content=b"x" * 500, headers=raw).status_code == 201
    assert left(server) == []


def test_a_disk_that_fills_up_meanwhile_is_said(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("perdure.store.blobs.directory.os.fsync", full)
    answer = server.client("acme").post(
        "/v3/documents?pipeline=notes", content=b"x" * MB, headers={"Content-Type": "text/plain"}
    )
    assert (answer.status_code, answer.json()["code"]) == (507, "storage_full")
    assert left(server) == []


def test_files_are_written_beside_the_blobs_and_leftovers_are_cleared_out(tmp_path: Path) -> None:
    spool = tmp_path / "perdure.db.d" / "blobs" / "tmp"
    (spool / "perdure-room-of-a-killed-one").mkdir(parents=True)
    (spool / "perdure-room-of-a-killed-one" / "body").write_bytes(b"half")
    with Server(f"sqlite:///{tmp_path}/perdure.db") as server:
        assert server.app.state.limits.spool == spool
        assert left(server) == []


@pytest.mark.long
def test_a_large_upload_takes_no_memory(tmp_path: Path) -> None:
    """200 MB as raw body and as a form; the server is a process of its own, so that its memory can be looked at."""
    store = f"sqlite:///{tmp_path}/perdure.db"
    command = [
        sys.executable,
        "-m",
        "perdure",
        "serve",
        "--open",
        "--no-worker",
        "--port",
        "0",
        "--store",
        store,
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command[command.index("0")] = str(port)
    file = tmp_path / "large"
    with file.open("wb") as target:
        for _ in range(200):
            target.write(os.urandom(MB))
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/healthz")
        before = psutil.Process(process.pid).memory_info().rss
        for how in (
            ["-F", f"file=@{file}"],
            ["-T", str(file), "-X", "POST", "-H", "Content-Type: application/x-own"],
        ):
            sending = subprocess.Popen(
                ["curl", "-sf", *how, f"{url}/v3/documents?pipeline=document&dedupe=false"]
            )
            most = before
            while sending.poll() is None:
                most = max(most, psutil.Process(process.pid).memory_info().rss)
                time.sleep(0.02)
            assert sending.returncode == 0
            print(f"{how[0]}: {before >> 20} MB before, {most >> 20} MB at most")
            assert most - before < 60 * MB
    finally:
        process.terminate()
        process.wait(90)


def _wait_for(url: str) -> None:
    import httpx2

    for _ in range(1000):
        try:
            assert httpx2.get(url).status_code == 200
            return
        except httpx2.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def bodies() -> list[str]:
    """Paths of all routes that take a body."""
    return sorted(
        path for path, verbs in paths_of_openapi().items() if "requestBody" in verbs.get("post", {})
    )


@pytest.mark.parametrize("path", bodies())
def test_no_route_reads_a_body_of_who_has_no_key_or_more_than_is_allowed(small: Server, path: str) -> None:
    path = path.replace("{", "").replace("}", "")
    head = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    with connected(small, head, "nobody's", path) as client:
        assert answered(client)[0] == 401, "before anything was sent"
    with connected(small, head, path=path) as client:
        client.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        status, problem = answered(client)
    # a route that streams its body asks for the scope first
    wanted = (403, "scope_missing") if path == "/v3/dead/import" else (413, "input_too_large")
    assert (status, problem["code"]) == wanted


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("small")
    with Server(f"sqlite:///{path}/perdure.db", api_json_bytes_max=1024) as running:
        yield running


def test_a_server_stops_at_the_moment_at_which_the_time_of_a_body_runs_out() -> None:
    wrong: list[dict[str, Any]] = []

    async def act() -> None:
        async def stream() -> AsyncIterator[bytes]:
            await asyncio.sleep(60)
            yield b""

        uploads, loop = Uploads(), asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: wrong.append(context))
        at_s = loop.time() + 0.1
        loop.call_at(at_s - 0.05, time.sleep, 0.1)  # so that both that follow are due in one turn of the loop
        loop.call_at(at_s + 0.01, uploads.stop)
        with pytest.raises(TimeoutError):
            await uploads.next(stream(), at_s)

    asyncio.run(act())
    assert wrong == []


def test_a_time_that_runs_out_while_a_piece_is_written_is_said_as_such() -> None:
    async def stream() -> AsyncIterator[bytes]:
        while True:
            yield b"x"

    app = SimpleNamespace(state=SimpleNamespace(uploads=Uploads()))
    request: Any = SimpleNamespace(stream=stream, app=app, scope={})

    async def slow() -> None:
        async for _ in pieces(request, Limits(MB, MB, 10, 0.05), MB):
            await asyncio.sleep(0.2)

    with pytest.raises(Refused) as late:
        asyncio.run(slow())
    assert late.value.status == 408
