"""Downloads, outputs and exports: whatever their size and however slow the reader, the server holds little of them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import psutil
import pytest

from perdure import Document, Permanent, Pipeline
from perdure.api.standard import PART_BYTES, standard
from perdure.engine.codec import Codec
from perdure.operate.export import WHOLE_BYTES
from tests.api.server import Server
from tests.api.test_uploads import answered, connected

MB = 1 << 20
RAW = {"Content-Type": "text/plain"}
made = Pipeline("made", attempts=1)


@made.stage
def give(doc: Document) -> Any:
    return {"given": json.loads(doc.text), "n": float("nan"), "word": "NaN", "i": [float("-inf"), 1.5]}


@made.stage
def die(doc: Document) -> None:
    raise Permanent("not_good", "it is bad")


def until(is_so: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 60
    while not is_so() and time.monotonic() < until_s:
        time.sleep(0.02)
    return is_so()


def added(server: Server, content: bytes, pipeline: str = "notes", org: str = "acme") -> str:
    path = f"/v3/documents?dedupe=false&pipeline={pipeline}"
    id_: str = server.client(org).post(path, content=content, headers=RAW).json()["id"]
    return id_


@contextmanager
def reading(server: Server, key: str, path: str) -> Iterator[socket.socket]:
    """A client that has asked and takes nothing but the beginning of the answer."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect((host, int(port)))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 200"
        yield client


def taken(client: socket.socket) -> int:
    """How many bytes come until the connection ends."""
    size = 0
    with suppress(ConnectionResetError):
        while piece := client.recv(MB):
            size += len(piece)
    return size


def test_readers_that_take_nothing_hold_little_memory(postgres_url: str) -> None:
    content = os.urandom(32 * MB)
    with Server(postgres_url) as server:
        id_, key = added(server, content), server.key("acme")
        path = f"/v3/documents/{id_}/content"
        assert server.client("acme").get(path).content == content
        before = psutil.Process().memory_info().rss
        with ExitStack() as open_:
            for _ in range(6):
                open_.enter_context(reading(server, key, path))
            time.sleep(0.5)
            assert psutil.Process().memory_info().rss - before < 64 * MB


def test_an_organisation_has_so_many_downloads_and_no_more(store_url: str) -> None:
    with Server(store_url, api_downloads_per_org=2, api_downloads_max=3) as server:
        path, key = f"/v3/documents/{added(server, b'x' * 16 * MB)}/content", server.key("acme")
        theirs = f"/v3/documents/{added(server, b'y' * MB, org='zeta')}/content"
        client = server.client("acme")
        with reading(server, key, path), reading(server, key, path):
            refused = client.get(path)
            assert (refused.status_code, refused.json()["code"]) == (429, "downloads_too_many")
            assert int(refused.headers["retry-after"]) > 0
            assert server.client("zeta").get(theirs).status_code == 200
        assert until(lambda: server.app.state.downloads.open == 0)
        assert client.get(path).status_code == 200


def test_a_reader_that_takes_nothing_is_cut_off(store_url: str) -> None:
    with Server(store_url, download_pause_s=0.3) as server:
        path = f"/v3/documents/{added(server, b'x' * 32 * MB)}/content"
        with reading(server, server.key("acme"), path) as client:
            assert server.app.state.downloads.open == 1
            assert until(lambda: server.app.state.downloads.open == 0)
            assert taken(client) < 32 * MB


def test_a_blob_that_is_damaged_does_not_arrive(postgres_url: str) -> None:
    with Server(postgres_url) as server:
        content = os.urandom(3 * MB)
        path = f"/v3/documents/{added(server, content)}/content"

        async def damage() -> None:
            connection = await asyncpg.connect(postgres_url)
            await connection.execute("UPDATE blob_part SET data = data || 'x' WHERE part = 2")
            await connection.close()

        server.run(damage())
        with reading(server, server.key("acme"), path) as client:
            assert taken(client) < 3 * MB


# --- outputs --------------------------------------------------------------------------------------


def test_an_output_is_sent_as_it_is_saved(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ['é\\"NaN' * 3, {"a": [1, None, True]}] * 40_000
    with Server(store_url, pipelines=(made,)) as server:
        id_ = added(server, json.dumps(given).encode(), "made")
        small = added(server, b"[1]", "made")
        server.run(server.service.run_until_idle())
        monkeypatch.setattr(Codec, "decode", lambda *_: pytest.fail("the server makes values of it"))
        for document, wanted in ((id_, given), (small, [1])):
            answer = server.client("acme").get(f"/v3/documents/{document}/stages/give")
            assert answer.headers["content-type"] == "application/json"
            assert answer.json() == {"given": wanted, "n": None, "word": "NaN", "i": [None, 1.5]}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 4096, PART_BYTES])
def test_numbers_that_are_not_finite_are_null_wherever_they_are_cut(size: int) -> None:
    value = [
        float("nan"),
        "NaN\\",
        -float("inf"),
        '"Infinity"',
        {"-Infinity\\\\": float("inf")},
        "NaN" * 9,
        1,
    ]
    stored = json.dumps(value * 50, ensure_ascii=False).encode()

    async def pieces() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(stored), size):
            yield stored[start : start + size]

    async def run() -> bytes:
        return b"".join([piece async for piece in standard(pieces())])

    finite = json.loads(stored, parse_constant=lambda _: None)
    assert json.loads(asyncio.run(run()), parse_constant=pytest.fail) == finite


# --- exports --------------------------------------------------------------------------------------


def test_an_export_needs_no_disk_and_is_as_the_one_in_a_file(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(store_url, pipelines=(made,)) as server:
        text = json.dumps("x" * (3 * WHOLE_BYTES)).encode()
        large = added(server, text + b" ", "made")
        lost = added(server, text + b"  ", "made")
        for content in (b"1", b'"' + b"y" * 100_000 + b'"'):
            added(server, content, "made")
        server.run(server.service.run_until_idle())
        found = server.run(server.service.store.document("acme", lost))
        server.run(server.service.blobs.delete(found.blob))
        server.run(server.service.export(tmp_path / "dead.jsonl", org="acme"))
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_: pytest.fail("it is on the disk"))
        monkeypatch.setattr(tempfile, "mkdtemp", lambda *_: pytest.fail("it is on the disk"))
        answer = server.client("acme").get("/v3/dead/export")
        assert answer.content == (tmp_path / "dead.jsonl").read_bytes()
        lines = {one["id"]: one for one in map(json.loads, answer.text.splitlines())}
        assert len(lines) == 4
        assert lines[large]["content"] is not None
        assert lines[lost]["content"] is None


def test_an_organisation_has_one_export_and_it_is_in_the_trail_if_it_breaks_off(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/p.db", pipelines=(made,)) as server:
        for org in ("acme", "zeta"):
            added(server, json.dumps("x" * (16 * MB)).encode(), "made", org)
        server.run(server.service.run_until_idle())
        client = server.client("acme")
        with reading(server, server.key("acme"), "/v3/dead/export"):
            refused = client.get("/v3/dead/export")
            assert (refused.status_code, refused.json()["code"]) == (429, "export_running")
            assert int(refused.headers["retry-after"]) > 0
            assert server.client("zeta").get("/v3/dead/export").status_code == 200
        assert until(lambda: server.app.state.exports.open == 0)
        acts = server.run(server.service.acts(verb="export"))
        assert sorted(act.org for act in acts) == ["acme", "zeta"]
        assert client.get("/v3/dead/export").status_code == 200


# --- the share of uploads -------------------------------------------------------------------------


def test_uploads_of_an_organisation_leave_room_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(f"sqlite:///{tmp_path}/p.db") as server:
        spooled = server.app.state.uploads.spooled
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _: SimpleNamespace(free=72 * MB - spooled.of.total())
        )
        length = f"Content-Type: text/plain\r\nContent-Length: {3 * MB}\r\n"
        path = "/v3/documents?pipeline=notes&dedupe=false"
        with connected(server, length) as first:
            first.sendall(b"x" * (5 * MB // 2))
            assert until(lambda: spooled.of["acme"] >= 2 * MB)
            second = server.client("acme").post(path, content=b"y" * 3 * MB, headers=RAW)
            assert (second.status_code, second.json()["code"]) == (429, "rate_limited")
            assert int(second.headers["retry-after"]) > 0
            assert server.client("zeta").post(path, content=b"y" * 2 * MB, headers=RAW).status_code == 201
            first.sendall(b"x" * (MB // 2))
            assert answered(first)[0] == 201
        assert server.client("acme").post(path, content=b"y" * 3 * MB, headers=RAW).status_code == 201
        assert server.client("acme").post(path, content=b"y" * 5 * MB, headers=RAW).status_code == 507
        assert until(lambda: not spooled.of)
