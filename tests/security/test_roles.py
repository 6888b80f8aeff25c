"""The roles of scripts/postgres-roles.sql are enough for a worker and for the HTTP server, and for nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx2
import pytest

from tests.api.served import new_key, served

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "scripts" / "postgres-roles.sql").read_text()
PATIENCE_S = 120.0
TARGET = "perdure.cli.builtin:app"


@dataclass(frozen=True)
class Roles:
    """Addresses of one store: its owner's, its worker's and its HTTP server's."""

    owner: str
    worker: str
    api: str


async def _run(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _as(url: str, role: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role}:secret@{host}"))


@pytest.fixture
def roles(postgres_store_url: str) -> Iterator[Roles]:
    """Roles under names of their own, because a server has only one of each name; pgvector is set up by the owner."""
    new_key(postgres_store_url, "nobody")
    end = uuid.uuid4().hex[:12]
    worker, api = f"perdure_worker_{end}", f"perdure_api_{end}"
    script = SCRIPT.replace("perdure_worker", worker).replace("perdure_api", api)
    both = f"{worker}, {api}"
    for _ in range(2):  # it can be run again
        asyncio.run(_run(postgres_store_url, script))
    for role in (worker, api):
        asyncio.run(_run(postgres_store_url, f"ALTER ROLE {role} PASSWORD 'secret'"))
    yield Roles(postgres_store_url, _as(postgres_store_url, worker), _as(postgres_store_url, api))
    asyncio.run(_run(postgres_store_url, f"DROP OWNED BY {both}; DROP ROLE {both}"))


@contextmanager
def worker(store: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`perdure worker`, ended with the block."""
    command = [sys.executable, "-m", "perdure", "worker", TARGET, "--store", store]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        _, log = process.communicate(timeout=PATIENCE_S)
        assert "permission denied" not in log, log
        assert "InsufficientPrivilege" not in log, log


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.05)


@pytest.mark.full
def test_worker_and_server_need_no_more_than_their_roles(roles: Roles) -> None:
    key = new_key(roles.owner, "acme")
    with (
        served(roles.api, "--no-worker", target=TARGET) as url,
        worker(roles.worker),
        httpx2.Client(base_url=url) as client,
    ):
        client.headers["Authorization"] = f"Bearer {key}"
        client.timeout = httpx2.Timeout(90)

        def answer(method: str, path: str, **more: object) -> httpx2.Response:
            got = client.request(method, path, **more)  # type: ignore[arg-type]
            assert got.status_code < 300, (method, path, got.text)
            return got

        hook = answer("POST", "/v3/webhooks", json={"url": "https://example.org/hook"}).json()
        large = "word " * 160_000  # a blob in the database, and chunks that are staged
        texts = ["a note", "another note", large]
        ids = [answer("POST", "/v3/documents", json={"text": text}).json()["id"] for text in texts]
        for id_ in ids:
            until(lambda id_=id_: answer("GET", f"/v3/documents/{id_}").json()["status"] == "done")  # type: ignore[misc]
        answer("POST", f"/v3/documents/{ids[0]}/requeue")
        until(lambda: answer("GET", f"/v3/documents/{ids[0]}").json()["status"] == "done")
        assert answer("GET", f"/v3/documents/{ids[2]}/content").text == large
        assert answer("GET", "/v3/search?q=note").json()["hits"]
        for path in ("/v3/documents", f"/v3/documents/{ids[0]}/timeline", "/v3/dead"):
            answer("GET", path)
        answer("DELETE", f"/v3/documents/{ids[1]}")
        answer("GET", "/v3/webhooks/deliveries")
        answer("DELETE", f"/v3/webhooks/{hook['id']}")


FORBIDDEN_TO_BOTH = [
    "CREATE TABLE more (a int)",
    "CREATE TEMPORARY TABLE more (a int)",
    "CREATE SCHEMA more",
    "ALTER TABLE document ADD more int",
    "DROP TABLE document",
    "TRUNCATE document",
    "CREATE INDEX more ON document (name)",
    "CREATE TRIGGER more BEFORE INSERT ON document FOR EACH ROW EXECUTE FUNCTION chunk_lost()",
    "CREATE ROLE more",
    "INSERT INTO migration VALUES ('9999', 0, 0)",
    "UPDATE act SET who = 'nobody'",
    "DELETE FROM act",
    "SELECT * FROM another.store",
    "SELECT pg_read_file('PG_VERSION')",
    "COPY document TO PROGRAM 'true'",
    "INSERT INTO api_key (id, org, name, secret, scopes, created_ms) SELECT '', '', '', '', '', 0",
    "UPDATE api_key SET revoked_ms = NULL",
    "UPDATE webhook SET url = ''",
]
FORBIDDEN_TO_WORKER = ["SELECT * FROM api_key", "DELETE FROM webhook"]


@pytest.mark.full
def test_everything_else_is_refused(roles: Roles) -> None:
    asyncio.run(_run(roles.owner, "CREATE SCHEMA another CREATE TABLE store (a int)"))
    refused = [(roles.worker, text) for text in FORBIDDEN_TO_BOTH + FORBIDDEN_TO_WORKER]
    refused += [(roles.api, text) for text in FORBIDDEN_TO_BOTH]
    for url, statement in refused:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            asyncio.run(_run(url, statement))


def test_every_table_has_its_grants(postgres_store_url: str) -> None:
    """A table that a migration adds is named in the script."""

    async def tables() -> set[str]:
        connection = await asyncpg.connect(postgres_store_url)
        try:
            rows = await connection.fetch(
                "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
            )
        finally:
            await connection.close()
        return {row[0] for row in rows}

    grants = SCRIPT.partition("$$;")[2].replace(",", " ").split()
    assert asyncio.run(tables()) - {"chunk_vector"} <= {*grants}
