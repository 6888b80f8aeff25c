"""What errors mean that real libraries raise on real sockets: the same, whichever library it is."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import botocore.exceptions
import botocore.session
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3
from botocore.config import Config

from perdure.calls.classify import classify
from perdure.calls.verdict import Verdict
from tests.calls.errors_at_hand import closed_port, raised
from tests.calls.openai_server import Fault, OpenAIServer

SHORT_S = 2.0  # the request arrives earlier
LONG_S = 20.0  # never reached, however busy the machine is


def via_openai(url: str, timeout_s: float = LONG_S) -> object:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=timeout_s) as client:
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def via_httpx(url: str, timeout_s: float = LONG_S) -> object:
    return httpx.post(url, json={}, timeout=timeout_s).raise_for_status()


def via_httpx2(url: str, timeout_s: float = LONG_S) -> object:
    return httpx2.post(url, json={}, timeout=timeout_s).raise_for_status()


def via_requests(url: str, timeout_s: float = LONG_S) -> object:
    response = requests.post(url, json={}, timeout=timeout_s)
    response.raise_for_status()
    return response


def via_urllib3(url: str, timeout_s: float = LONG_S) -> object:
    return urllib3.PoolManager().request("POST", url, timeout=timeout_s, retries=urllib3.Retry(0, read=False))


def via_urllib(url: str, timeout_s: float = LONG_S) -> object:
    return urllib.request.urlopen(url, data=b"{}", timeout=timeout_s).read()


def via_botocore(url: str, timeout_s: float = LONG_S) -> object:
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=timeout_s, connect_timeout=timeout_s),
    )
    return client.list_objects_v2(Bucket="any")


async def via_httpx2_async(url: str, timeout_s: float = LONG_S) -> object:
    async with httpx2.AsyncClient(timeout=timeout_s) as client:
        return (await client.post(url, json={})).raise_for_status()


def via_asyncio(url: str, timeout_s: float = LONG_S) -> object:
    return asyncio.run(via_httpx2_async(url, timeout_s))


WAYS: list[Callable[..., object]] = [
    via_openai, via_httpx, via_httpx2, via_asyncio, via_requests, via_urllib3, via_urllib, via_botocore,
]  # fmt: skip
every_way = pytest.mark.parametrize("way", WAYS)
CARRYING_STATUS = [way for way in WAYS if way is not via_urllib3]


@every_way
def test_a_refused_connection_was_never_carried_out(way: Callable[..., object]) -> None:
    with closed_port() as url:
        verdict = classify(raised(lambda: way(url)))
    assert (verdict.kind, verdict.reason) == ("retryable", "connection_refused")
    assert verdict.outage
    assert not verdict.processed


@every_way
def test_a_reset_connection_may_have_been_carried_out(way: Callable[..., object]) -> None:
    with OpenAIServer([Fault(reset=True)]) as server:
        verdict = classify(raised(lambda: way(server.origin)))
        assert len(server.requests) == 1
    assert verdict.kind == "retryable"
    assert verdict.reason in {"connection_reset", "disconnected"}
    assert verdict.outage
    assert verdict.processed


@every_way
def test_no_answer_in_time_may_have_been_carried_out(way: Callable[..., object]) -> None:
    with OpenAIServer([Fault(hang=True)]) as server:
        verdict = classify(raised(lambda: way(server.origin, SHORT_S)))
        assert len(server.requests) == 1
    assert verdict.kind == "retryable"
    assert verdict.reason in {"read_timeout", "timeout"}
    assert verdict.outage
    assert verdict.processed


@pytest.mark.parametrize("way", [via_httpx, via_httpx2, via_requests, via_urllib, via_openai])
def test_an_answer_cut_in_the_middle(way: Callable[..., object]) -> None:
    with OpenAIServer([Fault(cut=True)]) as server:
        verdict = classify(raised(lambda: way(f"{server.origin}/chat/completions")))
    assert verdict.again
    assert verdict.outage
    assert verdict.processed


@pytest.mark.parametrize("way", CARRYING_STATUS)
def test_statuses_through_every_library(way: Callable[..., object]) -> None:
    with OpenAIServer([Fault(503), Fault(429, headers={"Retry-After": "7"}), Fault(422)]) as server:
        away, busy, wrong = (classify(raised(lambda: way(server.origin))) for _ in range(3))
    assert away == Verdict("retryable", "status_503", outage=True, status=503)
    assert busy == Verdict("rate_limited", "status_429", hint_s=7.0, processed=False, status=429)
    assert wrong == Verdict("permanent", "status_422", status=422)


QUOTA = {"error": {"message": "You exceeded …", "type": "insufficient_quota", "code": "insufficient_quota"}}


@pytest.mark.parametrize("way", [via_openai, via_httpx, via_httpx2, via_requests])
def test_a_spent_quota_is_permanent_though_its_status_is_429(way: Callable[..., object]) -> None:
    with OpenAIServer([Fault(429, body=QUOTA, headers={"retry-after": "1"})]) as server:
        verdict = classify(raised(lambda: way(server.origin)))
    assert verdict == Verdict("permanent", "quota", status=429, code="insufficient_quota")


@pytest.mark.parametrize(
    ("status", "wish", "kind", "reason"),
    [
        (500, "false", "retryable", "status_500"),
        (429, "FALSE", "rate_limited", "status_429"),
        (409, "true", "retryable", "told_to_retry"),
        (429, "true", "rate_limited", "status_429"),
        (503, "true", "retryable", "status_503"),
        (400, "perhaps", "permanent", "status_400"),
    ],
)
def test_the_wish_of_the_service_goes_before_its_status(
    status: int, wish: str, kind: str, reason: str
) -> None:
    with OpenAIServer([Fault(status, headers={"x-should-retry": wish})]) as server:
        verdict = classify(raised(lambda: via_openai(server.origin)))
    assert (verdict.kind, verdict.reason, verdict.status) == (kind, reason, status)
    assert verdict.unwanted == (wish.lower() == "false")


def test_unavailable_with_a_time_was_not_carried_out() -> None:
    with OpenAIServer([Fault(503, headers={"retry-after-ms": "250"})]) as server:
        verdict = classify(raised(lambda: via_openai(server.origin)))
    assert (verdict.hint_s, verdict.processed, verdict.outage) == (0.25, False, True)


@contextmanager
def tls_server(*, speaks: bytes) -> Iterator[str]:
    """Somebody who answers a TLS handshake with these bytes and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4_096)
                connection.sendall(speaks)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(90)


@pytest.mark.parametrize("way", [via_httpx2, via_requests, via_urllib])
def test_a_handshake_that_is_cut_off_may_pass(way: Callable[..., object]) -> None:
    with tls_server(speaks=b"") as url:
        verdict = classify(raised(lambda: way(url)))
    assert verdict.again
    assert verdict.outage
    assert verdict.reason in {"tls_cut", "tls", "connection_reset"}
