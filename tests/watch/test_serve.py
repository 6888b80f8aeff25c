"""The server of `/metrics`, by itself: a port that is taken, callers that misbehave, an app that shows its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure import Document, Pipeline
from perdure.app import AsyncPerdure
from perdure.watch import serve
from perdure.watch.serve import MetricsServer
from tests.ports import free_ports

notes = Pipeline("notes")


@notes.stage
def read(doc: Document) -> str:
    return doc.text


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[AsyncPerdure]:
    app = AsyncPerdure(f"sqlite:///{directory}/notes.db", pipelines=[notes])
    await app.start()
    try:
        yield app
    finally:
        await app.close()


async def told(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


async def until(port: int) -> bytes:
    """What `/metrics` says, as soon as somebody is there."""
    for _ in range(1000):
        try:
            return await told(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        except OSError:
            await asyncio.sleep(0.05)
    raise AssertionError("nobody answers")


def test_a_port_that_is_taken_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "AGAIN_S", 0.05)

    async def act() -> bytes:
        (port,) = free_ports(1)
        taken = socket.create_server(("127.0.0.1", port))
        async with opened(tmp_path) as app:
            serving = asyncio.create_task(MetricsServer(app.measure(), "127.0.0.1", port, 1).run())
            await asyncio.sleep(0.2)
            assert not serving.done()
            taken.close()
            try:
                return await until(port)
            finally:
                serving.cancel()

    assert (asyncio.run(act())).startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")


def test_callers_that_misbehave_keep_nobody_else_from_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "PATIENCE_S", 5.0)
    (port,) = free_ports(1)

    async def act() -> None:
        async with opened(tmp_path) as app:
            serving = asyncio.create_task(MetricsServer(app.measure(), "127.0.0.1", port).run())
            await until(port)
            silent = asyncio.create_task(told(port, b"GET /metr"))
            endless = asyncio.create_task(told(port, b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 100_000))
            head = await told(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert head.endswith(b"\r\n\r\n")
            assert (await told(port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
            assert (await told(port, b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
            assert b"perdure_workers" in await until(port)
            assert await silent == b""
            await asyncio.gather(endless, return_exceptions=True)
            serving.cancel()

    asyncio.run(act())


def test_an_app_shows_what_it_does_itself(tmp_path: Path) -> None:
    async def act() -> tuple[str, str]:
        async with opened(tmp_path) as app:
            before = (await app.measure().text()).decode()
            await app.add(text="one", pipeline=notes)
            await app.run_until_idle()
            assert app.measure() is app.measure()
            return before, (await app.measure().text()).decode()

    before, after = asyncio.run(act())
    done = 'perdure_attempts_total{outcome="done",pipeline="notes"}'
    assert f"{done} 0.0" in before
    assert f"{done} 1.0" in after
