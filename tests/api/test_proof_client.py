"""The client when the way to the server is bad: it tries again under one key, and what it asked for is done once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.client import ApiError, AsyncClient, Client, NotEnded
from tests.api.flaky import Fault, Flaky
from tests.api.server import Server

TEXT = {"pipeline": "notes", "dedupe": False}


@pytest.fixture
def faults() -> list[Fault]:
    return ["lost", "cut", "busy"]


def test_a_text_is_added_once_over_lost_answers(server: Server, faults: list[Fault]) -> None:
    with Flaky(server.url, faults) as proxy, Client(proxy.url, key=server.key("acme")) as client:
        added = client.add(text="hello", pipeline="notes", dedupe=False)
        assert added.answer == "added"
        assert [one.id for one in client.documents()] == [added.id]
    posts = [one for one in proxy.asked if one.line.startswith("POST")]
    assert len(posts) == 4
    assert len({one.key for one in posts}) == 1
    assert posts[0].key
    assert posts[3].at_s - posts[2].at_s >= 1, "it came back earlier than it was asked to"


def test_a_file_is_sent_from_its_beginning_at_every_try(
    server: Server, tmp_path: Path, faults: list[Fault]
) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(bytes(range(256)) * 2000)
    told: list[tuple[int, int]] = []
    with Flaky(server.url, faults) as proxy, Client(proxy.url, key=server.key("acme")) as client:
        added = client.add(path=file, pipeline="notes", dedupe=False, on_progress=lambda *at: told.append(at))
        (found,) = client.documents()
        assert found.id == added.id
    with server.client("acme") as plain:
        assert plain.get(f"/v3/documents/{added.id}/content").content == file.read_bytes()
    posts = [one for one in proxy.asked if one.line.startswith("POST")]
    assert len(posts) == 4
    assert len({(one.key, one.size) for one in posts}) == 1
    assert [at for at in told if at == (512_000, 512_000)]
    assert {total for _, total in told} == {512_000}


def test_many_are_added_once_over_lost_answers(server: Server) -> None:
    with Flaky(server.url, ["lost", "lost"]) as proxy, Client(proxy.url, key=server.key("acme")) as client:
        added = client.add_many([{**TEXT, "text": f"{n}"} for n in range(10)])
        assert {one.id for one in client.documents(limit=3)} == {one.id for one in added}
        assert len(added) == 10


def test_waiting_survives_a_bad_way_and_says_how_it_ended(server: Server) -> None:
    async def play(url: str) -> None:
        async with AsyncClient(url, key=server.key("acme")) as client:
            added = await client.add(text="hello", pipeline="notes")
            with pytest.raises(NotEnded) as early:
                await client.wait(added.id, 0.3)
            assert early.value.code == "not_ended"
            await asyncio.to_thread(server.run, server.service.run_until_idle())
            assert (await client.wait(added.id, 90)).status == "done"

    with Flaky(server.url, ["pass", "cut", "pass", "cut", "cut"]) as proxy:
        asyncio.run(play(proxy.url))


def test_what_stays_bad_is_given_up_with_its_code(server: Server) -> None:
    with (
        Flaky(server.url, ["busy"] * 9) as proxy,
        Client(proxy.url, key=server.key("acme"), retries=1) as client,
    ):
        with pytest.raises(ApiError) as busy:
            client.get("x")
        assert (busy.value.status, busy.value.code) == (503, "store_busy")
    assert len(proxy.asked) == 2


def test_what_the_server_refuses_is_not_tried_again(server: Server) -> None:
    with Flaky(server.url, []) as proxy, Client(proxy.url, key=server.key("acme")) as client:
        client.add(text="one", pipeline="notes", once="k")
        with pytest.raises(ApiError) as reused:
            client.add(text="two", pipeline="notes", once="k")
        assert (reused.value.status, reused.value.code) == (422, "idempotency_key_reused")
        with pytest.raises(ApiError) as early:
            client.requeue(next(iter(client.documents())).id)
        assert (early.value.status, early.value.code) == (409, "move_forbidden")
    assert len(proxy.asked) == 4
