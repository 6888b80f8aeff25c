"""A Pushgateway behind a proxy that asks for a password."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.doors.command import perdure, succeeded

USER, PASSWORD = "pusher", "open/sesame@home"


class Proxy(BaseHTTPRequestHandler):
    """Lets pushes in that bring the password."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        wanted = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        self.send_response(200 if self.headers["authorization"] == f"Basic {wanted}" else 401)
        self.end_headers()


@pytest.fixture
def proxy() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_user_and_password_of_the_address_are_sent(proxy: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/perdure.db"
    succeeded("migrate", "--store", store)
    told = {
        password: perdure(
            "sweep", "--once", "--store", store, METRICS_BACKEND="prometheus_pushgateway",
            PUSHGATEWAY_URL=f"http://{USER}:{password}@{proxy}",
        )
        for password in ("open%2Fsesame%40home", "wrong-one")
    }  # fmt: skip
    assert [one.returncode for one in told.values()] == [0, 3]
    wrong = told["wrong-one"].stderr
    assert "401" in wrong
    assert "wrong-one" not in wrong
