"""Ports of loopback for servers that tests start."""

from __future__ import annotations

import socket

_kept: list[socket.socket] = []  # bound, so that the kernel gives their ports to nobody else


def free_ports(count: int) -> list[int]:
    """Ports where nobody listens but a server that is told to, once or again, while this process lives.

    The server must set SO_REUSEADDR, as asyncio, Go and Erlang do.
    """
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    _kept.extend(sockets)
    return [each.getsockname()[1] for each in sockets]


def adjacent_ports() -> tuple[int, int]:
    """Two such ports, the second right after the first."""
    for _ in range(100):
        (first,) = free_ports(1)
        second = socket.socket()
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            second.bind(("127.0.0.1", first + 1))
        except (OSError, OverflowError):  # somebody has it, or there is no such port
            second.close()
        else:
            _kept.append(second)
            return first, first + 1
    raise AssertionError("no two adjacent ports are free")
