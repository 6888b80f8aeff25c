"""docs/api.md names every route there is, with the scope that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.store.keys import SCOPES
from tests.api.server import Server

DOCS = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
ROWS = re.findall(r"^\| `([A-Z]+) (\S+)` \| (\S+) \| \S", DOCS, re.M)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(f"sqlite:///{tmp_path_factory.mktemp('api')}/perdure.db") as running:
        yield running


def test_every_route_is_in_the_table_and_no_other(server: Server) -> None:
    paths = server.client().get("/openapi.json").json()["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert {(method, path) for method, path, _ in ROWS} == routes
    assert len(ROWS) == len(routes)


def test_every_route_takes_the_scope_that_the_table_says(server: Server) -> None:
    wrong = []
    without = {scope: server.client("acme", *(s for s in SCOPES if s != scope)) for scope in SCOPES}
    for method, path, scope in ROWS:
        if scope == "–":
            assert server.client().request(method, path).status_code == 200
            continue
        answer = without[scope].request(
            method, re.sub("[{}]", "", path), json={} if method == "POST" else None
        )
        if answer.json()["code"] != "scope_missing" or f"scope {scope};" not in answer.json()["detail"]:
            wrong.append((method, path, answer.text))
    assert wrong == []


def test_every_setting_that_is_named_is_one() -> None:
    from perdure.settings import Settings, variable

    named = set(re.findall(r"PERDURE_[A-Z_]+", DOCS))
    assert named <= {variable(name) for name in Settings.model_fields}


def test_what_the_text_says_of_limits_is_so() -> None:
    from perdure.api import downloads, forms, jsons, readers, receiving, refused, shared
    from perdure.settings import Settings

    assert f"a form {forms.PARTS_MAX} parts" in DOCS
    assert f"| {jsons.DEPTH_MAX} levels |" in DOCS
    assert f"| {jsons.NUMBER_CHARS_MAX:,} characters |" in DOCS
    assert f"| {readers.PLACES}, of one organisation {readers.PLACES_OF_ONE} |" in DOCS
    assert f"| {shared.ACT_BYTES >> 20} MiB, {jsons.LIGHT_MARKS:,} keys and values |" in DOCS
    assert f"more than {jsons.LIGHT_BYTES >> 10} KiB or more than {jsons.LIGHT_MARKS:,} characters" in DOCS
    assert f"the first {refused.ERRORS_MAX} places" in DOCS
    streams = Settings().api_streams_per_org, Settings().api_streams_max
    assert "has {} streams at most, a server {}".format(*streams) in DOCS
    assert f"at most {Settings().api_downloads_per_org} downloads of content" in DOCS
    assert f"less than {downloads.SEND_BYTES >> 10} KiB in" in DOCS
    assert (downloads.EXPORTS_PER_ORG, receiving.SHARES) == (1, 2), "one export, half of the free room"
    assert f"left with {receiving.FREE_BYTES >> 20} MB" in DOCS
    assert f"({Settings().document_bytes_max >> 20} MB)" in DOCS
