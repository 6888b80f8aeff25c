"""The real OpenAI SDK under a policy, against a server on loopback that fails as told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from perdure.calls import Dependency, FullJitter, Policy
from perdure.errors import RateLimited
from tests.calls.making import at_work
from tests.calls.openai_server import Fault, OpenAIServer

HELLO: ChatCompletionMessageParam = {"role": "user", "content": "hello"}
QUOTA = {
    "error": {"message": "You exceeded your quota", "code": "insufficient_quota", "type": "x", "param": None}
}


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def policy() -> Policy:
    return Policy("openai", backoff=FullJitter(0.01, 0.02), dependency=Dependency("openai"))


def ask(policy: Policy, server: OpenAIServer) -> str | None:
    client = openai.OpenAI(base_url=server.url, api_key="any")
    assert policy.bind(client)
    answer = policy.call(lambda: client.chat.completions.create(model="m", messages=[HELLO]))
    return answer.choices[0].message.content


async def ask_awaited(policy: Policy, server: OpenAIServer) -> str | None:
    client = openai.AsyncOpenAI(base_url=server.url, api_key="any")
    assert policy.bind(client)
    answer = await policy.acall(lambda: client.chat.completions.create(model="m", messages=[HELLO]))
    return answer.choices[0].message.content


def test_an_answer_is_one_request(policy: Policy, server: OpenAIServer) -> None:
    assert ask(policy, server) == "hello"
    assert len(server.requests) == 1


def test_four_requests_reach_the_server_not_twelve(policy: Policy, server: OpenAIServer) -> None:
    server.always = Fault(503)

    with at_work() as work, pytest.raises(Exception, match=r"503|does not answer"):
        ask(policy, server)

    assert len(server.requests) == 4
    assert work.requests == {"openai": 4}


def test_the_same_when_awaited(policy: Policy, server: OpenAIServer) -> None:
    server.always = Fault(500)

    with pytest.raises(openai.InternalServerError):
        asyncio.run(ask_awaited(policy, server))

    assert len(server.requests) == 4


def test_it_comes_through_after_all_kinds_of_faults(policy: Policy, server: OpenAIServer) -> None:
    server.script.extend([Fault(429, {"retry-after-ms": "10"}), Fault(reset=True), Fault(503)])

    assert ask(policy, server) == "hello"
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(401), openai.AuthenticationError),
        (Fault(400), openai.BadRequestError),
        (Fault(429, body=QUOTA), openai.RateLimitError),
    ],
)
def test_what_cannot_help_is_asked_once(
    policy: Policy, server: OpenAIServer, fault: Fault, error: type[Exception]
) -> None:
    server.always = fault

    with pytest.raises(error):
        ask(policy, server)

    assert len(server.requests) == 1


def test_never_before_the_server_said(policy: Policy, server: OpenAIServer) -> None:
    server.script.extend([Fault(429, {"retry-after-ms": "150"}), Fault(429, {"retry-after": "1"})])

    assert ask(policy, server) == "hello"

    first_s, second_s = server.gaps_s
    assert first_s >= 0.150
    assert second_s >= 1.0


def test_a_long_wait_is_the_documents_not_ours(policy: Policy, server: OpenAIServer) -> None:
    server.always = Fault(429, {"retry-after": "300"})

    with pytest.raises(RateLimited) as raised:
        ask(policy, server)

    assert raised.value.delay_s >= 300
    assert len(server.requests) == 1


def test_a_hung_attempt_is_cut_off(server: OpenAIServer) -> None:
    server.script.append(Fault(hang=True))
    policy = Policy("openai", backoff=FullJitter(0, 0), attempt_s=1.5, dependency=Dependency("openai"))

    assert asyncio.run(ask_awaited(policy, server)) == "hello"
    assert len(server.requests) == 2
