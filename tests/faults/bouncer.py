"""A PgBouncer of its own in front of a test's PostgreSQL, lending server connections for one transaction at a time.

On Debian, as root, the package is installed if it is missing; elsewhere a missing PgBouncer fails the tests that need
it. `PERDURE_TEST_PGBOUNCER` names another program, to test with another version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qsl, urlsplit

from tests.debian import install

PROGRAM_VARIABLE = "PERDURE_TEST_PGBOUNCER"
PORT = 6432
PATIENCE_S = 90
#: Named prepared statements are followed from server connection to server connection since this version.
FOLLOWS_SINCE = (1, 21)


def program() -> str:
    """The path of the program, installed if need be."""
    if named := os.environ.get(PROGRAM_VARIABLE):
        return named
    if not Path("/usr/sbin/pgbouncer").exists():
        install("pgbouncer")
    return shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


def version() -> tuple[int, int]:
    """Of the program, such as (1, 18)."""
    said = subprocess.run([program(), "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    assert found is not None, f"pgbouncer --version said {said!r}"
    return int(found[1]), int(found[2])


class Bouncer:
    """Runs for as long as its `with` block lasts."""

    def __init__(self, server_url: str, connections: int = 3, prepared_statements: int = 0) -> None:
        """`prepared_statements`: how many it follows for each client; 0 for none, as old versions do."""
        self._parts = urlsplit(server_url)
        self._connections, self._prepared = connections, prepared_statements

    @property
    def url(self) -> str:
        """The same database, through the pooler."""
        return f"postgresql://{self._parts.username or 'postgres'}@{self._parts.path}?host={self._home}&port={PORT}"

    def __enter__(self) -> Bouncer:
        self._home = tempfile.mkdtemp(
            prefix="pgb-", dir="/tmp"
        )  # the path of a socket is at most 107 bytes long
        Path(self._home).chmod(0o777)
        (Path(self._home) / "pgbouncer.ini").write_text(self._config())
        self._start()
        return self

    def _start(self) -> None:
        config = Path(self._home) / "pgbouncer.ini"
        user = ["--user", self._user()] if os.getuid() == 0 else []  # it refuses to run as root
        with (Path(self._home) / "said").open("wb") as said:
            self._process = subprocess.Popen([program(), *user, str(config)], stdout=said, stderr=said)
        socket, until_s = Path(self._home) / f".s.PGSQL.{PORT}", time.monotonic() + PATIENCE_S
        while not socket.exists():
            assert self._process.poll() is None, self.said
            assert time.monotonic() < until_s, self.said
            time.sleep(0.02)

    def restart(self) -> None:
        """Kill it and start it again at the same address; its clients see their connections break."""
        self._process.kill()
        self._process.wait()
        (Path(self._home) / f".s.PGSQL.{PORT}").unlink(missing_ok=True)
        self._start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._home)

    @property
    def said(self) -> str:
        return (Path(self._home) / "said").read_text(errors="replace")

    @property
    def _host(self) -> str:
        return dict(parse_qsl(self._parts.query)).get("host") or self._parts.hostname or "localhost"

    def _user(self) -> str:
        """Who may reach the socket of the server; a proxy of ours lets everybody."""
        owner = Path(self._host).owner() if self._host.startswith("/") else "nobody"
        return "nobody" if owner == "root" else owner

    def _config(self) -> str:
        query = dict(parse_qsl(self._parts.query))
        port = query.get("port") or self._parts.port or 5432
        follow = f"max_prepared_statements = {self._prepared}\n" if version() >= FOLLOWS_SINCE else ""
        return (
            f"[databases]\n* = host={self._host} port={port} user={self._parts.username or 'postgres'}\n"
            f"[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\nunix_socket_dir = {self._home}\n"
            f"auth_type = any\npool_mode = transaction\ndefault_pool_size = {self._connections}\n"
            f"max_client_conn = 500\n{follow}"
        )
