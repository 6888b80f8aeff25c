"""Real clients against a real server that fails: requests exactly as the policy says, no wait shorter than asked."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Any

import httpx
import httpx2
import openai
import pytest
import requests

from perdure.calls import Dependency, FullJitter, Limiter, Policy, bind
from tests.calls.openai_server import OK, Fault, OpenAIServer
from tests.calls.test_hints import retry_body

HELLO: Any = [{"role": "user", "content": "hello"}]
TIMEOUT_S = 0.5
RETRIES = 2


class Calm(Limiter):
    """Does not space requests: what is counted and measured is the policy alone."""

    __slots__ = ()

    def failed(self, now_s: float) -> None:
        return

    def throttled(self, now_s: float, hint_s: float | None = None) -> None:
        return


def ask_openai(policy: Policy, url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="any", timeout=TIMEOUT_S) as client:
        assert policy.bind(client)
        policy.call(client.chat.completions.create, model="m", messages=HELLO)


async def ask_async_openai(policy: Policy, url: str) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key="any", timeout=TIMEOUT_S) as client:
        assert policy.bind(client)
        await policy.acall(client.chat.completions.create, model="m", messages=HELLO)


def ask_anthropic(policy: Policy, url: str) -> None:
    import anthropic  # here and below: every process that collects tests would pay for them

    with anthropic.Anthropic(base_url=url, api_key="any", timeout=TIMEOUT_S) as client:
        assert policy.bind(client)
        policy.call(client.messages.create, model="m", messages=HELLO, max_tokens=9)


async def ask_async_anthropic(policy: Policy, url: str) -> None:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=url, api_key="any", timeout=TIMEOUT_S) as client:
        assert policy.bind(client)
        await policy.acall(client.messages.create, model="m", messages=HELLO, max_tokens=9)


def made_genai(url: str) -> Any:
    from google import genai

    options = genai.types.HttpOptions(base_url=url, timeout=int(TIMEOUT_S * 1000))
    return genai.Client(api_key="any", http_options=options)


def ask_genai(policy: Policy, url: str) -> None:
    client = made_genai(url)
    assert policy.bind(client)
    policy.call(client.models.generate_content, model="m", contents="hello")
    client.close()


async def ask_async_genai(policy: Policy, url: str) -> None:
    client = made_genai(url)
    assert policy.bind(client)
    try:
        await policy.acall(client.aio.models.generate_content, model="m", contents="hello")
    finally:
        await client.aio.aclose()


def ask_boto3(policy: Policy, url: str) -> None:
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": 1},
        read_timeout=TIMEOUT_S,
        connect_timeout=TIMEOUT_S,
        s3={"addressing_style": "path"},
    )
    client = boto3.client(
        "s3", endpoint_url=url, region_name="x", aws_access_key_id="a", aws_secret_access_key="b", config=config
    )  # fmt: skip
    assert policy.bind(client)
    policy.call(lambda: client.get_object(Bucket="b", Key="k")["Body"].read())


def ask_storage3(policy: Policy, url: str) -> None:
    import storage3

    client = storage3.SyncStorageClient(f"{url}/", {}, http_client=httpx.Client(timeout=TIMEOUT_S))
    assert policy.bind(client)
    policy.call(client.from_("bucket").download, "name")


def ask_httpx2(policy: Policy, url: str) -> None:
    with httpx2.Client(timeout=TIMEOUT_S) as client:
        assert policy.bind(client)
        policy.call(lambda: client.get(url).raise_for_status().json())


async def ask_async_httpx2(policy: Policy, url: str) -> None:
    async def once() -> Any:
        return (await client.get(url)).raise_for_status().json()

    async with httpx2.AsyncClient(timeout=TIMEOUT_S) as client:
        assert policy.bind(client)
        await policy.acall(once)


def ask_requests(policy: Policy, url: str) -> None:
    def once() -> Any:
        answer = client.get(url, timeout=TIMEOUT_S)
        answer.raise_for_status()
        return answer.json()

    with requests.Session() as client:
        assert policy.bind(client)
        policy.call(once)


async def ask_aiohttp(policy: Policy, url: str) -> None:
    import aiohttp

    async def once() -> Any:
        async with client.get(url) as answer:
            answer.raise_for_status()
            return await answer.json()

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as client:
        assert policy.bind(client)
        await policy.acall(once)


CLIENTS: list[Any] = [
    ask_openai, ask_anthropic, ask_genai, ask_boto3, ask_storage3, ask_httpx2, ask_requests, ask_aiohttp,
    *(
        pytest.param(one, marks=pytest.mark.full)
        for one in (ask_async_openai, ask_async_anthropic, ask_async_genai, ask_async_httpx2)
    ),
]  # fmt: skip
#: Their errors carry no body.
BODILESS = (ask_boto3, ask_aiohttp)


def run(client: Any, *faults: Fault) -> tuple[int, list[float], str]:
    """Requests that arrived, when (seconds since 1970), and the class of the error that came of it."""
    policy = Policy(
        "client",
        retries=RETRIES,
        backoff=FullJitter(0, 0),
        dependency=Dependency("client", limiter=Calm()),
        attempt_s=30,
    )
    ended = ""
    with OpenAIServer(faults) as server:
        server.always = Fault(body={}) if client in (ask_genai, ask_async_genai) else OK
        try:
            asked = client(policy, server.url)
            if asked is not None:
                asyncio.run(asked)
        except Exception as error:
            ended = type(error).__name__
        made = len(server.requests)
        assert policy.dependency.requests == made  # the ledger is right
        return made, [one.at_s + time.time() - time.monotonic() for one in server.requests], ended


def code_body(code: str) -> dict[str, Any]:
    return {"error": {"message": "no", "type": code, "code": code, "status": "RESOURCE_EXHAUSTED"}}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("fault", "made"),
    [
        (Fault(503), 1 + RETRIES),
        (Fault(reset=True), 1 + RETRIES),
        (Fault(cut=True), 1 + RETRIES),
        (Fault(401), 1),
        (Fault(400), 1),
        (Fault(404), 1),
        (Fault(429, {"x-should-retry": "false"}, code_body("rate_limit_exceeded")), 1),
        (Fault(503, {"x-should-retry": "false"}), 1),
    ],
)
def test_requests_are_made_exactly_as_the_policy_says(client: Any, fault: Fault, made: int) -> None:
    found, _, error = run(client, *[fault] * 10)
    assert (found, bool(error)) == (made, True)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("fault", "wait_s"),
    [
        (Fault(429, {"retry-after-ms": "300"}), 0.3),
        (Fault(503, {"retry-after": "0.3"}), 0.3),
    ],
)
def test_no_wait_is_shorter_than_asked(client: Any, fault: Fault, wait_s: float) -> None:
    assert_waits(client, fault, wait_s)


@pytest.mark.parametrize("client", [client for client in CLIENTS if client not in BODILESS])
def test_no_wait_is_shorter_than_a_body_asks(client: Any) -> None:
    assert_waits(client, Fault(429, body=retry_body("0.3s")), 0.3)


@pytest.mark.full
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [429, 503])
def test_seconds_and_dates_are_waited_for(client: Any, status: int) -> None:
    assert_waits(client, Fault(status, {"retry-after": "2"}), 2.0)
    asked_s = int(time.time()) + 4  # longer than it takes to make a client
    made, arrived_s, error = run(client, Fault(status, {"retry-after": formatdate(asked_s, usegmt=True)}))
    assert (made, error) == (2, "")
    assert arrived_s[1] >= asked_s


def assert_waits(client: Any, fault: Fault, wait_s: float) -> None:
    made, arrived_s, error = run(client, fault)
    assert (made, error) == (2, "")
    assert arrived_s[1] - arrived_s[0] >= wait_s - 0.001  # the two clocks are not read at the same moment


@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_that_hangs_is_given_up_and_made_again(client: Any) -> None:
    assert run(client, Fault(hang=True))[::2] == (2, "")


def test_every_client_is_quiet_once_it_is_bound() -> None:
    import anthropic

    client: Any = anthropic.Anthropic(api_key="any")
    assert bind(client)
    assert client.max_retries == 0
    client = made_genai("http://127.0.0.1:9")
    assert bind(client)
    assert client._api_client._http_options.retry_options.attempts == 1
