"""Secrets that are planted in every setting, and all places where they could turn up."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg
from psycopg.sql import SQL, Identifier

from perdure.settings import ADDRESSES, SECRETS, SECRETS_OF_OTHERS, variable

CANARY = "hunter2canary"
#: However they are written: as they are, or in hexadecimal digits, as databases write bytes.
FORMS = (CANARY, CANARY.encode().hex(), CANARY.encode().hex().upper())
ROOT = Path(__file__).parents[2]


def with_password(address: str, password: str) -> str:
    """The address of a PostgreSQL with this password, which a server that trusts its users takes for good."""
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"postgres:{password}@{host}"))


def variables(store: str, directory: Path) -> dict[str, str]:
    """Every setting that may carry a secret has one, and nobody is at the addresses."""
    secret = {variable(name): f"{CANARY}-{name}-0123456789abcdef" for name in SECRETS}
    other = {name: f"{CANARY}-{name}" for name in SECRETS_OF_OTHERS}
    address = {variable(name): f"http://me:{CANARY}-{name}@127.0.0.1:1/v1" for name in ADDRESSES}
    address["PERDURE_DIRECT_URL"] = f"postgresql://me:{CANARY}@127.0.0.1:1/db"
    address["PERDURE_STORE"] = store
    if store.startswith("postgres"):
        address["PERDURE_STORE"] = with_password(store, f"{CANARY}-store")
        address["PERDURE_DIRECT_URL"] = with_password(store, f"{CANARY}-direct")
    del address["PERDURE_BLOBS"]
    temporary = directory / "temporary"
    temporary.mkdir(exist_ok=True)
    return {
        **secret, **other, **address, "METRICS_BACKEND": "prometheus_pushgateway", "RABBITMQ_HOST": "127.0.0.1",
        "RABBITMQ_PORT": "1", "PYTHONPATH": str(ROOT), "PERDURE_ALLOW_LOOPBACK": "true", "PERDURE_LOG_LEVEL": "DEBUG",
        "TMPDIR": str(temporary), "PERDURE_ARCHIVE": str(directory / "archive"), "PERDURE_TRACES": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://me:{CANARY}-otlp@127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={CANARY}-header", "OTEL_BSP_SCHEDULE_DELAY": "200",
    }  # fmt: skip


def rows(store: str) -> Iterator[tuple[str, str]]:
    """Every row of every table as text, with the name of its table."""
    if store.startswith("sqlite"):
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection:
            for line in connection.iterdump():
                yield line.partition('"')[2].partition('"')[0], line
        return
    with psycopg.connect(store) as server:
        tables = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
        for schema, name in server.execute(tables).fetchall():
            for (row,) in server.execute(
                SQL("SELECT t::text FROM {} t").format(Identifier(schema, name))
            ).fetchall():
                yield name, row


def files(directory: Path) -> Iterator[Path]:
    """Every file below with a secret in it, or in its name."""
    for path in directory.rglob("*"):
        if any(form in path.name for form in FORMS) or (path.is_file() and CANARY.encode() in _content(path)):
            yield path


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def command_lines(process: psutil.Process) -> list[str]:
    """Those of the process and of all that it started."""
    found = []
    for one in (process, *process.children(recursive=True)):
        try:
            found.append(" ".join(one.cmdline()))
        except psutil.Error:
            continue
    return found


def secrets_of_cells(process: psutil.Process) -> set[str]:
    """The variables with a secret of the processes that fork cells, and of these."""
    found = set[str]()
    for one in process.children(recursive=True):
        try:
            if "perdure.engine.nursery" in one.cmdline():
                found |= {name for name, value in one.environ().items() if has_secret(value)}
        except psutil.Error:
            continue
    return found


def sessions(store: str) -> list[str]:
    """What a PostgreSQL shows of its clients to any of its users."""
    if store.startswith("sqlite"):
        return []
    with psycopg.connect(store) as server:
        return [row for (row,) in server.execute("SELECT s::text FROM pg_stat_activity s").fetchall()]


def has_secret(text: str) -> bool:
    return any(form in text for form in FORMS)


def leaks(texts: list[str]) -> list[str]:
    """The lines with a secret in them."""
    return [line[:1000] for text in texts for line in text.splitlines() if has_secret(line)]
