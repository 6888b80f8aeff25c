"""A service on loopback that speaks the OpenAI protocol and fails as told.

    with OpenAIServer([Fault(429, headers={"retry-after": "1"}), Fault(reset=True)]) as server:
        client = OpenAI(base_url=server.url, api_key="any")
        ...
        assert len(server.requests) == 3

Each request takes the next fault of the script; when there is none left, it is answered properly.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from types import TracebackType
from typing import Any

DIMENSIONS = 3


@dataclass(frozen=True)
class Fault:
    """What becomes of one request. Without any field set it is answered properly."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None  # JSON, or bytes as they are; None: the proper answer, or an error of the usual shape
    delay_s: float = 0.0  # before anything is answered
    reset: bool = False  # the connection is reset instead of an answer
    cut: bool = False  # the connection ends in the middle of the body
    hang: bool = False  # no answer until the server is closed


OK = Fault()


@dataclass(frozen=True)
class Request:
    """A request that arrived."""

    at_s: float  # time.monotonic()
    path: str
    headers: Mapping[str, str]
    body: Any


class OpenAIServer:
    """The server; a context manager. `script` may be extended while it runs."""

    def __init__(self, script: Iterable[Fault] = ()) -> None:
        self.script: deque[Fault] = deque(script)
        self.always: Fault = OK  # what follows when the script has ended
        self.vector: Callable[[str], Sequence[float]] = by_length
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def url(self) -> str:
        """The base URL that an OpenAI client wants."""
        return f"{self.origin}/v1"

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between one request and the next."""
        times = [request.at_s for request in self.requests]
        return [later - earlier for earlier, later in pairwise(times)]

    def take(self, request: Request) -> Fault:
        """Write the request down and give what becomes of it."""
        with self._lock:
            self.requests.append(request)
            return self.script.popleft() if self.script else self.always

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: OpenAIServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gives up in the middle is no error of the server."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_POST(self) -> None:
        at_s = time.monotonic()
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        asked = json.loads(content) if content else None
        owner = self.server.owner
        fault = owner.take(Request(at_s, self.path, dict(self.headers.items()), asked))
        if fault.delay_s or fault.hang:
            owner.closing.wait(None if fault.hang else fault.delay_s)
        if fault.reset or fault.hang:
            self._reset()
            return
        body = answer(self.path, asked, fault, owner.vector)
        self.send_response(fault.status)
        for name, value in {"content-type": "application/json", **fault.headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault.cut else body)
        if fault.cut:
            self.close_connection = True

    do_GET = do_POST

    def _reset(self) -> None:
        """End the connection so that the other side sees a reset, not a polite end."""
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the tests ask `requests`."""


def by_length(text: str) -> Sequence[float]:
    """A vector that only depends on how long the text is."""
    return [float(len(text))] * DIMENSIONS


def answer(
    path: str, asked: Any, fault: Fault, vector: Callable[[str], Sequence[float]] = by_length
) -> bytes:
    """The body of the answer."""
    if isinstance(fault.body, bytes):
        return fault.body
    if fault.body is not None:
        return json.dumps(fault.body).encode()
    if fault.status >= 400:
        error = {"message": f"status {fault.status}", "type": "error", "param": None, "code": None}
        return json.dumps({"error": error}).encode()
    return json.dumps(
        _embeddings(asked, vector) if path.endswith("/embeddings") else _completion(asked)
    ).encode()


def _completion(asked: Any) -> dict[str, Any]:
    """The last message said back."""
    said = asked["messages"][-1]["content"] if asked else ""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"] if asked else "none",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _embeddings(asked: Any, vector: Callable[[str], Sequence[float]]) -> dict[str, Any]:
    """For each text its vector."""
    texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
    return {
        "object": "list",
        "model": asked["model"],
        "data": [
            {"object": "embedding", "index": index, "embedding": list(vector(text))}
            for index, text in enumerate(texts)
        ],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
