"""Results that would go on outside of the guard are refused, and the error says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sqlite3
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
import requests
import urllib3

from tests.calls.making import HttpError, Script, World
from tests.calls.openai_server import OpenAIServer


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as one:
        yield one


def test_an_awaited_client_in_a_plain_call(server: OpenAIServer) -> None:
    import aiohttp

    async def story() -> None:
        async with aiohttp.ClientSession() as client:
            with pytest.raises(TypeError, match="acall"):
                async with World().policy().call(client.get, server.url):
                    pass
            with pytest.raises(TypeError, match="body has not been read"):
                await World().policy().acall(client.get, server.url)

            async def whole() -> Any:
                answer = await client.get(server.url)
                await answer.read()
                return answer

            assert (await World().policy().acall(whole)).status == 200

    asyncio.run(story())


def test_tasks_and_futures() -> None:
    async def one() -> int:
        return 1

    async def story() -> None:
        with pytest.raises(TypeError, match="awaited"):
            World().policy().call(asyncio.create_task, one())

        async def started() -> Any:
            return asyncio.create_task(one())

        with pytest.raises(TypeError, match="awaited"):
            await World().policy().acall(started)
        assert sum(await asyncio.gather(World().policy().acall(one), World().policy().acall(one))) == 2

    asyncio.run(story())
    with ThreadPoolExecutor(1) as pool, pytest.raises(TypeError, match="outside of the guard"):
        World().policy().call(pool.submit, int)


def test_tasks_inside_a_call_do_not_multiply_its_retries() -> None:
    world = World()
    outer, inner, service = world.policy("outer"), world.policy("inner"), Script(HttpError(503))

    async def both() -> Any:
        return await asyncio.gather(inner.acall(service.awaited), inner.acall(service.awaited))

    async def story() -> None:
        with pytest.raises(HttpError):
            await outer.acall(both)
        await asyncio.sleep(0)

    asyncio.run(story())
    assert service.calls == 2 * (1 + outer.retries)


@contextlib.contextmanager
def opened() -> Iterator[int]:
    yield 1


@contextlib.asynccontextmanager
async def aopened() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("way", [opened, aopened, lambda: map(int, "12"), lambda: iter([1])])
def test_streams_and_what_must_be_entered(way: Any) -> None:
    with pytest.raises(TypeError, match="inside the guarded function"):
        World().policy().call(way)


def test_a_stream_of_openai(server: OpenAIServer) -> None:
    with openai.OpenAI(base_url=server.url, api_key="any") as client:
        hello: Any = [{"role": "user", "content": "hello"}]
        create = client.chat.completions.create
        with pytest.raises(TypeError, match="a stream"):
            World().policy().call(create, model="m", messages=hello, stream=True)
        streaming = client.chat.completions.with_streaming_response.create
        with pytest.raises(TypeError, match="entered"):
            World().policy().call(streaming, model="m", messages=hello)


def test_answers_whose_body_has_not_been_read(server: OpenAIServer) -> None:
    policy = World().policy()
    with httpx2.Client() as client:
        assert policy.call(client.get, server.url).status_code == 200
        with pytest.raises(TypeError, match="not been read"):
            policy.call(client.send, client.build_request("GET", server.url), stream=True)
        with pytest.raises(TypeError, match="entered"):
            policy.call(client.stream, "GET", server.url)
    assert policy.call(requests.get, server.url, timeout=9).status_code == 200
    with pytest.raises(TypeError, match="not been read"):
        policy.call(requests.get, server.url, timeout=9, stream=True)
    manager = urllib3.PoolManager()
    assert policy.call(manager.request, "GET", server.url).status == 200
    with pytest.raises(TypeError, match="not been read"):
        policy.call(manager.request, "GET", server.url, preload_content=False)
    manager.clear()
    with pytest.raises(TypeError, match="not been read"):
        policy.call(urllib.request.urlopen, server.url)


def test_whole_results_pass() -> None:
    class Answer:
        pass

    policy, answer = World().policy(), Answer()
    results: list[Any] = [None, 1, "a", b"a", [1], {"a": 1}, answer, io.BytesIO(b"a"), range(3)]
    for result in results:
        assert policy.call(Script(result)) is result
    with sqlite3.connect(":memory:") as connection:
        assert policy.call(connection.execute, "SELECT 1").fetchall() == [(1,)]
    connection.close()


def test_a_refused_result_blames_no_service() -> None:
    policy = World().policy()
    with pytest.raises(TypeError):
        policy.call(lambda: iter([1]))
    assert (policy.dependency.failures, policy.dependency.successes) == (0, 0)


# --- parts of a result, tasks that are refused, plain functions -----------------------------------


async def one() -> int:
    return 1


def body_of_s3(data: bytes = b"page") -> Any:
    from botocore.response import StreamingBody

    return StreamingBody(io.BytesIO(data), len(data))


@pytest.mark.parametrize(
    "made",
    [
        lambda: [one(), one()],
        lambda: (one(),),
        lambda: {"answer": one()},
        lambda: {"Body": body_of_s3(), "ContentLength": 4},
        lambda: [1, iter([1])],
    ],
)
def test_parts_that_are_not_there_yet_are_refused(made: Any) -> None:
    with pytest.raises(TypeError, match=r"the function returned a (list|tuple|dict) with .*(acall|inside)"):
        World().policy().call(made)


def test_a_body_of_s3_that_was_read_inside_is_whole() -> None:
    def read() -> Any:
        found = {"Body": body_of_s3()}
        found["Body"].read()
        return found

    assert World().policy().call(read)["Body"]


def test_what_obstore_got_must_be_read_inside() -> None:
    from obstore.store import MemoryStore

    store, policy = MemoryStore(), World().policy()
    store.put("page", b"text")
    with pytest.raises(TypeError, match="body has not been read"):
        policy.call(store.get, "page")
    assert bytes(policy.call(lambda: store.get("page").bytes())) == b"text"


def test_large_and_nested_results_pass() -> None:
    policy = World().policy()
    results: list[Any] = [[0.5] * 100_000, [[1, [2]], (3,)], {"a": {"b": [1]}}, [], {}, [io.BytesIO(b"a")]]
    for result in results:
        assert policy.call(Script(result)) is result


def test_refused_tasks_are_cancelled() -> None:
    async def story() -> None:
        ran: list[int] = []

        async def late() -> None:
            await asyncio.sleep(0)
            ran.append(1)

        policy = World().policy()
        ways: list[Any] = [
            lambda: asyncio.ensure_future(late()),
            lambda: asyncio.gather(late(), late()),
            lambda: [asyncio.ensure_future(late())],
        ]
        for way in ways:
            with pytest.raises(TypeError, match="acall"):
                policy.call(way)
        await asyncio.sleep(0.01)
        assert ran == []

    asyncio.run(story())


def test_a_plain_function_that_is_awaited_names_the_method_to_use() -> None:
    effort, policy = World().policy(best_effort=True), World().policy()

    def plain() -> str:
        return "answer"

    def awaitable() -> Any:
        return one()

    async def story() -> None:
        for guard in (effort, policy):
            with pytest.raises(TypeError, match=r"plain returns str, .* use `policy\.call"):
                await guard.acall(plain)  # type: ignore[arg-type]
        assert await policy.acall(awaitable) == 1
        assert (policy.dependency.failures, policy.dependency.requests) == (0, 1)

    asyncio.run(story())


def test_a_plain_function_that_declares_what_it_returns_makes_no_request_when_it_is_awaited() -> None:
    policy, ran = World().policy(), []

    class Service:
        def names(self) -> list[str]:
            ran.append("names")
            return []

        def quiet(self):  # type: ignore[no-untyped-def]
            ran.append("quiet")
            return "answer"

        def later(self) -> Coroutine[Any, Any, int]:
            return one()

        def somehow(self) -> Any:
            return one()

    async def story() -> None:
        service = Service()
        with pytest.raises(TypeError, match="names returns list, which cannot be awaited"):
            await policy.acall(service.names)  # type: ignore[arg-type]
        assert (ran, policy.dependency.requests) == ([], 0)
        with pytest.raises(TypeError, match="quiet returned str, which cannot be awaited"):
            await policy.acall(service.quiet)
        assert ran == ["quiet"]
        assert [await policy.acall(service.later), await policy.acall(service.somehow)] == [1, 1]

    asyncio.run(story())
