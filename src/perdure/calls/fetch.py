"""Fetch a document from a URL that a user gave: guarded, bounded, once.

    got = await fetch("https://example.org/paper", etag=known_etag)
    if isinstance(got, Fetched):
        text = got.text()

The host of such a URL is nobody's dependency: there is one try per attempt of the document and no retry inside. Every
address is checked before it is connected to, at each redirect again; bytes, hops, headers and time are limited.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import httpcore2

from perdure import __version__
from perdure.calls import addresses
from perdure.calls.addresses import Url
from perdure.calls.charset import Text, decode
from perdure.calls.classify import classify
from perdure.calls.fetch_answer import HEADER_BYTES_MAX, Answer, validator
from perdure.calls.fetch_body import encoding_of, receive
from perdure.calls.policy import Policy
from perdure.calls.scope import SCOPE, remaining
from perdure.calls.wire import Resolve, Wire, resolve, tls_context
from perdure.core.frozen import frozen
from perdure.core.scope import WORK
from perdure.errors import PerdureError, Permanent, Transient
from perdure.settings import current

SIZE_MAX = 64 * 1024 * 1024
TOTAL_S = 60.0
CONNECT_S = 10.0
SILENCE_S = 30.0  # as long nothing may come
HOPS_MAX = 5
#: One more read may have brought the beginning of the content along.
HEAD_BYTES_MAX = HEADER_BYTES_MAX + httpcore2.AsyncHTTP11Connection.READ_NUM_BYTES
#: What chunks may add to the content on the wire.
OVERHEAD_BYTES = 1024 * 1024
MESSAGE_CHARS_MAX = 300

#: The name under which requests of documents are counted in their history.
COUNTED_AS = "fetch"
ACCEPT = (
    "text/html, application/xhtml+xml, text/markdown, text/plain, application/pdf, application/epub+zip, "
    "application/xml;q=0.9, image/*;q=0.8, */*;q=0.5"
)
PARTIAL, NOT_MODIFIED = 206, 304
REDIRECTS = frozenset({301, 302, 303, 307, 308})
FAILURES = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, ssl.SSLError)


@dataclass(slots=True)
class Fetched:
    """A document as it came. `media_type` and `charset` are what the server claims; believe the content first.

    Content of more than 1 MiB lies in a temporary file without a name, which `close` frees, or at `path` in the folder
    that was given.
    """

    url: str  # where it was found in the end
    status: int
    media_type: str  # "" where the server named none
    charset: str | None
    file: IO[bytes] = field(repr=False)
    size: int
    etag: str | None
    last_modified: str | None
    redirects: tuple[str, ...]  # the URLs that led there, the first one first
    path: Path | None = None

    @property
    def content(self) -> bytes:
        """All of it in memory."""
        self.file.seek(0)
        return self.file.read()

    def text(self) -> Text:
        """The content as text, see `decode`."""
        return decode(self.content, self.charset)

    def close(self) -> None:
        """Free the content."""
        self.file.close()


@frozen
class NotModified:
    """The document is still what it was."""

    url: str
    etag: str | None
    last_modified: str | None


async def fetch(
    url: str,
    *,
    allow_loopback: bool = False,
    etag: str | None = None,
    last_modified: str | None = None,
    size_max: int = SIZE_MAX,
    total_s: float = TOTAL_S,
    policy: Policy | None = None,
    resolve: Resolve = resolve,
    tls: ssl.SSLContext | None = None,
    folder: Path | None = None,
) -> Fetched | NotModified:
    """What is at this URL; NotModified if `etag` or `last_modified` of last time still hold.

    Permanent where no attempt can help, RetryLater where the host named a time, else Transient; docs/fetch.md lists
    their codes. `total_s` is the deadline of everything, `size_max` counts unpacked bytes. A `policy` makes it a call
    of that policy, for hosts that you know. `folder`: where large content is to lie, under a name.
    """
    visit = _Visit(url, allow_loopback, etag, last_modified, size_max, total_s, resolve, tls, folder)
    return await (visit.make() if policy is None else policy.acall(visit.make))


@dataclass(slots=True)
class _Visit:
    """One fetch, over all its redirects."""

    url: str
    allow_loopback: bool
    etag: str | None
    last_modified: str | None
    size_max: int
    total_s: float
    resolve: Resolve
    tls: ssl.SSLContext | None
    folder: Path | None

    async def make(self) -> Fetched | NotModified:
        left_s = remaining()
        limit_s = self.total_s if left_s is None else min(self.total_s, left_s)
        try:
            async with asyncio.timeout(limit_s):
                return await self._follow()
        except TimeoutError as error:
            raise Transient(f"not fetched within {limit_s:g} s", code="fetch_timeout") from error
        except FAILURES as error:
            raise _told(error) from error

    async def _follow(self) -> Fetched | NotModified:
        at = addresses.parse(self.url, allow_loopback=self.allow_loopback)
        left: list[str] = []
        while True:
            async with self._ask(at) as answer:
                location = answer.first("location") if answer.status in REDIRECTS else None
                if location is None:
                    return await self._take(answer, at, tuple(left))
            left.append(str(at))
            at = addresses.follow(at, location, allow_loopback=self.allow_loopback)
            if str(at) in left:
                raise Permanent("redirect_loop", f"{at.host} leads in a circle")
            if len(left) > HOPS_MAX:
                raise Permanent("too_many_redirects", f"more than {HOPS_MAX} redirects")

    @asynccontextmanager
    async def _ask(self, at: Url) -> AsyncIterator[Answer]:
        """One request to one checked address; the connection ends with it."""
        wire = Wire(await self._addresses(at), HEAD_BYTES_MAX)
        scheme, host = at.scheme.encode(), at.host.encode()
        connection = httpcore2.AsyncHTTPConnection(
            httpcore2.Origin(scheme, host, at.port),
            ssl_context=(self.tls or tls_context()) if at.scheme == "https" else None,
            network_backend=wire,
        )
        request = httpcore2.Request(
            "GET",
            httpcore2.URL(scheme=scheme, host=host, port=at.port, target=at.target.encode()),
            headers=self._headers(at),
            extensions={"timeout": {"connect": CONNECT_S, "read": SILENCE_S, "write": SILENCE_S}},
        )
        if (work := WORK.get()) is not None and SCOPE.get() is None:  # a policy around us counts itself
            work.count(COUNTED_AS)
        try:
            response = await connection.handle_async_request(request)
            answer = Answer(response)
            wire.allow(2 * self.size_max + OVERHEAD_BYTES)
            yield answer
        finally:
            await connection.aclose()

    async def _addresses(self, at: Url) -> list[str]:
        if addresses.literal(at.host) is not None:
            found = [at.host]
        else:
            try:
                found = list(await self.resolve(at.host, at.port))
            except (OSError, UnicodeError) as error:
                raise Transient(f"{at.host} has no address: {error}", code="dns_failed") from error
            if not found:
                raise Transient(f"{at.host} has no address", code="dns_failed")
        return addresses.checked(at.host, found, allow_loopback=self.allow_loopback)

    def _headers(self, at: Url) -> list[tuple[str, str]]:
        headers = [
            ("Host", at.authority),
            ("User-Agent", user_agent()),
            ("Accept", ACCEPT),
            ("Accept-Encoding", "gzip, deflate"),
            ("Connection", "close"),
        ]
        for name, value in (("If-None-Match", self.etag), ("If-Modified-Since", self.last_modified)):
            if value is not None and (sound := validator(value)) is not None:
                headers.append((name, sound))
        return headers

    async def _take(self, answer: Answer, at: Url, left: tuple[str, ...]) -> Fetched | NotModified:
        etag, last_modified = answer.validator("etag"), answer.validator("last-modified")
        if answer.status == NOT_MODIFIED and (self.etag or self.last_modified):
            return NotModified(str(at), etag or self.etag, last_modified or self.last_modified)
        if not 200 <= answer.status < 300 or answer.status == PARTIAL:
            raise answer.refusal(at.host)
        if answer.length > self.size_max:
            raise Permanent(
                "too_large", f"{answer.length} bytes announced, at most {self.size_max} are taken"
            )
        encoding = encoding_of(answer.all("content-encoding"))
        async with aclosing(answer.parts()) as parts:
            sink = await receive(parts, encoding, self.size_max, self.folder)
        if sink.size == 0:
            sink.file.close()
            raise Permanent("content_empty", f"{at.host} answered {answer.status} without content")
        media_type, declared = answer.kind()
        return Fetched(
            str(at), answer.status, media_type, declared, sink.file, sink.size, etag, last_modified, left, sink.path
        )  # fmt: skip


def user_agent() -> str:
    """Who asks, and where its operator can be reached (PERDURE_CONTACT)."""
    contact = current().contact
    return f"Perdure/{__version__}" + (f" (+{contact})" if contact else "")


def _told(error: Exception) -> PerdureError:
    verdict = classify(error)
    message = f"{type(error).__name__}: {error}"[:MESSAGE_CHARS_MAX]
    if verdict.reason == "certificate":
        return Permanent("certificate_invalid", message)
    if isinstance(error, httpcore2.TimeoutException):
        return Transient(message, code="fetch_timeout")
    if isinstance(error, httpcore2.ProtocolError):
        return Transient(message, code="response_broken")
    return Transient(message, code="connection_failed")
