"""A web server on loopback that does whatever its routes say, down to the bytes.

    with Web() as web:
        web.page("/", b"hello", content_type="text/plain")
        web.routes["/drip"] = lambda hit: hit.drip(b"x", every_s=0.01)
        ...
        assert web.accepted == 1

Each connection is accepted and counted, gets a thread, and is closed when its route returns. Nothing else is added: a
route that sends garbage sends garbage.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

CERTIFICATE = Path(__file__).with_name("good_test.pem")  # for good.test, signed by itself
HEAD_BYTES_MAX = 65_536
TLS_GREETING = b"\x16\x03"  # not for a plain server


class Hit:
    """One request that arrived, and what can be done to it: `hit.head().send(b"x").reset()`."""

    def __init__(
        self, connection: socket.socket, method: str, path: str, headers: dict[str, str], web: Web
    ) -> None:
        self.connection = connection
        self.method, self.path, self.headers = method, path, headers
        self.web = web

    def send(self, data: bytes) -> Hit:
        """Bytes as they are."""
        self.connection.sendall(data)
        return self

    def head(self, status: int = 200, **headers: object) -> Hit:
        """A status line and headers; content_type becomes content-type."""
        lines = [f"HTTP/1.1 {status} Status"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return self.send("\r\n".join([*lines, "", ""]).encode())

    def answer(self, status: int = 200, body: bytes = b"", **headers: object) -> Hit:
        """A whole answer."""
        return self.head(status, **{"content_length": len(body), **headers}).send(body)

    def drip(self, data: bytes, every_s: float) -> Hit:
        """The same again and again, until the other side has enough or the server ends."""
        while not self.web.closing.wait(every_s):
            self.send(data)
        return self

    def flood(self, data: bytes) -> Hit:
        """As `drip`, as fast as it goes."""
        while not self.web.closing.is_set():
            self.send(data)
        return self

    def hang(self) -> Hit:
        """Nothing, until the server ends."""
        self.web.closing.wait()
        return self

    def reset(self) -> Hit:
        """End the connection so that the other side sees a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        return self


Route = Callable[[Hit], object]


def _missing(hit: Hit) -> None:
    hit.answer(404)


class Web:
    """The server; a context manager. What has no route is 404."""

    def __init__(self, *, tls: bool = False) -> None:
        self.routes: dict[str, Route] = {}
        self.hits: list[Hit] = []
        self.accepted = 0
        self.names: list[str | None] = []  # that TLS was asked for
        self.closing = threading.Event()
        self._tls = self._context() if tls else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def page(self, path: str, body: bytes, status: int = 200, **headers: object) -> None:
        """A route that always answers the same."""
        self.routes[path] = lambda hit: hit.answer(status, body, **headers)

    def redirect(self, path: str, location: str, status: int = 302) -> None:
        self.page(path, b"elsewhere", status, location=location)

    @property
    def paths(self) -> list[str]:
        return [hit.path for hit in self.hits]

    def __enter__(self) -> Web:
        self._acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._acceptor, *self._threads):
            thread.join(90)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the other side went away
            connection.settimeout(30)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                hit = self._read(connection)
                if hit is not None:
                    self.hits.append(hit)
                    route = self.routes.get(hit.path.partition("?")[0], _missing)
                    route(hit)
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)

    def _read(self, connection: socket.socket) -> Hit | None:
        data = b""
        while b"\r\n\r\n" not in data and len(data) < HEAD_BYTES_MAX:
            part = connection.recv(4_096)
            data += part
            if not part or data.startswith(TLS_GREETING):
                return None
        first, *lines = data.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Hit(connection, method, path, headers, self)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        context.sni_callback = lambda _socket, name, _context: self.names.append(name)
        return context
