"""The fetcher against a real server on loopback that does everything wrong. Nothing leaves this machine."""

from __future__ import annotations

import asyncio
import gzip
import resource
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate
from functools import cache
from io import BytesIO
from ipaddress import IPv4Network, ip_address
from typing import Any

import httpcore2
import pytest

from perdure.calls import Policy, addresses, fetch_body
from perdure.calls.fetch import SILENCE_S, Fetched, NotModified, fetch
from perdure.calls.fetch_body import Inflater
from perdure.calls.wire import resolve
from perdure.core.scope import WORK, Work
from perdure.errors import PerdureError, Permanent, RateLimited, RetryLater, Transient
from perdure.testing import no_wait
from tests.calls.web import CERTIFICATE, Hit, Route, Web

PAGE = b"<p>hello</p>"


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        server.page("/", PAGE, content_type="text/html; charset=UTF-8")
        yield server


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were connected to; any other than loopback fails the test."""
    connect = httpcore2.AnyIOBackend.connect_tcp
    asked: list[str] = []

    async def guarded(self: Any, host: str, *rest: Any) -> Any:
        asked.append(host)
        assert ip_address(host).is_loopback, f"{host} would have been connected to"
        return await connect(self, host, *rest)

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", guarded)
    return asked


async def here(host: str, port: int) -> list[str]:
    """Every name is this machine."""
    return ["127.0.0.1"]


def got(url: str, **options: Any) -> Fetched:
    answer = asyncio.run(fetch(url, **{"allow_loopback": True, "resolve": here, "total_s": 10.0, **options}))
    assert isinstance(answer, Fetched)
    return answer


def failure(url: str, **options: Any) -> PerdureError:
    with pytest.raises(PerdureError) as raised:
        got(url, **options)
    return raised.value


# --- the ordinary ----------------------------------------------------------------------------


def test_a_page_is_fetched_with_all_that_is_known_of_it(web: Web) -> None:
    web.page(
        "/a",
        PAGE,
        content_type='Text/HTML; Charset="UTF-8"',
        etag='W/"7"',
        last_modified="Mon, 16 Nov 2026 01:00:00 GMT",
    )
    answer = got(web.url("/a?b=1#c"))
    assert (answer.url, answer.status, answer.content, answer.size) == (
        web.url("/a?b=1"),
        200,
        PAGE,
        len(PAGE),
    )
    assert (answer.media_type, answer.charset, answer.text().text) == ("text/html", "utf-8", PAGE.decode())
    assert (answer.etag, answer.last_modified) == ('W/"7"', "Mon, 16 Nov 2026 01:00:00 GMT")
    assert answer.redirects == ()
    assert web.paths == ["/a?b=1"]


def test_the_request_says_who_asks_and_carries_nothing_of_ours(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    monkeypatch.setenv("PERDURE_CONTACT", "https://our.org/fetcher")
    got(web.url(host="good.test"))
    [hit] = web.hits
    assert hit.method == "GET"
    assert hit.headers["host"] == f"good.test:{web.port}"
    assert hit.headers["user-agent"].startswith("Perdure/")
    assert hit.headers["user-agent"].endswith(" (+https://our.org/fetcher)")
    assert hit.headers["accept-encoding"] == "gzip, deflate"
    assert set(hit.headers) == {"host", "user-agent", "accept", "accept-encoding", "connection"}


def test_cookies_are_not_kept(web: Web) -> None:
    web.page("/a", b"", 302, location="/", set_cookie="a=1")
    got(web.url("/a"))
    got(web.url("/"))
    assert all("cookie" not in hit.headers for hit in web.hits)


def test_large_content_lies_on_disk(web: Web) -> None:
    content = bytes(range(256)) * 16_384
    web.page("/", content)
    answer = got(web.url())
    assert not isinstance(answer.file, BytesIO)
    assert answer.content == answer.content == content
    answer.close()
    assert answer.file.closed


@pytest.mark.parametrize(
    ("header", "kind"),
    [("application/pdf", "application/pdf"), ("nonsense", ""), ("", ""), ("a/b/c", ""), ("<script>", "")],
)
def test_a_media_type_is_one_or_none(web: Web, header: str, kind: str) -> None:
    web.page("/", PAGE, content_type=header)
    assert got(web.url()).media_type == kind


def test_chunked_and_unmeasured_answers_are_read(web: Web) -> None:
    def chunked(hit: Hit) -> None:
        hit.head(transfer_encoding="chunked")
        hit.send(b"3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nTrailer: 1\r\n\r\n")

    def unmeasured(hit: Hit) -> None:
        hit.send(b"HTTP/1.0 200 OK\r\n\r\nabcdefg")

    web.routes |= {"/a": chunked, "/b": unmeasured}
    assert got(web.url("/a")).content == got(web.url("/b")).content == b"abcdefg"


# --- conditional -----------------------------------------------------------------------------


def test_a_page_that_did_not_change_is_told_so(web: Web) -> None:
    web.page("/", b"", 304, etag='"2"')
    date = "Mon, 16 Nov 2026 01:00:00 GMT"
    call = fetch(web.url(), allow_loopback=True, etag='"1"', last_modified=date)
    assert asyncio.run(call) == NotModified(web.url(), '"2"', date)
    assert web.hits[0].headers["if-none-match"] == '"1"'
    assert web.hits[0].headers["if-modified-since"] == date


def test_a_304_that_nobody_asked_for_is_no_document(web: Web) -> None:
    web.page("/", b"", 304)
    assert failure(web.url()).code == "http_304"


@pytest.mark.parametrize("etag", ['"a"\r\nX-Evil: 1', "", "\x00", "ü", "x" * 2_000])
def test_an_etag_that_is_none_is_not_sent(web: Web, etag: str) -> None:
    assert got(web.url(), etag=etag).content == PAGE
    assert not {"if-none-match", "x-evil"} & set(web.hits[0].headers)


# --- redirects -------------------------------------------------------------------------------


def test_redirects_are_followed_and_remembered(web: Web) -> None:
    web.redirect("/a", "b/c", 301)
    web.redirect("/b/c", "../d", 307)
    web.redirect("/d", f"//other.test:{web.port}/e", 308)
    web.redirect("/e", web.url("/", "third.test"), 303)
    answer = got(web.url("/a"))
    assert answer.content == PAGE
    assert answer.url == web.url("/", "third.test")
    assert answer.redirects == (web.url("/a"), web.url("/b/c"), web.url("/d"), web.url("/e", "other.test"))
    assert [hit.headers["host"].partition(":")[0] for hit in web.hits[-2:]] == ["other.test", "third.test"]
    assert web.accepted == 5


def test_five_hops_are_allowed_and_no_more(web: Web) -> None:
    for hop in range(1, 7):
        web.redirect(f"/{hop}", f"/{hop - 1}" if hop > 1 else "/")
    assert got(web.url("/5")).content == PAGE
    assert failure(web.url("/6")).code == "too_many_redirects"
    assert web.paths == ["/5", "/4", "/3", "/2", "/1", "/", "/6", "/5", "/4", "/3", "/2", "/1"]


def test_a_circle_is_noticed(web: Web) -> None:
    web.redirect("/a", "/b")
    web.redirect("/b", "/a#again")
    web.redirect("/self", "")
    assert failure(web.url("/a")).code == "redirect_loop"
    assert failure(web.url("/self")).code == "redirect_loop"
    assert web.accepted == 3


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://10.0.0.1/", "address_forbidden"),
        ("http://169.254.169.254/latest/meta-data/", "address_forbidden"),
        ("//[fd00:ec2::254]/", "address_forbidden"),
        ("http://0x7f.1/", "address_forbidden"),
        ("http://private.test/", "address_forbidden"),
        ("file:///etc/passwd", "scheme_forbidden"),
        ("data:text/plain,a", "scheme_forbidden"),
        ("http://a@b/", "url_invalid"),
        ("http://[", "url_invalid"),
        ("http://good.test:22/", "port_forbidden"),
    ],
)
def test_a_redirect_to_what_is_forbidden_ends_there(
    web: Web, only_loopback: list[str], location: str, code: str
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1"] if host == "private.test" else ["127.0.0.1"]

    web.redirect("/", location)
    assert failure(web.url(), resolve=resolve).code == code
    assert web.accepted == len(only_loopback) == 1


def test_a_public_page_cannot_lead_to_loopback(
    web: Web, monkeypatch: pytest.MonkeyPatch, only_loopback: list[str]
) -> None:
    """The first hop seems public: its address is allowed by hand, and it is really our server."""
    monkeypatch.setattr(addresses, "LOOPBACK_V4", IPv4Network("127.0.0.2/32"))
    web.redirect("/", f"http://127.0.0.2:{web.port}/")
    web.redirect("/named", f"http://localhost:{web.port}/")
    web.redirect("/six", f"http://[::1]:{web.port}/")
    for path in ("/", "/named", "/six"):
        assert failure(web.url(path), allow_loopback=False).code == "address_forbidden"
    assert web.accepted == len(only_loopback) == 3


def test_the_connection_of_a_hop_ends_before_the_next_begins(web: Web) -> None:
    ended = threading.Event()

    def unfinished(hit: Hit) -> None:
        hit.head(302, location="/", content_length=1_000).send(b"half of it")
        if hit.connection.recv(1) == b"":
            ended.set()

    web.routes["/a"] = unfinished
    web.routes["/"] = lambda hit: hit.answer(200 if ended.wait(90) else 500, PAGE)
    assert got(web.url("/a")).content == PAGE


def test_a_redirect_without_a_place_is_no_document(web: Web) -> None:
    web.page("/", b"", 302)
    assert failure(web.url()).code == "http_302"


# --- names -----------------------------------------------------------------------------------


def test_a_name_is_resolved_once_and_its_address_is_the_one_connected_to(
    web: Web, only_loopback: list[str]
) -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])  # what a rebinding name would say

    async def rebinding(host: str, port: int) -> list[str]:
        return next(answers)

    assert got(web.url(host="rebind.test"), resolve=rebinding).content == PAGE
    assert only_loopback == ["127.0.0.1"]
    assert next(answers) == ["10.0.0.1"]


def test_each_hop_resolves_anew(web: Web) -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def rebinding(host: str, port: int) -> list[str]:
        return next(answers)

    web.redirect("/a", "/")
    assert failure(web.url("/a", "rebind.test"), resolve=rebinding).code == "address_forbidden"
    assert web.accepted == 1


def test_the_next_address_is_tried_when_one_does_not_answer(web: Web, only_loopback: list[str]) -> None:
    async def two(host: str, port: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]

    assert got(web.url(host="two.test"), resolve=two).content == PAGE
    assert only_loopback == ["127.0.0.9", "127.0.0.1"]


@pytest.mark.parametrize(
    "error", [socket.gaierror(socket.EAI_NONAME, "unknown"), OSError("no network"), None]
)
def test_a_name_without_address_may_have_one_next_time(error: OSError | None) -> None:
    async def nowhere(host: str, port: int) -> list[str]:
        if error is not None:
            raise error
        return []

    refused = failure("http://good.test/", resolve=nowhere)
    assert isinstance(refused, Transient)
    assert refused.code == "dns_failed"


def test_the_system_knows_this_machine() -> None:
    assert {"127.0.0.1", "::1"} & set(asyncio.run(resolve("localhost", 80)))


def test_what_the_system_does_not_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **options: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    async def told() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", unknown)
            with pytest.raises(socket.gaierror):
                await resolve("good.test", 80)

    asyncio.run(told())


def test_a_resolver_that_hangs_meets_the_deadline() -> None:
    async def hanging(host: str, port: int) -> list[str]:
        await asyncio.sleep(60)
        return []

    assert failure("http://good.test/", resolve=hanging, total_s=0.1).code == "fetch_timeout"


# --- answers that are no document ------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 418, 451, 206, 300])
def test_an_answer_that_will_not_change_is_permanent(web: Web, status: int) -> None:
    web.page("/", PAGE, status)
    refused = failure(web.url())
    assert isinstance(refused, Permanent)
    assert refused.code == f"http_{status}"
    assert web.accepted == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_an_answer_that_may_change_is_transient(web: Web, status: int) -> None:
    web.page("/", PAGE, status)
    refused = failure(web.url())
    assert isinstance(refused, Transient)
    assert refused.code == f"http_{status}"
    assert web.accepted == 1


IN_A_MINUTE = "a date in a minute"


@pytest.mark.parametrize(
    ("status", "value", "kind", "delay_s"),
    [
        (429, "120", RateLimited, 120), (429, "0", RateLimited, 1), (503, "7", RetryLater, 7),
        (503, IN_A_MINUTE, RetryLater, 60), (429, "soon", Transient, None),
        (503, "-1", Transient, None), (502, "9", Transient, 9), (404, "9", Permanent, None),
    ],
)  # fmt: skip
def test_a_host_may_name_the_time(
    web: Web, status: int, value: str, kind: type, delay_s: float | None
) -> None:
    sent_s = time.time() - 3_600  # the host's clock is an hour late, and counts
    value = formatdate(sent_s + 60, usegmt=True) if value == IN_A_MINUTE else value
    web.page("/", PAGE, status, retry_after=value, date=formatdate(sent_s, usegmt=True))
    refused = failure(web.url())
    assert type(refused) is kind
    assert refused.code == f"http_{status}"
    assert (getattr(refused, "delay_s", None) or getattr(refused, "retry_after_s", None)) == delay_s


@pytest.mark.parametrize("status", [200, 204])
def test_nothing_is_no_document(web: Web, status: int) -> None:
    web.routes["/"] = lambda hit: hit.head(status) if status == 204 else hit.answer(status)
    refused = failure(web.url())
    assert (type(refused), refused.code) == (Permanent, "content_empty")


# --- hosts that misbehave --------------------------------------------------------------------

BROKEN: dict[str, Route] = {
    "cut": lambda hit: hit.head(content_length=1_000).send(b"some"),
    "reset at once": Hit.reset,
    "reset within": lambda hit: hit.head(content_length=1_000).send(b"some").reset(),
    "closed at once": lambda hit: None,
    "garbage": lambda hit: hit.send(b"\x00\x01\x02 nonsense\r\n\r\n"),
    "half a head": lambda hit: hit.send(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "two lengths": lambda hit: hit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "length of words": lambda hit: hit.send(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nab"),
    "negative length": lambda hit: hit.send(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nab"),
    "bad chunk": lambda hit: hit.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n"),
    "cut chunk": lambda hit: hit.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
    "bad header": lambda hit: hit.send(b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"),
    "no gzip": lambda hit: hit.answer(200, b"plain text", content_encoding="gzip"),
    "cut gzip": lambda hit: hit.answer(200, gzip.compress(PAGE * 99)[:-9], content_encoding="gzip"),
    "damaged gzip": lambda hit: hit.answer(200, gzip.compress(PAGE)[:-8] + b"12345678", content_encoding="gzip"),
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_answer_is_no_document_and_may_be_whole_next_time(web: Web, how: str) -> None:
    web.routes["/"] = BROKEN[how]
    refused = failure(web.url())
    assert isinstance(refused, Transient)
    assert refused.code in ("response_broken", "connection_failed")
    assert web.accepted == 1


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refused = failure(f"http://127.0.0.1:{port}/")
    assert (type(refused), refused.code) == (Transient, "connection_failed")


def slowly_on(hit: Hit) -> None:
    time.sleep(0.15)
    hit.answer(302, location=f"{hit.path}a")


SLOW: dict[str, Route] = {
    "hang": Hit.hang,
    "hang within": lambda hit: hit.head(content_length=10).hang(),
    "drip": lambda hit: hit.head(content_length=10_000).drip(b"x", 0.02),
    "drip of headers": lambda hit: hit.send(b"HTTP/1.1 200 OK\r\n").drip(b"a: b\r\n", 0.02),
    "drip of one header": lambda hit: hit.send(b"HTTP/1.1 200 OK\r\na: ").drip(b"b", 0.02),
    "drip of chunks": lambda hit: hit.head(transfer_encoding="chunked").drip(b"1\r\nx\r\n", 0.02),
    "drip of hints": lambda hit: hit.drip(b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.02),
    "slow redirects": slowly_on,
}  # fmt: skip


@pytest.mark.parametrize("how", SLOW)
def test_the_deadline_holds_for_everything_together(web: Web, how: str) -> None:
    web.routes |= {"/" + "a" * hops: SLOW[how] for hops in range(9)}
    began_s = time.monotonic()
    refused = failure(web.url(), total_s=0.5)
    assert time.monotonic() - began_s < SILENCE_S - 5
    assert (type(refused), refused.code) == (Transient, "fetch_timeout")


def test_a_deadline_around_it_holds_too(web: Web) -> None:
    web.routes["/"] = Hit.hang
    policy = Policy("deadline_test", retries=0, total_s=0.3, on_exhausted="raise")
    began_s = time.monotonic()
    with pytest.raises((Transient, TimeoutError)):
        got(web.url(), policy=policy, total_s=600)
    assert time.monotonic() - began_s < SILENCE_S - 5


def test_cancelling_ends_the_connection(web: Web) -> None:
    web.routes["/"] = lambda hit: hit.head(content_length=10).drip(b"", 0.01)

    async def cancelled() -> None:
        task = asyncio.create_task(fetch(web.url(), allow_loopback=True))
        while not web.hits:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        web.hits[0].connection.settimeout(60)
        assert await asyncio.to_thread(web.hits[0].connection.recv, 1) == b""

    asyncio.run(cancelled())


# --- too much --------------------------------------------------------------------------------


def flood(*pieces: bytes) -> Route:
    return lambda hit: hit.send(b"".join(pieces[:-1])).flood(pieces[-1])


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TOO_MUCH: dict[str, tuple[Route, str]] = {
    "announced": (lambda hit: hit.head(content_length=20 * 1024**3), "too_large"),
    "endless": (flood(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536), "too_large"),
    "endless chunks": (
        flood(CHUNKED, b"1000\r\n" + b"x" * 4096 + b"\r\n"), "too_large"),
    "endless headers": (flood(b"HTTP/1.1 200 OK\r\n", b"a: " + b"b" * 1_000 + b"\r\n"), "headers_too_large"),
    "one endless header": (flood(b"HTTP/1.1 200 OK\r\na: ", b"b" * 1_000), "headers_too_large"),
    "endless hints": (flood(b"HTTP/1.1 103 Early Hints\r\n\r\n"), "headers_too_large"),
    "many headers": (lambda hit: hit.send(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 201 + b"\r\n"), "headers_too_large"),
    "large headers": (lambda hit: hit.head(a="b" * 33_000), "headers_too_large"),
}  # fmt: skip


@pytest.mark.parametrize("how", TOO_MUCH)
def test_what_does_not_end_is_ended(web: Web, how: str) -> None:
    web.routes["/"], code = TOO_MUCH[how]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = failure(web.url(), size_max=4 * 1024 * 1024, total_s=30.0)
    assert (type(refused), refused.code) == (Permanent, code)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize(
    ("chunk", "why"),
    [(b"1;" + b"x" * 9_000 + b"\r\nx\r\n", "does not end"), (b"1\r\nx\r\n" * 1_000, "parts of a few bytes")],
)
def test_chunks_that_are_mostly_wrapping_are_ended_early(web: Web, chunk: bytes, why: str) -> None:
    web.routes["/"] = flood(CHUNKED, chunk)
    refused = failure(web.url(), size_max=4 * 1024 * 1024)
    assert (type(refused), refused.code) == (Permanent, "too_large")
    assert why in str(refused)


@cache
def bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    zeros = bytes(1024 * 1024)
    return b"".join([*(packer.compress(zeros) for _ in range(size // len(zeros))), packer.flush()])


@pytest.mark.parametrize("size_max", [1024 * 1024, 1024**4])
def test_a_bomb_is_stopped_by_its_size_and_by_its_ratio(web: Web, size_max: int) -> None:
    packed = bomb(128 * 1024 * 1024)
    assert len(packed) < 150_000
    web.page("/", packed, content_encoding="gzip")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = failure(web.url(), size_max=size_max)
    assert (type(refused), refused.code) == (Permanent, "too_large")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_the_limit_is_exact(web: Web) -> None:
    web.page("/", b"x" * 1_000)
    web.page("/packed", gzip.compress(b"x" * 1_000), content_encoding="gzip")
    for path in ("/", "/packed"):
        assert got(web.url(path), size_max=1_000).size == 1_000
        assert failure(web.url(path), size_max=999).code == "too_large"


# --- packed content --------------------------------------------------------------------------

TEXT = b"".join(b"line %d\n" % number for number in range(100_000))


def raw(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(TEXT)), ("x-gzip", gzip.compress(TEXT)), ("GZIP, identity", gzip.compress(TEXT)),
        ("gzip", gzip.compress(TEXT[:99]) + gzip.compress(TEXT[99:])), ("gzip", gzip.compress(TEXT) + bytes(512)),
        ("deflate", zlib.compress(TEXT)), ("deflate", raw(TEXT)), ("identity", TEXT), ("", TEXT),
    ],
)  # fmt: skip
def test_packed_content_is_unpacked(web: Web, encoding: str, packed: bytes) -> None:
    web.page("/", packed, content_encoding=encoding)
    with closing(got(web.url())) as answer:
        assert answer.content == TEXT


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "aws-chunked", "gzip;q=1"])
def test_what_was_not_asked_for_is_not_guessed(web: Web, encoding: str) -> None:
    web.page("/", PAGE, content_encoding=encoding)
    refused = failure(web.url())
    assert (type(refused), refused.code) == (Permanent, "encoding_unknown")


@pytest.mark.parametrize("step", [7, 1_000, 1_000_000])
def test_no_piece_is_lost_or_larger_than_agreed(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_body, "PIECE_BYTES_MAX", 1_000)
    packed = gzip.compress(TEXT + bytes(300_000))
    inflater = Inflater()
    parts = [packed[at : at + step] for at in range(0, len(packed), step)]
    pieces = [piece for part in parts for piece in inflater.pieces(part)]
    assert max(map(len, pieces)) == 1_000
    assert b"".join(pieces) == TEXT + bytes(300_000)
    assert inflater.finished


@pytest.mark.parametrize("size", range(990, 1_300, 10))
def test_what_the_unpacker_still_holds_comes_out(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_body, "PIECE_BYTES_MAX", 100)
    inflater = Inflater()
    assert b"".join(inflater.pieces(raw(bytes(size)))) == bytes(size)
    assert inflater.finished


# --- TLS -------------------------------------------------------------------------------------


@pytest.fixture
def secure() -> Iterator[Web]:
    with Web(tls=True) as server:
        server.page("/", PAGE)
        yield server


def test_the_certificate_is_that_of_the_name_not_of_the_address(secure: Web) -> None:
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    assert got(secure.url(host="good.test"), tls=trusting).content == PAGE
    assert secure.names == ["good.test"]
    for host in ("other.test", "127.0.0.1"):
        refused = failure(secure.url(host=host), tls=trusting)
        assert (type(refused), refused.code) == (Permanent, "certificate_invalid")
    assert len(secure.hits) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(secure: Web) -> None:
    assert failure(secure.url(host="good.test")).code == "certificate_invalid"
    assert not secure.hits


def test_a_redirect_to_another_name_needs_its_certificate(secure: Web) -> None:
    secure.redirect("/", secure.url("/", "other.test"))
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    assert failure(secure.url(host="good.test"), tls=trusting).code == "certificate_invalid"
    assert secure.names == ["good.test", "other.test"]


def test_a_plain_server_asked_for_tls_is_transient(web: Web) -> None:
    refused = failure(web.url().replace("http:", "https:"))
    assert isinstance(refused, Transient)


# --- with the rest ---------------------------------------------------------------------------


def test_a_host_is_asked_once_and_each_request_is_counted(web: Web) -> None:
    web.redirect("/a", "/b")
    web.page("/b", PAGE, 503)
    work = Work("doc-doc", "doc", "org", "pipeline", "fetch", 1)
    token = WORK.set(work)
    try:
        assert failure(web.url("/a")).code == "http_503"
    finally:
        WORK.reset(token)
    assert work.requests == {"fetch": 2}
    assert web.paths == ["/a", "/b"]


def test_a_policy_may_own_the_retries(web: Web) -> None:
    script = iter([503, 200])
    web.routes["/"] = lambda hit: hit.answer(next(script), PAGE)
    work = Work("doc-doc", "doc", "org", "pipeline", "fetch", 1)
    token = WORK.set(work)
    try:
        with no_wait():
            assert got(web.url(), policy=Policy("archive_test", retries=1)).content == PAGE
    finally:
        WORK.reset(token)
    assert work.requests == {"archive_test": 2}
