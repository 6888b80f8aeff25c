"""A fleet per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.pipelines.document import documents
from tests.calls.web import Web
from tests.faults.fleet import Fleet

pytest.register_assert_rewrite("tests.faults.flow", "tests.faults.resuming", "tests.faults.documents.account")


@pytest.fixture
def fleet(store_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Workers on a fresh store, SQLite and PostgreSQL; ended with the test."""
    with Fleet(store_url, tmp_path) as made:
        yield made


@pytest.fixture
def local_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """The same on SQLite only, where the store makes no difference."""
    with Fleet(f"sqlite:///{tmp_path}/perdure.db", tmp_path) as made:
        yield made


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as made:
        yield made


@pytest.fixture
def nearby(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing outside of this machine is asked: pages come from loopback, vectors from the words themselves."""
    monkeypatch.setenv("PERDURE_ALLOW_LOOPBACK", "true")
    monkeypatch.setenv("PERDURE_EMBEDDER", "hashing")


@pytest.fixture
def library(store_url: str, tmp_path: Path, nearby: None) -> Iterator[Fleet]:
    """Workers of the document pipeline on a fresh store."""
    with Fleet(store_url, tmp_path, pipelines=[documents]) as made:
        yield made


@pytest.fixture
def local_library(tmp_path: Path, nearby: None) -> Iterator[Fleet]:
    """The same on SQLite only."""
    with Fleet(f"sqlite:///{tmp_path}/perdure.db", tmp_path, pipelines=[documents]) as made:
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes that are killed and frozen take time: all but a few belong to the full suite."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("on_both") is None:
            item.add_marker(pytest.mark.full)
