"""Clients that nobody bound: their own retries are reported once, and counted where they can be seen."""

from __future__ import annotations

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
