"""The connection of one request: to an address that was checked, for as many bytes as were agreed.

The name is resolved once, by `resolve`; what is connected to is one of the addresses it gave. TLS still asks for the
certificate of the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache

import httpcore2

from perdure.errors import Permanent

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

#: So many addresses of a host are tried.
ADDRESSES_MAX = 4


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a name, of both kinds, as the system knows them; OSError if there are none.

    In a thread of its own: a resolver may hang for half a minute, and nobody else may have to wait for that.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str], error: OSError | UnicodeError | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)

    def look_up() -> None:
        addresses: list[str] = []
        failure: OSError | UnicodeError | None = None
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [str(where[0]) for *_, where in rows]
        except (OSError, UnicodeError) as error:
            failure = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, addresses, failure)

    threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    return await found


@cache
def tls_context() -> ssl.SSLContext:
    """Trusts whom the system trusts; reading all their certificates takes a moment."""
    return httpcore2.default_ssl_context()


class Wire(httpcore2.AsyncNetworkBackend):
    """Connects to one of these addresses, whatever name it is asked for, and counts what comes in."""

    def __init__(self, addresses: Sequence[str], head_bytes_max: int) -> None:
        self.addresses = addresses[:ADDRESSES_MAX]
        self.received = 0
        self.most = head_bytes_max
        self._in_head = True
        self._network = httpcore2.AnyIOBackend()

    def allow(self, body_bytes: int) -> None:
        """The head has been read; so many bytes may follow."""
        self._in_head = False
        self.most = self.received + body_bytes

    def take(self, size: int) -> None:
        """So much came in; Permanent if it is more than agreed."""
        self.received += size
        if self.received > self.most:
            if self._in_head:
                raise Permanent("headers_too_large", f"more than {self.most} bytes before the content")
            raise Permanent("too_large", "the answer does not end")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the first address that answers."""
        failure: Exception = httpcore2.ConnectError("no address")
        for address in self.addresses:
            try:
                stream = await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
            else:
                return _Counted(stream, self)
        raise failure


class _Counted(httpcore2.AsyncNetworkStream):
    """A stream whose wire counts what is read from it."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        self._wire.take(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Counted(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._wire)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
