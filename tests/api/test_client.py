"""The client against the real server: every verb, plain and awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.client import ApiError, AsyncClient, Client, NotEnded, ServerUnreachable
from perdure.errors import InputInvalid
from tests.api.server import Server
from tests.ports import free_ports


def test_from_a_file_to_its_end(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"hello " * 50_000)
    told: list[tuple[int, int]] = []
    with Client(server.url, key=server.key("acme")) as client:
        added = client.add(path=file, pipeline="notes", on_progress=lambda *at: told.append(at))
        assert added.answer == "added"
        assert told[-1] == (300_000, 300_000)
        assert [at for at, _ in told] == sorted(at for at, _ in told)
        with pytest.raises(NotEnded, match="is queued after"):
            client.wait(added.id, 0.2)
        server.run(server.service.run_until_idle())
        ended = client.wait(added.id)
        assert (ended.status, ended.name) == ("done", "a.txt")
        assert [stage.stage for stage in ended.completed_stages] == ["read"]
        assert [a.outcome for a in client.attempts(added.id)] == ["done"]
        assert client.requeue(added.id, reason="again").answer == "requeued"
        assert client.cancel(added.id).answer == "cancelled"
        assert client.chunks(added.id) == []
        assert client.search("hello") == []


def test_a_long_history_has_pages(server: Server) -> None:
    with Client(server.url, key=server.key("acme")) as client:
        id_ = client.add(text="hello", pipeline="notes").id
        server.run(server.service.run_until_idle())
        for _ in range(3):
            client.requeue(id_, reason="again")
            server.run(server.service.run_until_idle())
        assert [a.generation for a in client.attempts(id_)] == [1, 2, 3, 4]
    asked = server.client("acme")
    for what, count in (("attempts", 4), ("timeline", 4)):
        place = f"/v3/documents/{id_}/{what}"
        pages = [asked.get(place, params={"limit": 1}).json()]
        while pages[-1]["next"] is not None:
            pages.append(asked.get(place, params={"limit": 1, "after": pages[-1]["next"]}).json())
        assert len(pages) >= count
        told = [one for page in reversed(pages) for one in page[what]]
        assert told == asked.get(place).json()[what]
        assert asked.get(place, params={"after": "nowhere"}).status_code == 422


def test_many_are_added_and_listed(server: Server) -> None:
    with Client(server.url, key=server.key("acme")) as client:
        asked = [{"text": f"text {n}", "pipeline": "notes"} for n in range(30)]
        added = client.add_many(asked, once="k")
        assert client.add_many(asked, once="k") == added
        assert {one.id for one in client.documents(limit=7)} == {one.id for one in added}


def test_an_error_has_the_servers_code(server: Server) -> None:
    with Client(server.url, key=server.key("acme")) as client:
        with pytest.raises(ApiError) as unknown:
            client.get("nothing")
        assert (unknown.value.status, unknown.value.code) == (404, "document_unknown")
        for elsewhere in ("../search?q=x#", "?limit=1", "../documents"):
            with pytest.raises(ApiError) as nowhere:
                client.get(elsewhere)
            assert nowhere.value.status == 404
        with pytest.raises(ApiError) as forbidden:
            client.add(url="http://10.0.0.1/", pipeline="notes")
        assert forbidden.value.code == "address_forbidden"
    with Client(server.url, key="pk_wrong") as stranger, pytest.raises(ApiError) as refused:
        stranger.search("x")
    assert (refused.value.status, refused.value.code) == (401, "key_invalid")


def test_what_fails_before_there_is_an_answer_has_a_code(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Client(f"http://127.0.0.1:{port}", retries=0) as client:
        for path in (tmp_path / "none", tmp_path):
            with pytest.raises(InputInvalid) as missing:
                client.add(path=path)
            assert missing.value.code == "file_missing"
        (tmp_path / "a.txt").write_text("a")
        for ask in (lambda: client.get("x"), lambda: client.add(path=tmp_path / "a.txt")):
            with pytest.raises(ServerUnreachable, match="check the address") as unreachable:
                ask()
            assert unreachable.value.code == "server_unreachable"
            assert f"no answer from http://127.0.0.1:{port} (" in str(unreachable.value)


def test_a_refusal_names_the_address(server: Server) -> None:
    with Client(server.url, key="pk_wrong") as stranger, pytest.raises(ApiError) as refused:
        stranger.search("x")
    assert str(refused.value).endswith(f"(from {server.url})")


def test_an_address_that_is_not_one_is_named() -> None:
    with Client("127.0.0.1:3001", retries=0) as client, pytest.raises(ServerUnreachable) as unreachable:
        client.get("x")
    assert "no answer from 127.0.0.1:3001 (" in str(unreachable.value)


def test_a_search_in_a_document_that_is_not_there_says_so(server: Server) -> None:
    with Client(server.url, key=server.key("acme")) as client:
        other = client.add(text="one two", pipeline="notes").id
        assert client.search("one", document=other) == []
        with pytest.raises(ApiError) as unknown:
            client.search("one", document="nope")
        assert (unknown.value.status, unknown.value.code) == (404, "document_unknown")
    with Client(server.url, key=server.key("zeta")) as stranger, pytest.raises(ApiError) as foreign:
        stranger.search("one", document=other)
    assert foreign.value.code == "document_unknown"


def test_awaited_it_has_the_same_verbs(server: Server) -> None:
    async def play() -> None:
        async with AsyncClient(server.url, key=server.key("acme")) as client:
            added = await client.add(data=b"bytes", pipeline="notes", name="b.txt", meta={"a": 1})
            assert (await client.get(added.id)).name == "b.txt"
            assert [one.id async for one in client.documents(state="queued")] == [added.id]

    asyncio.run(play())
