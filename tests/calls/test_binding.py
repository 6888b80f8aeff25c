"""Clients make exactly one request per call once they are bound, counted where the requests arrive."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable
from typing import Any

import botocore.session
import httpx
import httpx2
import openai
import pytest
import requests
import requests.adapters
import requests.exceptions
import urllib3
from botocore.config import Config

from perdure.calls.binding import SdkRetries, bind
from tests.calls.errors_at_hand import closed_port
from tests.calls.openai_server import Fault, OpenAIServer

HELLO: Any = [{"role": "user", "content": "hello"}]
AWAY = Fault(503, headers={"retry-after-ms": "1"})


@pytest.fixture
def quiet() -> Any:
    """No warning may be given."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", SdkRetries)
        yield


def ask(client: openai.OpenAI) -> str | None:
    return client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content


# --- the server itself ------------------------------------------------------------------------


def test_the_server_speaks_to_the_real_client() -> None:
    with OpenAIServer() as server, openai.OpenAI(base_url=server.url, api_key="any") as client:
        assert ask(client) == "hello"
        vectors = client.embeddings.create(model="e", input=["a", "bcd"]).data
        assert [vector.embedding for vector in vectors] == [[1.0] * 3, [3.0] * 3]
        assert [request.path for request in server.requests] == ["/v1/chat/completions", "/v1/embeddings"]
        assert server.requests[0].body["messages"] == HELLO


def test_the_server_plays_its_script_in_order() -> None:
    script = [
        Fault(429, headers={"Retry-After": "0"}),
        Fault(reset=True),
        Fault(body=b"{", delay_s=0.05),
        Fault(404),
    ]
    with OpenAIServer(script) as server:
        assert httpx2.get(server.url).headers["retry-after"] == "0"
        with pytest.raises(httpx2.ReadError):
            httpx2.get(server.url)
        started = time.monotonic()
        assert httpx2.get(server.url).content == b"{"
        assert time.monotonic() - started >= 0.05
        assert httpx2.get(server.url).json()["error"]["message"] == "status 404"
        assert len(server.requests) == 4
        assert all(gap_s > 0 for gap_s in server.gaps_s)


def test_a_hanging_request_does_not_keep_the_server_open() -> None:
    with OpenAIServer([Fault(hang=True)]) as server, pytest.raises(httpx2.ReadTimeout):
        httpx2.get(server.url, timeout=httpx2.Timeout(60, read=0.05))


# --- openai -----------------------------------------------------------------------------------


def test_openai_retries_by_itself_until_it_is_bound(quiet: None) -> None:
    with OpenAIServer([AWAY] * 4) as server, openai.OpenAI(base_url=server.url, api_key="any") as client:
        with pytest.raises(openai.InternalServerError):
            ask(client)
        assert len(server.requests) == 3
        assert bind(client)
        with pytest.raises(openai.InternalServerError):
            ask(client)
        assert len(server.requests) == 4
        assert bind(client)  # again changes nothing
        assert ask(client.with_options(timeout=5)) == "hello"
        assert client.max_retries == 0


def test_openai_async_and_subclasses(quiet: None) -> None:
    class Ours(openai.AsyncOpenAI):
        pass

    async def run(server: OpenAIServer) -> None:
        async with Ours(base_url=server.url, api_key="any") as client:
            assert bind(client)
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="m", messages=HELLO)

    with OpenAIServer([AWAY]) as server:
        asyncio.run(run(server))
        assert len(server.requests) == 1


# --- httpx, httpx2 ------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_transports_connect_once(library: Any, quiet: None) -> None:
    mounts = {"http://other": library.HTTPTransport(retries=2), "http://none": None}
    with library.Client(transport=library.HTTPTransport(retries=5), mounts=mounts) as client:
        assert bind(client)
        pools = [client._transport._pool, mounts["http://other"]._pool]
        assert [pool._retries for pool in pools] == [0, 0]
        with closed_port() as url, pytest.raises(library.ConnectError):
            client.get(url)


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_async_clients_and_those_that_do_not_connect(library: Any, quiet: None) -> None:
    client = library.AsyncClient(transport=library.AsyncHTTPTransport(retries=5))
    assert bind(client)
    assert client._transport._pool._retries == 0
    assert bind(library.Client(transport=library.MockTransport(lambda request: library.Response(200))))


def test_a_transport_of_somebody_else_may_retry() -> None:
    class RetryTransport(httpx2.BaseTransport):
        pass

    with pytest.warns(SdkRetries, match="RetryTransport"):
        assert not bind(httpx2.Client(transport=RetryTransport()))


# --- requests, urllib3 ----------------------------------------------------------------------------


def eager() -> urllib3.Retry:
    return urllib3.Retry(3, status_forcelist=[503], allowed_methods=None, backoff_factor=0)


def session(retries: urllib3.Retry) -> requests.Session:
    made = requests.Session()
    made.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
    return made


def test_requests_makes_one_request(quiet: None) -> None:
    with OpenAIServer([Fault(503)] * 10) as server, session(eager()) as client:
        with pytest.raises(requests.exceptions.RetryError):
            client.post(server.url, json={})
        assert len(server.requests) == 4
        assert bind(client)
        assert bind(client)
        assert client.post(server.url, json={}).status_code == 503
        assert len(server.requests) == 5


def test_requests_makes_one_request_on_a_reset(quiet: None) -> None:
    with OpenAIServer([Fault(reset=True)] * 9) as server, session(eager()) as client:
        assert bind(client)
        with pytest.raises(requests.ConnectionError):
            client.post(server.url, json={})
        assert len(server.requests) == 1


POOLS: list[Callable[[OpenAIServer], Any]] = [
    lambda server: urllib3.PoolManager(retries=eager()),
    lambda server: urllib3.PoolManager(),
    lambda server: urllib3.connection_from_url(server.origin, retries=eager()),
]


@pytest.mark.parametrize("made", POOLS)
def test_urllib3_makes_one_request(made: Callable[[OpenAIServer], Any], quiet: None) -> None:
    with OpenAIServer() as server:
        pool = made(server)
        assert pool.request("GET", server.url).status == 200  # a pool is open already when it is bound
        assert bind(pool)
        server.script.extend([Fault(503, headers={"retry-after": "0"}), Fault(reset=True)])
        assert pool.request("GET", server.url).status == 503
        with pytest.raises(urllib3.exceptions.ProtocolError):
            pool.request("GET", server.url)
        assert len(server.requests) == 3
        pool.clear() if isinstance(pool, urllib3.PoolManager) else pool.close()


def test_urllib3_still_follows_redirects(quiet: None) -> None:
    with OpenAIServer([Fault(302, headers={"location": "/v1/elsewhere"})]) as server:
        manager = urllib3.PoolManager()
        assert bind(manager)
        assert manager.request("GET", server.url).status == 200
        assert [request.path for request in server.requests] == ["/v1", "/v1/elsewhere"]
        manager.clear()


# --- botocore and the rest ------------------------------------------------------------------------


def s3(**config: Any) -> Any:
    return botocore.session.get_session().create_client(
        "s3",
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(**config),
    )


@pytest.mark.parametrize("retries", [{"total_max_attempts": 1}, {"max_attempts": 0, "mode": "standard"}])
def test_botocore_that_was_made_without_retries_is_fine(retries: dict[str, Any], quiet: None) -> None:
    assert bind(s3(retries=retries))


@pytest.mark.parametrize("config", [{}, {"retries": {"max_attempts": 2}}])
def test_botocore_that_retries_cannot_be_changed_and_says_how_to_make_it(config: dict[str, Any]) -> None:
    with pytest.warns(SdkRetries, match="total_max_attempts"):
        assert not bind(s3(**config))


def test_google_clients_cannot_be_changed() -> None:
    client = type("ImageAnnotatorClient", (), {"__module__": "google.cloud.vision_v1"})()
    with pytest.warns(SdkRetries, match="retry=None"):
        assert not bind(client)


@pytest.mark.parametrize("client", [object(), None, "client", 5])
def test_what_is_not_known_is_told(client: object) -> None:
    with pytest.warns(SdkRetries):
        assert not bind(client)


def test_a_client_whose_inside_has_changed_is_told() -> None:
    client = type("Session", (), {"__module__": "requests.sessions"})()
    with pytest.warns(SdkRetries, match=r"requests\.sessions\.Session"):
        assert not bind(client)


def test_aiohttp_does_not_repeat_on_a_closed_connection(quiet: None) -> None:
    client = type("ClientSession", (), {"__module__": "aiohttp.client", "_retry_connection": True})()
    assert bind(client)
    assert client._retry_connection is False
