"""A server on each store for every test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.server import Server


@pytest.fixture
def server(store_url: str) -> Iterator[Server]:
    with Server(store_url) as running:
        yield running
