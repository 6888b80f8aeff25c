"""Connections that say nothing, little, or are too many: closed or refused, while others are answered."""

from __future__ import annotations

import logging
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from perdure.api import connections
from perdure.api.connections import Guard, Seldom, whose_network
from perdure.settings import Settings
from tests.api.server import Server
from tests.ports import free_ports

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
ROOT = Path(__file__).parents[2]


@contextmanager
def quick(tmp_path: Path, **settings: Any) -> Iterator[Server]:
    given = {"api_head_s": 0.6, "api_idle_s": 0.6, **settings}
    with Server(f"sqlite:///{tmp_path}/perdure.db", **given) as running:
        yield running


@contextmanager
def keyed(tmp_path: Path, **settings: Any) -> Iterator[tuple[Server, str]]:
    """With a key, made before a client has to hurry with its head."""
    with quick(tmp_path, **settings) as server:
        yield server, server.key("acme")


def dialled(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 60)


def heard(client: socket.socket) -> bytes:
    """All that comes until the server closes."""
    said = b""
    try:
        while piece := client.recv(65536):
            said += piece
    except ConnectionError:
        pass
    return said


def _emptied(server: Server) -> None:
    until_s = time.monotonic() + 60
    while server.app.state.guard.open:
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_who_sends_nothing_or_half_a_head_is_let_go(tmp_path: Path) -> None:
    with quick(tmp_path) as server, dialled(server.url) as silent, dialled(server.url) as half:
        half.sendall(HEAD)
        assert heard(silent) == b""
        assert b"408" in (said := heard(half))
        assert b"head_too_slow" in said
        assert server.app.state.guard.open == 0


@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"], ids=["first", "after a request"])
def test_a_head_that_comes_a_byte_at_a_time_is_not_waited_for(tmp_path: Path, before: bytes) -> None:
    with quick(tmp_path) as server, dialled(server.url) as client:
        client.sendall(before + HEAD)
        until_s = time.monotonic() + 60
        with pytest.raises(OSError):  # noqa: PT012
            while time.monotonic() < until_s:
                client.sendall(b"x")
                time.sleep(0.1)


def test_a_body_that_nobody_waits_for_does_not_hold_its_connection(tmp_path: Path) -> None:
    with quick(tmp_path) as server, dialled(server.url) as client:
        client.sendall(b"POST /v3/documents HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert b"401" in client.recv(65536)
        until_s = time.monotonic() + 60
        with pytest.raises(OSError):  # noqa: PT012
            while time.monotonic() < until_s:
                client.sendall(b"x")
                time.sleep(0.1)


def test_a_request_that_takes_longer_than_a_head_may_is_answered(tmp_path: Path) -> None:
    with keyed(tmp_path, upload_pause_s=30) as (server, key), dialled(server.url) as client:
        client.sendall(
            f"POST /v3/documents?pipeline=notes HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n"
            "Content-Type: text/plain\r\nContent-Length: 6\r\n\r\n".encode()
        )
        for letter in (b"a", b"b", b"c", b"d", b"e", b"f"):
            time.sleep(0.2)
            client.sendall(letter)
        assert b" 201 " in client.recv(65536)


@pytest.mark.parametrize("path", ["/v3/nothing", "/v3/events"], ids=["refused", "a stream"])
def test_a_body_that_breaks_after_the_answer_began_ends_the_connection_and_is_no_fault_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with keyed(tmp_path) as (server, key), dialled(server.url) as client:
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n"
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 ")
        client.sendall(b"no length\r\n")
        assert b"HTTP/1.1" not in heard(client)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_there_are_so_many_connections_of_one_address(tmp_path: Path) -> None:
    with quick(tmp_path, api_head_s=60, api_connections_per_address=5) as server, ExitStack() as open_:
        for _ in range(5):
            open_.enter_context(dialled(server.url))
        said = heard(open_.enter_context(dialled(server.url)))
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"connections_too_many" in said
        open_.close()
        with httpx2.Client(base_url=server.url, transport=httpx2.HTTPTransport(retries=5)) as client:
            until_s = time.monotonic() + 60
            while client.get("/healthz").status_code != 200:
                assert time.monotonic() < until_s


def test_a_connection_whose_answer_nobody_takes_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STALL_S", 0.5)
    with keyed(tmp_path) as (server, key):
        with server.client("acme") as client:
            raw = {"Content-Type": "text/plain"}
            sent = client.post("/v3/documents?pipeline=notes", content=os.urandom(24 << 20), headers=raw)
        path = f"/v3/documents/{sent.json()['id']}/content"
        with dialled(server.url) as stalled:
            stalled.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n".encode())
            assert stalled.recv(1)
            _emptied(server)


def test_a_closed_connection_whose_last_bytes_nobody_takes_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = connections.Guarded.connection_made

    def narrow(self: connections.Guarded, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(connections, "STALL_S", 0.5)
    with keyed(tmp_path) as (server, key), server.client("acme") as client, socket.socket() as stalled:
        raw = {"Content-Type": "text/plain", "Connection": "close"}
        sent = client.post("/v3/documents?pipeline=notes", content=os.urandom(60_000), headers=raw)
        monkeypatch.setattr(connections.Guarded, "connection_made", narrow)
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        path = f"/v3/documents/{sent.json()['id']}/content"
        stalled.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n".encode())
        assert stalled.recv(1)
        _emptied(server)


def test_limits_stay_below_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    few = Guard.of(Settings())
    assert (few.most, few.most_of_one) == (448, 224)
    assert Guard.of(Settings(api_connections_per_address=4000)).most_of_one == 448
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65_536, 65_536))
    assert (Guard.of(Settings()).most, Guard.of(Settings()).most_of_one) == (4000, 2000)


def test_one_address_takes_what_is_its_own() -> None:
    guard = Guard(4, 2, 1, 1)
    assert [guard.enter("a") for _ in range(3)] == [True, True, False]
    assert [guard.enter("b"), guard.enter("c"), guard.enter("d")] == [True, True, False]
    guard.leave("a")
    assert (guard.open, guard.enter("d"), guard.enter("d")) == (3, True, False)


@pytest.mark.parametrize(
    ("peer", "whose"),
    [
        (("192.0.2.7", 1), "192.0.2.7"), (("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3::9", 1, 0, 0), "2001:db8:1:2::/64"), (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", "local"), (None, "local"),
    ],
)  # fmt: skip
def test_what_counts_as_one_address(peer: Any, whose: str) -> None:
    assert whose_network(peer) == whose


def test_the_log_does_not_grow_as_fast_as_somebody_connects() -> None:
    now = [100.0]
    seldom = Seldom(lambda: now[0])

    def passes(text: str) -> bool:
        return seldom.filter(logging.LogRecord("asyncio", logging.ERROR, "", 1, text, None, None))

    full = "socket.accept() out of system resource\nsocket: <…>"
    assert [passes(text) for text in (full, full, "else", "else")] == [True, False, True, True]
    now[0] += connections.SELDOM_S
    assert passes(full)


@pytest.mark.full
def test_a_server_with_few_descriptors_lives_on(tmp_path: Path) -> None:
    """More connections than it has descriptors, none of which says anything; `prlimit` as an operator would set it."""
    (port,) = free_ports(1)
    url, log = f"http://127.0.0.1:{port}", tmp_path / "log"
    start = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); "
        "from perdure.cli.main import main; sys.argv[0] = 'perdure'; main()"
    )
    command = [sys.executable, "-c", start, "serve", "--open", "--no-worker", "--port", str(port)]
    with log.open("wb") as target:
        process = subprocess.Popen(
            [*command, "--store", f"sqlite:///{tmp_path}/perdure.db"], stderr=target, stdout=target, cwd=ROOT,
            env={**os.environ, "PERDURE_API_HEAD_S": "2"},
        )  # fmt: skip
    try:
        _answers(url)
        with ExitStack() as open_:
            for _ in range(400):
                open_.enter_context(dialled(url))
            _answers(url)  # once those that say nothing have been let go
        assert log.stat().st_size < 100_000, log.read_text()[:2000]
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> None:
    until_s = time.monotonic() + 60
    while True:
        try:
            if httpx2.get(f"{url}/healthz", timeout=10).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        assert time.monotonic() < until_s, "the server does not answer"
        time.sleep(0.1)
