"""Clients that nobody bound: their own retries are reported once, and counted where they can be seen."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import requests
import requests.adapters
import urllib3

from perdure.calls import Policy, SdkRetries, unbound
from tests.calls.making import HttpError, Script, World, at_work
from tests.calls.openai_server import Fault, OpenAIServer

HELLO: Any = [{"role": "user", "content": "hello"}]
AWAY = Fault(503, headers={"retry-after-ms": "1"})


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    unbound.forget()
    yield
    unbound.forget()


def quick(name: str = "unbound") -> Policy:
    return World().policy(name)


def told(way: Any, policy: Policy, error: type[Exception] = Exception) -> list[str]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises(error):
            policy.call(way)
    return [str(one.message) for one in heard if issubclass(one.category, SdkRetries)]


def test_an_unbound_client_is_reported_once_and_counted() -> None:
    policy = quick()
    with (
        OpenAIServer([AWAY] * 30) as server,
        openai.OpenAI(base_url=server.url, api_key="any") as client,
        at_work(needs=()) as work,
    ):

        def ask() -> Any:
            return client.chat.completions.create(model="m", messages=HELLO)

        (warning,) = told(ask, policy)
        assert "policy.bind" in warning
        assert len(server.requests) == 12
        assert work.requests == {"unbound": 12}
        assert policy.dependency.requests == 12
        policy.dependency.forget()
        assert told(ask, policy) == []


def test_a_bound_one_is_not() -> None:
    policy = quick()
    with OpenAIServer([AWAY] * 30) as server, openai.OpenAI(base_url=server.url, api_key="any") as client:
        assert policy.bind(client)
        assert told(lambda: client.chat.completions.create(model="m", messages=HELLO), policy) == []
        assert len(server.requests) == policy.dependency.requests == 4


def session(retries: int) -> requests.Session:
    made = requests.Session()
    made.mount("http://", requests.adapters.HTTPAdapter(max_retries=urllib3.Retry(retries)))
    return made


GLOBAL = session(3)


def named() -> None:
    GLOBAL.get("http://127.0.0.1:9/", timeout=0.001).raise_for_status()
    raise HttpError(503)


@pytest.mark.parametrize("retries", [0, 3])
def test_a_client_that_shows_nothing_is_found_by_looking(retries: int) -> None:
    client = session(retries)

    def closed_over() -> None:
        assert client is not None
        raise HttpError(503)

    def given(some: requests.Session) -> None:
        raise HttpError(503)

    for way in (closed_over, functools.partial(given, client)):
        unbound.forget()
        assert len(told(way, quick())) == (1 if retries else 0)


def test_a_client_of_the_module_is_found_too() -> None:
    assert len(told(named, quick())) == 1


def test_a_method_of_a_client_shows_its_client() -> None:
    with OpenAIServer([Fault(401)]) as server, openai.OpenAI(base_url=server.url, api_key="any") as client:
        way = functools.partial(client.chat.completions.create, model="m", messages=HELLO)
        (warning,) = told(way, quick())
        assert "openai" in warning


def test_a_warning_that_is_an_error_does_not_replace_that_of_the_call() -> None:
    client = session(3)

    def ask() -> None:
        assert client is not None
        raise HttpError(401)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HttpError):
            quick().call(ask)


def test_botocore_says_how_often_it_tried() -> None:
    class ClientError(Exception):
        __module__ = "botocore.exceptions"

        def __init__(self) -> None:
            super().__init__("busy")
            self.response = {
                "Error": {"Code": "SlowDown"},
                "ResponseMetadata": {"HTTPStatusCode": 503, "RetryAttempts": 2},
            }

    policy = World().policy(retries=0)
    with pytest.warns(SdkRetries, match="botocore"), pytest.raises(ClientError):
        policy.call(Script(ClientError()))
    assert policy.dependency.requests == 3


# --- calls that succeed ---------------------------------------------------------------------------


def heard(ways: list[Any]) -> list[str]:
    """The warnings of these calls, which succeed."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for way in ways:
            way()
    return [str(one.message) for one in found if issubclass(one.category, SdkRetries)]


def test_a_client_that_hides_its_retries_behind_a_success_is_reported() -> None:
    policy = quick()
    with OpenAIServer([AWAY, AWAY]) as server, openai.OpenAI(base_url=server.url, api_key="any") as client:

        def ask() -> Any:
            return policy.call(client.chat.completions.create, model="m", messages=HELLO)

        (warning,) = heard([ask, ask])
        assert len(server.requests) == 4
        assert "openai" in warning
        assert "policy.bind" in warning


class Holder:
    def __init__(self, client: object) -> None:
        self.gemini = client

    def ask(self) -> str:
        return "answer"


def gemini() -> Any:
    from google import genai

    return genai.Client(api_key="any")


def test_a_client_is_found_where_a_function_gets_it() -> None:
    client, policy = gemini(), quick()

    def given(some: object) -> str:
        return "answer"

    def closed() -> str:
        return str(client)

    @policy
    def decorated(some: object) -> str:
        return "answer"

    @policy
    async def awaited(holder: Holder) -> str:
        return "answer"

    ways: list[Any] = [
        lambda: policy.call(given, client),
        lambda: policy.call(given, some=client),
        lambda: policy.call(functools.partial(given, client)),
        lambda: policy.call(closed),
        lambda: policy.call(Holder(client).ask),
        lambda: decorated(client),
        lambda: asyncio.run(awaited(Holder(client))),
    ]
    for way in ways:
        unbound.forget()
        assert len(heard([way, way])) == 1
    policy.bind(client)
    for way in ways:
        unbound.forget()
        assert heard([way]) == []


def test_each_policy_function_and_type_of_client_is_reported_once() -> None:
    first, second, both = quick("first"), quick("second"), [gemini(), session(3)]

    def ask(*clients: object) -> None:
        return

    def tell(*clients: object) -> None:
        return

    ways = [lambda: first.call(ask, *both), lambda: second.call(ask, *both), lambda: first.call(tell, *both)]
    assert len(heard(ways + ways)) == 6


def test_a_client_that_comes_with_the_second_call_is_found() -> None:
    policy, made = quick(), []

    class Lazy:
        client: object = None

        def ask(self) -> str:
            self.client = self.client or gemini()
            return "answer"

    def given(client: object) -> str:
        made.append(client)
        return "answer"

    lazy = Lazy()
    for way in (lambda: policy.call(lazy.ask), lambda: policy.call(given, gemini() if made else None)):
        assert heard([way]) == []
        assert len(heard([way])) == 1
        assert heard([way] * 20) == []


def test_functions_behind_one_decorator_are_told_apart() -> None:
    policy, client = quick(), session(3)

    def logged(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any) -> Any:
            return fn(*args)

        return inner

    @logged
    def without() -> None:
        return

    @logged
    def within() -> None:
        assert client is not None

    assert len(heard([lambda: policy.call(without), lambda: policy.call(within)])) == 1


def test_objects_that_break_when_looked_at_break_no_call() -> None:
    class Broken:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no")

        def __call__(self) -> str:
            return "answer"

    assert quick().call(Broken()) == "answer"
