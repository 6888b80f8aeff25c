"""Messages from a cell are read whole, however the kernel cuts or joins them."""

from __future__ import annotations

import asyncio
import socket

import pytest

from perdure.engine.call import SMALL, Inbox, send
from perdure.engine.crossing import ASK, CHUNK, DONE, HEAD
from perdure.engine.wire import Malformed


def talk(*written: bytes) -> list[tuple[int, bytes]]:
    """What an inbox makes of these writes, up to the end of what was written."""

    async def work() -> list[tuple[int, bytes]]:
        ours, theirs = socket.socketpair()
        loop, found = asyncio.get_running_loop(), []
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)

            async def write() -> None:
                for part in written:
                    await loop.sock_sendall(theirs, part)
                    await asyncio.sleep(0.001)
                theirs.shutdown(socket.SHUT_WR)

            inbox, writing = Inbox(ours), asyncio.create_task(write())
            try:
                while True:
                    found.append(await inbox.receive())
            except (EOFError, Malformed):
                await writing
        return found

    return asyncio.run(work())


def message(kind: int, body: bytes) -> bytes:
    return HEAD.pack(kind, len(body)) + body


def test_two_at_once_are_two() -> None:
    # a thread of the stage asks while the stage itself is done
    assert talk(message(ASK, b"progress") + message(DONE, b"output")) == [
        (ASK, b"progress"),
        (DONE, b"output"),
    ]


def test_one_in_single_bytes_is_one() -> None:
    assert talk(*(bytes([byte]) for byte in message(ASK, b"page 1"))) == [(ASK, b"page 1")]


@pytest.mark.parametrize("size", [0, 1, SMALL - HEAD.size, SMALL - HEAD.size + 1, CHUNK + 1, 3 * CHUNK + 17])
def test_any_size(size: int) -> None:
    body = bytes(n % 251 for n in range(size))

    assert talk(message(ASK, body) + message(DONE, b""), message(DONE, body)) == [
        (ASK, body),
        (DONE, b""),
        (DONE, body),
    ]


@pytest.mark.parametrize("nonsense", [HEAD.pack(99, 1) + b"x", HEAD.pack(ASK, 1 << 60)])
def test_nonsense_ends_the_conversation(nonsense: bytes) -> None:
    assert talk(message(ASK, b"1"), nonsense) == [(ASK, b"1")]


@pytest.mark.parametrize("size", [0, 10, CHUNK, CHUNK + 1])
def test_what_is_sent_is_received(size: int) -> None:
    async def work() -> tuple[int, bytes]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            sending = asyncio.create_task(send(theirs, DONE, b"x" * size))
            found = await Inbox(ours).receive()
            await sending
            return found

    assert asyncio.run(work()) == (DONE, b"x" * size)
