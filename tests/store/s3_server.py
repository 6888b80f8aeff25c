"""A small server that speaks as much S3 as a blob store needs: objects, listing in pages, multipart, bulk delete.

Objects live in memory. It is strict where a mistake would hide: requests must be signed, and the body must have the
hash that was signed. Tests may age or damage an object, and make the next requests fail.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "perdure-test"
PAGE = 3  # few keys per page, so that every listing has several


@dataclass
class S3Object:
    """What is stored under a key."""

    data: bytes
    modified_s: float = field(default_factory=time.time)

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class S3Server:
    """The state of the server, for tests to look at and to tamper with."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.objects: dict[str, S3Object] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.conditional = True  # whether it knows puts that overwrite nothing
        self.failures: list[int] = []  # status codes that the next requests get instead of an answer
        self.requests: list[str] = []  # what was asked, as "METHOD key?query"
        self.lock = threading.Lock()
        self.before: Callable[[str, str], None] = lambda method, key: None  # called with the lock held

    def blobs_url(self, prefix: str = "some/prefix") -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.url}&region=eu-central-1"

    def find(self, digest: str) -> S3Object:
        """The object of a blob, wherever the store put it."""
        return next(each for key, each in self.objects.items() if key.endswith(f"/{digest}"))


class Refused(Exception):
    """An error answer."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class Handler(BaseHTTPRequestHandler):
    """One request; the state belongs to the server."""

    protocol_version = "HTTP/1.1"
    state: S3Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_request(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # the client went away in the middle of a part
            self.close_connection = True
            return
        with self.state.lock:
            self.state.requests.append(f"{self.command} {key}?{parts.query}")
            try:
                self._admit(bucket, body)
                self._answer(key, query, body)
            except Refused as error:
                self._send(error.status, f"<Error><Code>{error.code}</Code></Error>".encode())

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_request

    def _admit(self, bucket: str, body: bytes) -> None:
        if self.state.failures:
            raise Refused(self.state.failures.pop(0), "SlowDown")
        if not self.headers.get("Authorization", "").startswith("AWS4-HMAC-SHA256 "):
            raise Refused(403, "AccessDenied")
        signed = self.headers.get("x-amz-content-sha256", "")
        if signed not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
            raise Refused(400, "XAmzContentSHA256Mismatch")
        if bucket != BUCKET:
            raise Refused(404, "NoSuchBucket")

    def _answer(self, key: str, query: dict[str, str], body: bytes) -> None:
        self.state.before(self.command, key)
        if "uploadId" in query or "uploads" in query:
            self._multipart(key, query, body)
        elif "delete" in query:
            self._delete_many(body)
        elif not key and self.command == "GET":
            self._list(query)
        elif self.command == "PUT" and self.headers.get("If-None-Match") and not self.state.conditional:
            raise Refused(501, "NotImplemented")
        elif self.command == "PUT" and self.headers.get("If-None-Match") == "*" and key in self.state.objects:
            raise Refused(412, "PreconditionFailed")
        elif self.command == "PUT" and (source := self.headers.get("x-amz-copy-source")):
            found = self.state.objects.get(unquote(source).lstrip("/").partition("/")[2])
            if found is None:
                raise Refused(404, "NoSuchKey")
            self.state.objects[key] = S3Object(found.data)
            self._send(
                200, f"<CopyObjectResult><ETag>{escape(found.etag)}</ETag></CopyObjectResult>".encode()
            )
        elif self.command == "PUT":
            self.state.objects[key] = S3Object(body)
            self._send(200, ETag=self.state.objects[key].etag)
        elif self.command == "DELETE":
            self.state.objects.pop(key, None)
            self._send(204)
        else:
            self._read(key)

    def _read(self, key: str) -> None:
        found = self.state.objects.get(key)
        if found is None:
            raise Refused(404, "NoSuchKey")
        headers = {"ETag": found.etag, "Last-Modified": formatdate(found.modified_s, usegmt=True)}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return self._send(200, found.data, **headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(found.data)), len(found.data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(found.data)}"
        return self._send(206, found.data[first : last + 1], **headers)

    def _list(self, query: dict[str, str]) -> None:
        after = max(query.get("continuation-token", ""), query.get("start-after", ""))
        prefix = query.get("prefix", "")
        keys = sorted(key for key in self.state.objects if key.startswith(prefix) and key > after)
        page, more = keys[:PAGE], len(keys) > PAGE
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(each.data)}</Size><ETag>{escape(each.etag)}</ETag>"
            f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(each.modified_s))}</LastModified>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key in page
            for each in [self.state.objects[key]]
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        head = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
        truncated = f"<MaxKeys>{PAGE}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
        answer = f"<ListBucketResult>{head}{truncated}{token}{contents}</ListBucketResult>"
        self._send(200, answer.encode())

    def _delete_many(self, body: bytes) -> None:
        keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
        for key in keys:
            self.state.objects.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._send(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _multipart(self, key: str, query: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            upload = f"upload-{len(self.state.requests)}"
            self.state.uploads[upload] = {}
            answer = f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            return self._send(
                200, f"<InitiateMultipartUploadResult>{answer}</InitiateMultipartUploadResult>".encode()
            )
        upload = query["uploadId"]
        if upload not in self.state.uploads:
            raise Refused(404, "NoSuchUpload")
        if self.command == "PUT":
            self.state.uploads[upload][int(query["partNumber"])] = body
            return self._send(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
        parts = self.state.uploads.pop(upload)
        if self.command == "DELETE":
            return self._send(204)
        self.state.objects[key] = S3Object(b"".join(parts[number] for number in sorted(parts)))
        answer = f"<Key>{escape(key)}</Key><ETag>{escape(self.state.objects[key].etag)}</ETag>"
        return self._send(
            200, f"<CompleteMultipartUploadResult>{answer}</CompleteMultipartUploadResult>".encode()
        )

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class QuietServer(ThreadingHTTPServer):
    """Says nothing about clients that went away."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server on a free local port, gone when the block ends."""
    handler = type("BoundHandler", (Handler,), {})
    server = QuietServer(("127.0.0.1", 0), handler)
    handler.state = state = S3Server(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
