"""`perdure serve` where it cannot serve, or not yet."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
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


@pytest.mark.parametrize(
    ("name", "value"),
    [("OPENAI_RETRY_MAX", "x"), ("STORAGE_RETRY_MAX", "1.5"), ("PERDURE_DEPENDENCY_OPENAI_PROBE_S", "soon")],
)
def test_a_number_that_its_worker_would_refuse_is_refused_before_it_listens(
    name: str, value: str, tmp_path: Path
) -> None:
    wrong: Any = {name: value}
    store = f"sqlite:///{tmp_path}/p.db"
    assert name in refused(
        2, "setting_invalid", "serve", "--port", "0", "--store", store, timeout=30, **wrong
    )


APP = """
import os, sys
from perdure import Document, Perdure, Pipeline
from perdure.errors import SettingInvalid

notes = Pipeline("notes")

@notes.stage
def read(doc: Document) -> str:
    return doc.text

if sys.argv[0].endswith("child.py"):
    {end}
app = Perdure("sqlite:///{store}", pipelines=[notes])
"""


@contextmanager
def served(directory: Path, end: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A server whose worker ends like that at its start, its port, and the lines before it named its address: a worker
    may say something sooner."""
    (directory / "odd.py").write_text(APP.format(end=end, store=directory / "p.db"))
    command = [*COMMAND, "serve", "odd:app", "--port", "0"]
    process = subprocess.Popen(command, cwd=directory, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        before, said = "", process.stderr.readline()
        while " on http://127.0.0.1:" not in said:
            assert said, process.wait()
            before, said = before + said, process.stderr.readline()
        yield process, int(said.partition("http://127.0.0.1:")[2].partition(",")[0]), before
    finally:
        process.kill()
        process.communicate()


def test_a_worker_that_refuses_to_start_ends_the_server(tmp_path: Path) -> None:
    with served(tmp_path, 'raise SettingInvalid("THE_SETTING is wrong")') as (process, _, before):
        said = before + process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "THE_SETTING is wrong [setting_invalid]" in said
    assert "worker 1 ended with status 2 and would do so again; the server ends, too" in said
    assert "Traceback" not in said


def test_a_server_whose_worker_does_not_run_says_so_and_takes_documents(tmp_path: Path) -> None:
    with served(tmp_path, "os._exit(7)") as (_, port, _):
        url, down = f"http://127.0.0.1:{port}", ["worker 1 ended with status 7"]
        until_s = time.monotonic() + 60
        seen = []
        while down not in seen and time.monotonic() < until_s:
            ready = httpx2.get(f"{url}/readyz")
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
            seen.append(ready.json()["workers_down"])
            time.sleep(0.05)
        assert down in seen
        assert seen[0] in (down, ["no worker beside this server has registered yet"])
