"""`perdure serve` stops in time, whatever is open: streams end, bodies that do not come are refused."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

from tests.doors.command import COMMAND, environment

APP = """
from perdure import Document, Perdure, Pipeline
notes = Pipeline("notes")

@notes.stage
def read(doc: Document) -> int:
    return len(doc.text)

app = Perdure(pipelines=[notes])
"""


def ask(port: int, head: str, body: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(f"{head} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode() + body)
    return connection


def test_it_stops_with_open_streams_and_a_body_that_does_not_come(tmp_path: Path) -> None:
    (tmp_path / "stopping.py").write_text(APP)
    command = [
        *COMMAND,
        "serve",
        "stopping:app",
        "--open",
        "--port",
        "0",
        "--store",
        f"sqlite:///{tmp_path}/p.db",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        while "serving" not in said:
            said = process.stderr.readline()
        assert "p.db, a new store, on http://127.0.0.1:" in said
        port = int(said.partition("http://127.0.0.1:")[2].partition(",")[0])
        streams = [ask(port, "GET /v3/events", b"\r\n") for _ in range(3)]
        for stream in streams:
            assert stream.recv(12) == b"HTTP/1.1 200"
        slow = ask(
            port,
            "POST /v3/documents",
            b"Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
            + b'{"text": ',
        )
        assert slow.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"  # the server waits for the body now
        process.terminate()
        answer = b""
        while piece := slow.recv(4096):
            answer += piece
        _, rest = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert json.loads(body)["code"] == "server_stopping"
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert "timeout graceful shutdown exceeded" not in rest
