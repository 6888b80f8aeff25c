"""Server-sent events: in order, none twice, none of another's, from where one was, on another server too."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from perdure.api import streaming
from perdure.store.base import Query
from perdure.store.feed import entry
from tests.api.server import Server

Event = dict[str, Any]


@contextmanager
def stream(client: httpx2.Client, last: str | None = None, **params: Any) -> Iterator[Iterator[Event]]:
    """Events as they come; the place they come from is known when this is entered."""
    headers = {} if last is None else {"Last-Event-ID": last}
    with client.stream("GET", "/v3/events", params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == ": from here on"
        yield _events(lines)


def _events(lines: Iterator[str]) -> Iterator[Event]:
    one: Event = {}
    for line in lines:
        if line and not line.startswith(":"):
            field, _, value = line.partition(": ")
            one[field] = json.loads(value) if field == "data" else value
        elif one:
            yield one
            one = {}


def cancelled(client: httpx2.Client, number: int) -> list[str]:
    """Documents that end at once, in this order."""
    made = [
        client.post("/v3/documents", json={"text": f"{n}", "pipeline": "notes", "dedupe": False}).json()["id"]
        for n in range(number)
    ]
    for id_ in made:
        client.post(f"/v3/documents/{id_}/cancel")
    return made


def ids(events: Iterator[Event], number: int) -> list[str]:
    return [next(events)["data"]["document_id"] for _ in range(number)]


def until(said: Any) -> bool:
    for _ in range(250):
        if said():
            return True
        time.sleep(0.02)
    return False


def test_events_come_in_order_and_only_ones_own(server: Server) -> None:
    mine, theirs = server.client("acme"), server.client("zeta")
    with stream(mine) as events:
        others = cancelled(theirs, 3)
        made = cancelled(mine, 5)
        seen = ids(events, 5)
    assert seen == made
    assert not set(seen) & set(others)


def test_only_the_names_that_are_asked_for(server: Server) -> None:
    client = server.client("acme")
    with stream(client, name="document.requeued") as events:
        (id_,) = cancelled(client, 1)
        client.post(f"/v3/documents/{id_}/requeue")
        first = next(events)
    assert (first["event"], first["data"]["document_id"]) == ("document.requeued", id_)
    unknown = client.get("/v3/events", params={"name": "document.sung"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "event_unknown")
    assert client.get("/v3/events", params={"after": "nowhere"}).json()["code"] == "place_invalid"


def test_one_goes_on_where_it_was_on_another_server(store_url: str) -> None:
    with Server(store_url) as server:
        client = server.client("acme")
        key = client.headers["authorization"]
        with stream(client) as events:
            made = cancelled(client, 4)
            read = [next(events), next(events)]
    with Server(store_url) as server:
        again = httpx2.Client(base_url=server.url, headers={"Authorization": key}, timeout=90)
        made += cancelled(again, 1)
        with stream(again, read[-1]["id"]) as events:
            rest = ids(events, 3)
        with stream(again, after="0-0") as events:
            everything = ids(events, 5)
        again.close()
    assert [one["data"]["document_id"] for one in read] + rest == made
    assert everything == made


def test_whoever_hangs_up_frees_its_stream(server: Server) -> None:
    client = server.client("acme")
    with ExitStack() as open_:
        for _ in range(5):
            open_.enter_context(stream(client))
        assert server.app.state.streams.open == 5
    assert until(lambda: server.app.state.streams.open == 0)


def test_a_stream_ends_with_its_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "KEY_S", 0.2)
    revoked, good = server.key("acme"), server.client("acme")
    client = httpx2.Client(base_url=server.url, headers={"X-API-Key": revoked}, timeout=90)
    with client, stream(client) as ending, stream(good) as going:
        server.run(server.service.revoke_key(revoked.split("_")[1]))
        assert list(ending) == []
        made = cancelled(server.client("acme"), 1)
        assert ids(going, 1) == made


def test_there_are_so_many_streams_and_no_more(store_url: str) -> None:
    with Server(store_url, api_streams_max=3, api_streams_per_org=2) as server:
        mine, theirs = server.client("acme"), server.client("zeta")
        with stream(mine), stream(mine):
            refused = mine.get("/v3/events")
            assert (refused.status_code, refused.json()["code"]) == (503, "streams_too_many")
            assert "organisation" in refused.json()["detail"]
            assert refused.headers["retry-after"]
            with stream(theirs):
                full = theirs.get("/v3/events")
                assert (full.status_code, full.json()["code"]) == (503, "streams_too_many")
        assert until(lambda: server.app.state.streams.open == 0)
        with stream(mine):
            pass


def test_streams_that_are_opened_at_once_are_counted(tmp_path: Path) -> None:
    """Whether there is room is decided when a stream gets its place, not while others are on their way to theirs."""
    with Server(f"sqlite:///{tmp_path}/perdure.db", api_streams_per_org=4) as server, ExitStack() as open_:
        host, port = server.url.removeprefix("http://").split(":")
        asked = f"GET /v3/events HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.key('acme')}\r\n\r\n".encode()
        clients = [open_.enter_context(socket.create_connection((host, int(port)), 90)) for _ in range(30)]
        for client in clients:
            client.sendall(asked)
        said = [client.recv(15).split()[1] for client in clients]
        assert sorted(said) == [b"200"] * 4 + [b"503"] * 26


def test_a_slow_reader_loses_nothing_and_stops_nobody(tmp_path: Path) -> None:
    """12 MB of events: more than any buffer between the two takes."""
    with Server(f"sqlite:///{tmp_path}/perdure.db") as server:
        client, store = server.client("acme"), server.service.store
        made = [f"document-{n}" for n in range(3_000)]
        told = [entry("acme", 1, "done", id_, filling="x" * 4_000) for id_ in made]
        server.run(store._change(Query(store.sql.FEED_ADD, rows=told)))
        with stream(client, after="0-0") as slow, stream(client, after="0-0") as quick:
            assert ids(quick, len(made)) == made
            assert ids(slow, len(made)) == made  # nothing of it was read before


def test_two_hundred_streams_are_told(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/perdure.db", api_rate_per_s=10_000) as server, ExitStack() as open_:
        key = server.client("acme").headers["authorization"]
        limits = httpx2.Limits(max_connections=None)
        many = httpx2.Client(
            base_url=server.url, headers={"Authorization": key}, timeout=60, limits=limits, trust_env=False
        )
        open_.callback(many.close)
        streams = [open_.enter_context(stream(many)) for _ in range(200)]
        made = cancelled(many, 2)
        assert all(ids(events, 2) == made for events in streams)


def test_streams_end_when_the_server_stops(tmp_path: Path) -> None:
    with ExitStack() as open_:
        server = open_.enter_context(Server(f"sqlite:///{tmp_path}/perdure.db"))
        client = server.client("acme")
        with stream(client) as events:
            server._server.should_exit = True
            assert list(events) == []
