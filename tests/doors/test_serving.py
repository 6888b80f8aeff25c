"""`perdure serve` where it cannot serve, or not yet."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from tests.doors.command import COMMAND, environment, refused
from tests.ports import free_ports


def test_a_port_in_use_is_one_line_with_a_code_and_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(2, "port_taken", "serve", "--port", port, "--store", f"sqlite:///{tmp_path}/p.db")

    assert f"port {port} of 127.0.0.1 is in use" in said
    assert "--port" in said


def test_a_host_that_is_not_ours_is_one_line_with_a_code(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    assert "--host" in refused(2, "address_unusable", "serve", "--host", "192.0.2.1", "--store", store)


def test_a_file_that_is_not_a_store_is_one_line_with_a_code(tmp_path: Path) -> None:
    (tmp_path / "p.db").write_text("no database at all, but some text\n" * 100)

    refused(1, "store_invalid", "serve", "--port", "0", "--store", f"sqlite:///{tmp_path}/p.db")


def test_a_store_that_cannot_be_reached_is_waited_for_and_sigterm_ends_the_wait(tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    store = f"postgresql://u:p@127.0.0.1:{nobody}/x"
    command = [*COMMAND, "serve", "--port", "0", "--store", store]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        first = [process.stderr.readline() for _ in range(2)]
        process.terminate()
        rest = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()

    assert all("waiting for the store: cannot reach PostgreSQL" in line for line in first), first
    assert process.returncode == 0
    assert "serving" not in rest
    assert "Traceback" not in rest


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_serving_is_said_with_the_port_once_it_listens(tmp_path: Path, host: str) -> None:
    store = f"sqlite:///{tmp_path}/p.db"
    command = [*COMMAND, "serve", "--host", host, "--port", "0", "--no-worker", "--store", store]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        port = int(said.partition(f"http://{host}:")[2].partition(",")[0])
        socket.create_connection((host, port), timeout=60).close()
        process.terminate()
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0
