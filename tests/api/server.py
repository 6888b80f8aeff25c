"""A real HTTP server over a fresh store, in a thread of its own, and a client that speaks to it as somebody's key."""

from __future__ import annotations

import asyncio
import socket
import threading
from functools import cache
from types import TracebackType
from typing import Any

import httpx2

from perdure import Document, Pipeline
from perdure.api import serve
from perdure.api.build import build
from perdure.service import AsyncPerdure
from perdure.settings import Settings

notes = Pipeline("notes", attempts=1)


@notes.stage
def read(doc: Document) -> str:
    return str(doc.text)


@cache
def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of a server."""
    document: dict[str, Any] = build(AsyncPerdure("sqlite:///unused.db")).openapi()
    return document


def paths_of_openapi() -> dict[str, Any]:
    """The paths of the OpenAPI document."""
    paths: dict[str, Any] = openapi_document()["paths"]
    return paths


class Server:
    """`with Server(url) as server: server.client("acme").get("/v3/documents")`."""

    def __init__(
        self, store: str, *, open_: bool = False, pipelines: Any = (notes,), **settings: Any
    ) -> None:
        self.service = AsyncPerdure(store, pipelines=pipelines, settings=Settings(**settings))
        self.app = build(self.service, open_=open_)
        self._server = serve.Server(serve.configured(self.app, timeout_graceful_shutdown=2))
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._ready = threading.Event()
        self._clients: list[httpx2.Client] = []

    def _live(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        self._ready.set()
        await serving

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(90)
        assert self._server.started, "the server did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        self._server.should_exit = True
        self._thread.join(90)

    def run(self, work: Any) -> Any:
        """What a coroutine gives, run where the server lives."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def key(self, org: str, *scopes: str) -> str:
        """A new key of the organisation."""
        shown: str = self.run(self.service.add_key(org, "test", scopes or ("read", "write")))[1]
        return shown

    def client(self, org: str | None = None, *scopes: str) -> httpx2.Client:
        """A client with a key of the organisation; without one where none is named."""
        headers = {} if org is None else {"Authorization": f"Bearer {self.key(org, *scopes)}"}
        client = httpx2.Client(base_url=self.url, headers=headers, timeout=90)
        self._clients.append(client)
        return client
