"""Bodies in tiny chunks and heads of many lines: refused, and other callers are answered meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median

import httpx2
import pytest

from tests.api.served import new_key, served
from tests.api.server import Server
from tests.api.test_connections import dialled, heard

TINY = b"1\r\nx\r\n" * 20_000


def head(key: str, path: str = "/v3/documents?pipeline=notes", method: str = "POST", more: str = "") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\nContent-Type: text/plain\r\n"
        f"Transfer-Encoding: chunked\r\n{more}\r\n"
    ).encode()


@contextmanager
def sending(url: str, start: bytes, piece: bytes, number: int = 4) -> Iterator[None]:
    """Clients that send such a body for as long as the block lasts, each again when it is cut off."""
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            with suppress(OSError), dialled(url) as client:
                client.settimeout(10)
                client.sendall(start)
                while not over.is_set():
                    client.sendall(piece)

    threads = [threading.Thread(target=send) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def waits_s(url: str, key: str, number: int) -> list[float]:
    found = []
    with httpx2.Client(base_url=url, headers={"X-API-Key": key}, timeout=90) as client:
        for _ in range(number):
            began_s = time.monotonic()
            assert client.get("/v3/documents").status_code == 200
            found.append(time.monotonic() - began_s)
            time.sleep(0.02)
    return found


@pytest.mark.parametrize("valid", [True, False], ids=["a key", "no valid key"])
def test_tiny_chunks_of_one_caller_do_not_slow_another(tmp_path: Path, valid: bool) -> None:
    store = f"sqlite:///{tmp_path}/perdure.db"
    with served(store, "--no-worker") as url:
        hostile, other = new_key(store, "hostile") if valid else "pk_none", new_key(store, "other")
        with sending(url, head(hostile), TINY):
            time.sleep(0.5)
            assert median(waits_s(url, other, 15)) < 0.5  # it was three seconds


def test_chunks_of_64_bytes_of_one_caller_do_not_slow_another(tmp_path: Path) -> None:
    """They are large enough to be taken; their organisation pays for the time."""
    store = f"sqlite:///{tmp_path}/perdure.db"
    with served(store, "--no-worker") as url:
        hostile, other = new_key(store, "hostile"), new_key(store, "other")
        with sending(url, head(hostile), (b"40\r\n" + b"x" * 64 + b"\r\n") * 4000, 8):
            time.sleep(0.5)
            assert median(waits_s(url, other, 30)) < 0.25


@pytest.fixture
def one(tmp_path: Path) -> Iterator[tuple[Server, str]]:
    with Server(f"sqlite:///{tmp_path}/perdure.db") as server:
        yield server, server.key("acme")


def test_a_body_of_tiny_chunks_is_refused(one: tuple[Server, str]) -> None:
    server, key = one
    with dialled(server.url) as client:
        client.sendall(head(key) + TINY)
        said = heard(client)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"chunks_too_small" in said
    assert server.client("acme").get("/v3/documents").json()["documents"] == []


def test_a_body_of_small_chunks_keeps_its_order(one: tuple[Server, str]) -> None:
    server, key = one
    sent = b"".join(b"%064d" % n for n in range(8000))
    body = b"".join(b"40;name=value\r\n" + sent[n : n + 64] + b"\r\n" for n in range(0, len(sent), 64))
    with dialled(server.url) as client:
        client.sendall(head(key, more="Connection: close\r\n") + body + b"0\r\nTrailer: x\r\n\r\n")
        said = heard(client)
    assert said.startswith(b"HTTP/1.1 201 ")
    asked = server.client("acme")
    (document,) = asked.get("/v3/documents").json()["documents"]
    assert asked.get(f"/v3/documents/{document['id']}/content").content == sent


def test_requests_behind_a_body_of_small_chunks_are_answered_in_order(one: tuple[Server, str]) -> None:
    server, key = one
    texts = [f"text {n} ".encode() * 8 for n in range(3)]
    requests = [
        head(key) + b"".join(b"1\r\n" + text[n : n + 1] + b"\r\n" for n in range(len(text))) + b"0\r\n\r\n"
        for text in texts
    ]
    with dialled(server.url) as client:
        client.sendall(b"".join(requests) + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        said = heard(client)
    assert (said.count(b"HTTP/1.1 201 "), said.count(b"HTTP/1.1 200 ")) == (3, 1)
    asked = server.client("acme")
    kept = [
        asked.get(f"/v3/documents/{document['id']}/content").content
        for document in asked.get("/v3/documents").json()["documents"]
    ]
    assert sorted(kept) == texts


def test_a_connection_whose_body_goes_on_after_the_answer_is_closed(one: tuple[Server, str]) -> None:
    server, key = one
    with dialled(server.url) as client:
        client.sendall(head(key, "/healthz", "GET"))
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        began_s = time.monotonic()
        client.settimeout(30)
        with pytest.raises(ConnectionError):  # noqa: PT012
            while time.monotonic() < began_s + 30:
                client.sendall((b"40\r\n" + b"x" * 64 + b"\r\n") * 100)
                time.sleep(0.01)
    assert time.monotonic() - began_s < 8  # a head may take ten


def test_a_head_of_many_lines_is_refused(one: tuple[Server, str]) -> None:
    server, _ = one
    with dialled(server.url) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 400 + b"\r\n")
        said = heard(client)
    assert said.startswith(b"HTTP/1.1 431 ")
    assert b"head_too_long" in said
    with dialled(server.url) as client:
        short = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 200 + b"\r\n"
        client.sendall(short * 3 + b"GET /healthz HTTP/1.0\r\n\r\n")
        assert heard(client).count(b"HTTP/1.1 200 ") == 4


def test_trailers_of_many_lines_are_refused(one: tuple[Server, str]) -> None:
    server, key = one
    with dialled(server.url) as client:
        client.sendall(head(key) + b"1\r\nx\r\n0\r\n" + b"a:b\r\n" * 12_000 + b"\r\n")
        said = heard(client)
    assert said.startswith(b"HTTP/1.1 431 ")
    assert b"head_too_long" in said
    assert server.client("acme").get("/v3/documents").json()["documents"] == []


def test_clients_that_close_leave_their_places_in_the_backlog(one: tuple[Server, str]) -> None:
    server, key = one
    with ExitStack() as open_:
        for _ in range(20):
            client: socket.socket = open_.enter_context(dialled(server.url))
            client.sendall(head(key) + TINY[:6000])
    until_s = time.monotonic() + 30
    while server.app.state.guard.open or server.app.state.guard.backlog._of:
        assert time.monotonic() < until_s
        time.sleep(0.05)
