"""`perdure worker` whose supervisor freezes itself, once, where a file tells it to: `python -m tests.faults.freezing`.

`end`: in the transaction that renews leases, after its last statement. `half`: there, in the middle of a statement of
PostgreSQL, between the message that prepares it and the one that runs it. `taken`, `given`: on SQLite, right after it
got the turn to write, and right before it gives it back. FAULTS_FREEZE names the file. The child is the real one.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asyncpg.connection import Connection

from perdure.cli.supervise import main
from perdure.store.base import Query, Steps
from perdure.store.flusher import Flusher
from perdure.store.operations import Beat, Operation

HALF = "SELECT 'a statement that this connection has not prepared yet'"

Flush = Callable[..., Steps[list[Any]]]


class Marker:
    """The file that says where to freeze."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def says(self, where: str) -> bool:
        return self.path.exists() and self.path.read_text() == where

    def freeze(self) -> None:
        self.path.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.2)  # the signal may be another thread's first, and this one must not get any further


def freezing_flush(steps: Flush, marker: Marker) -> Flush:
    """The steps of a flush that renews leases, frozen at their end."""

    def wrapped(flusher: Flusher, ops: Sequence[Operation], *rest: Any) -> Steps[list[Any]]:
        answers = yield from steps(flusher, ops, *rest)
        if any(isinstance(op, Beat) and op.held for op in ops):
            if marker.says("end"):
                marker.freeze()
            if marker.says("half"):
                yield Query(HALF)
        return answers

    return wrapped


def freezing_prepare(prepare: Callable[..., Any], marker: Marker) -> Callable[..., Any]:
    """PostgreSQL's driver, frozen when `HALF` is prepared and not run yet."""

    async def wrapped(connection: Any, query: str, *rest: Any, **options: Any) -> Any:
        statement = await prepare(connection, query, *rest, **options)
        if query == HALF:
            marker.freeze()
        return statement

    return wrapped


def freezing_flock(flock: Callable[[int, int], None], marker: Marker) -> Callable[[int, int], None]:
    """The lock that is the turn on SQLite, frozen with it in hand."""

    def wrapped(fd: int, how: int) -> None:
        turn = os.readlink(f"/proc/self/fd/{fd}").endswith("/turn")
        if turn and how == fcntl.LOCK_UN and marker.says("given"):
            marker.freeze()
        flock(fd, how)
        if turn and how & fcntl.LOCK_EX and marker.says("taken"):
            marker.freeze()

    return wrapped


def patch(marker: Marker) -> None:
    patched: Any = Flusher
    patched._steps = freezing_flush(patched._steps, marker)
    patched = Connection
    patched._get_statement = freezing_prepare(patched._get_statement, marker)
    patched = fcntl
    patched.flock = freezing_flock(fcntl.flock, marker)


if __name__ == "__main__":
    patch(Marker(Path(os.environ["FAULTS_FREEZE"])))
    _, target, _, concurrency = sys.argv[1:]  # worker TARGET --concurrency N
    sys.argv[1:] = [target, json.dumps({"concurrency": int(concurrency), "queues": None})]
    main()
