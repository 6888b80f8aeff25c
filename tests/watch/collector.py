"""A collector of spans: a small server that speaks OTLP over HTTP and keeps what it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Sent:
    """A span as it arrived."""

    name: str
    trace: str
    id: str
    parent: str
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int
    error: str | None


class Collector:
    """The spans so far, and where to send more."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.spans: list[Sent] = []

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [_sent(span) for span in scope.spans]

    def of(self, document_id: str, name: str) -> list[Sent]:
        """The spans of a document that are called so, in the order they began."""
        found = [
            span
            for span in self.spans
            if span.attributes.get("perdure.document_id") == document_id and span.name == name
        ]
        return sorted(found, key=lambda span: span.start_ns)


def _sent(span: Any) -> Sent:
    values = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
    links = tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links)
    error = span.status.message if span.status.code == 2 else None
    return Sent(
        span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), links, values,
        span.start_time_unix_nano, span.end_time_unix_nano, error,
    )  # fmt: skip


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join(90)
