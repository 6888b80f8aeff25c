"""A RabbitMQ of its own: on loopback ports that nobody else has, with its files in a directory that goes with it.

On Debian, as root, the package is installed if it is missing; elsewhere a missing server fails the tests that need it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from tests.debian import install
from tests.ports import free_ports

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PATIENCE_S = 300.0


def installed() -> Path:
    """Where the server is."""
    if not SERVER.exists():
        install("rabbitmq-server")
    return SERVER


class Rabbit:
    """A broker that can be stopped, killed and started again with what it has."""

    def __init__(self) -> None:
        self.server = installed()
        self.home = Path(tempfile.mkdtemp(prefix="perdure-rabbit-"))
        self.port, distribution, names = free_ports(3)
        settings = {
            "NODENAME": f"perdure-{os.getpid()}-{self.port}@localhost", "NODE_IP_ADDRESS": "127.0.0.1",
            "NODE_PORT": str(self.port), "DIST_PORT": str(distribution), "MNESIA_BASE": str(self.home / "data"),
            "LOG_BASE": str(self.home / "log"), "CONF_ENV_FILE": str(self.home / "none"),
            "CONFIG_FILE": str(self.home / "none"), "ENABLED_PLUGINS_FILE": str(self.home / "plugins"),
            "SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }  # fmt: skip
        self._environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1", **{f"RABBITMQ_{name}": value for name, value in settings.items()},
        }  # fmt: skip
        self._names: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What others need to find it."""
        return {"RABBITMQ_HOST": "127.0.0.1", "RABBITMQ_PORT": str(self.port)}

    def __enter__(self) -> Rabbit:
        self._names = self._run("epmd")
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self._names is not None:
            self._names.kill()
            self._names.wait(90)
        shutil.rmtree(self.home, ignore_errors=True)

    def start(self) -> None:
        """Start it; returns when it takes connections."""
        self._broker = self._run(str(self.server))
        until_s = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._broker.poll() is None, f"RabbitMQ ended:\n{self.said}"
            assert time.monotonic() < until_s, f"RabbitMQ does not answer:\n{self.said}"
            time.sleep(0.1)

    def stop(self) -> None:
        """In good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a power cut would."""
        self._end(signal.SIGKILL)

    @property
    def said(self) -> str:
        return (self.home / "said").read_text(errors="replace")[-3000:]

    def _run(self, program: str) -> subprocess.Popen[bytes]:
        with (self.home / "said").open("ab") as output:
            return subprocess.Popen(
                [program], env=self._environment, cwd=self.home, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            connection.settimeout(2)
            return bool(connection.recv(1))
        return False

    def _end(self, number: int) -> None:
        """The signal is for the server; the shell that started it ends with it, and so does what it started."""
        if self._broker is None:
            return
        family = [psutil.Process(self._broker.pid)] if self._broker.poll() is None else []
        family += [child for parent in family for child in parent.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                if number == signal.SIGKILL or process.name() == "beam.smp":
                    process.send_signal(number)
        _, left = psutil.wait_procs(family, PATIENCE_S)
        assert not left, f"RabbitMQ does not end: {left}"
        self._broker.wait(90)
        self._broker = None
