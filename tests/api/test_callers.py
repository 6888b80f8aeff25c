"""Who may ask: keys, scopes, organisations, rates, and the open server of a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.api.caller import Rates
from perdure.api.serve import Serving, check
from perdure.errors import SettingInvalid
from perdure.store.feed import Happened
from perdure.store.webhooks import Ended
from tests.api.server import Server, paths_of_openapi

OPEN = {"/healthz", "/readyz", "/docs", "/docs/oauth2-redirect", "/openapi.json", "/redoc"}


def routes() -> list[tuple[str, str]]:
    """Every route that the OpenAPI document tells of, except those that are for everybody."""
    return [
        (m.upper(), path) for path, methods in paths_of_openapi().items() for m in methods if path not in OPEN
    ]


def test_there_are_routes_to_walk() -> None:
    assert len(routes()) >= 10


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("api")
    with Server(f"sqlite:///{path}/perdure.db") as server:
        yield server


@pytest.mark.parametrize(("method", "path"), routes())
def test_without_a_key_nothing_is_answered(walked: Server, method: str, path: str) -> None:
    client = walked.client()
    for headers in ({}, {"Authorization": "Bearer pk_0000000000000000_" + "a" * 43}, {"X-API-Key": ""}):
        answer = client.request(method, path.replace("{", "").replace("}", ""), headers=headers)
        assert answer.status_code == 401, answer.text
        assert answer.headers["www-authenticate"] == "Bearer"


#: What a path parameter names: where there is an organisation's own thing behind it, the part of the path before it.
OWNED = ("/v3/documents/{id}", "/v3/dead/{id}", "/v3/webhooks/{id}", "/v3/webhooks/deliveries/{id}")
#: Whose names are everybody's: what is behind them takes the scope `operate`, or is part of something owned.
SHARED = ("/v3/queues/{name}", "/v3/dependencies/{name}")
#: What a body must have for its path to be looked at.
BODIES: dict[str, dict[str, Any]] = {
    "finish": {"token": 1, "output": None}, "fail": {"token": 1}, "beat": {"token": 1}, "priority": {"priority": 1},
}  # fmt: skip


def test_every_path_parameter_is_known_to_be_owned_or_shared() -> None:
    kinds = {path[: path.index("}") + 1] for _, path in routes() if "{" in path}
    assert kinds == {*OWNED, *SHARED}


@pytest.fixture(scope="module")
def theirs(walked: Server) -> dict[str, str]:
    """An id of zeta's for each kind of path."""
    client, store = walked.client("zeta"), walked.service.store
    asked = {"text": "secret", "pipeline": "notes"}
    document = client.post("/v3/documents", json=asked).json()["id"]
    webhook = walked.run(walked.service.add_webhook("https://example.org/hook", org="zeta"))
    told = Happened("1-1", "zeta", 1, "document.done", document, {})
    walked.run(store.tell_webhook(webhook, [told]))
    (delivery,) = walked.run(store.deliveries("zeta"))
    walked.run(store.end_deliveries([Ended(delivery.id, "dead")]))
    return dict(zip(OWNED, (document, document, webhook.id, delivery.id), strict=True))


@pytest.mark.parametrize(("method", "path"), [r for r in routes() if r[1].startswith(OWNED)])
def test_what_is_anothers_is_not_there(
    walked: Server, theirs: dict[str, str], method: str, path: str
) -> None:
    mine, owner = walked.client("acme", "read", "write", "operate"), walked.client("zeta")
    address = path.replace("{id}", theirs[path[: path.index("}") + 1]])
    address = address.replace("{stage}", "read").replace("{name}", "lines")
    body: dict[str, Any] = (
        {} if method in ("GET", "DELETE") else {"json": BODIES.get(path.rpartition("/")[2], {})}
    )
    answer = mine.request(method, address, **body)
    assert answer.status_code == 404, answer.text
    assert "secret" not in answer.text
    assert owner.get(f"/v3/documents/{theirs[OWNED[0]]}").json()["status"] == "queued"
    assert owner.get("/v3/webhooks").json()["webhooks"][0]["dead"] == 1


def test_lists_and_searches_show_only_what_is_ones_own(walked: Server) -> None:
    walked.client("zeta").post("/v3/documents", json={"text": "secret plans", "pipeline": "notes"})
    mine = walked.client("newcomer")
    assert mine.get("/v3/documents").json()["documents"] == []
    assert mine.get("/v3/search", params={"q": "secret"}).json()["hits"] == []


def test_a_key_does_only_what_it_is_for(walked: Server) -> None:
    reader = walked.client("acme", "read")
    assert reader.get("/v3/documents").status_code == 200
    refused = reader.post("/v3/documents", json={"text": "x", "pipeline": "notes"})
    assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")


def test_a_revoked_key_is_refused_at_once(walked: Server) -> None:
    client = walked.client("acme")
    assert client.get("/v3/documents").status_code == 200
    id_ = client.headers["authorization"].split("_")[1]
    walked.run(walked.service.revoke_key(id_))
    refused = client.get("/v3/documents")
    assert (refused.status_code, refused.json()["code"]) == (401, "key_invalid")


def test_who_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/perdure.db", api_rate_per_s=2) as server:
        client, other = server.client("acme"), server.client("zeta")
        answers = [client.get("/v3/documents") for _ in range(10)]
        late = [a for a in answers if a.status_code == 429]
        assert late
        assert int(late[0].headers["retry-after"]) >= 1
        assert late[0].json()["code"] == "rate_limited"
        assert other.get("/v3/documents").status_code == 200


@pytest.mark.parametrize("path", ["/v3/documents", "/v3/dead/requeue"], ids=["a file", "an act"])
def test_requests_without_the_scope_count_as_well(tmp_path: Path, path: str) -> None:
    with Server(f"sqlite:///{tmp_path}/perdure.db", api_rate_per_s=2) as server:
        client = server.client("acme", "read")
        answers = [client.post(path, json={"all": True}).status_code for _ in range(12)]
        assert answers[:4] == [403] * 4
        assert 429 in answers[4:]


def test_a_rate_is_kept_over_time() -> None:
    rates = Rates(10)
    assert sum(rates.take("acme", 0.0) == 0 for _ in range(100)) == 20
    assert sum(rates.take("acme", 1.0) == 0 for _ in range(100)) == 10
    assert 0 < rates.take("acme", 1.0) <= 0.1


def test_an_open_server_needs_no_key_but_obeys_no_strange_page(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/perdure.db", open_=True) as server:
        client = server.client()
        assert client.post("/v3/documents", json={"text": "x", "pipeline": "notes"}).status_code == 201
        for headers in (
            {"Origin": "https://evil.example"},
            {"Host": "evil.example"},
            {"Origin": "null"},
            {"Origin": "http://["},
            {"Host": "["},
            {"Host": "127.0.0.1.evil.example"},
        ):
            refused = client.get("/v3/documents", headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (403, "origin_forbidden")
        assert client.get("/v3/documents", headers={"Origin": server.url}).status_code == 200
        assert client.get("/v3/documents", headers={"Host": "127.8.8.8:3001"}).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_an_open_server_is_not_for_others(host: str) -> None:
    with pytest.raises(SettingInvalid, match="trials on this machine"):
        check(Serving("m:a", None, host, 3001, 0, True))
    check(Serving("m:a", None, host, 3001, 0, False))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_an_open_server_is_for_this_machine(host: str) -> None:
    check(Serving("m:a", None, host, 3001, 0, True))


def test_the_page_with_the_documentation_needs_no_other_host(walked: Server) -> None:
    client = walked.client()
    page = client.get("/docs")
    assert page.status_code == 200
    assert "https://" not in page.text
    for file in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert f"/docs/static/{file}" in page.text
        assert client.get(f"/docs/static/{file}").status_code == 200
