"""The demo's web server, on loopback: it hands documents out, some only after it was too busy a few times."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from perdure.demo.shelf import Book


class Server:
    """Runs in a thread while it is entered. `answers` has the status of every answer, by document."""

    def __init__(self, books: Iterable[Book]) -> None:
        self.answers: dict[str, list[int]] = defaultdict(list)
        self._books = {f"/{book.name}": book for book in books if book.online}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="demo-server")

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def url(self, book: Book) -> str:
        """Where this document is to be fetched."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{book.name}"

    def answer(self, path: str) -> tuple[int, bytes]:
        """The status and the content of the next answer."""
        book = self._books.get(path)
        if book is None:
            return 404, b"there is no such document"
        made = self.answers[book.name]
        made.append(200 if len(made) >= book.busy else 503)
        return made[-1], book.data if made[-1] == 200 else b"too busy, come again"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, content = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Standard output is the demo's."""

        return Handler
