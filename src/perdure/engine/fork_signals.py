"""Signals that a worker handles are not handled by the processes that its stages fork.

A fork inherits handlers and, with asyncio, the descriptor through which the event loop hears of signals. Without this,
a SIGTERM for a forked process (`Pool.terminate`) does not end that process; under a supervisor it stops the worker.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_handled: set[int] = set()


@contextmanager
def own_signals(*numbers: int) -> Iterator[None]:
    """Processes that are forked while the body runs get the default action for these signals."""
    _handled.update(numbers)
    try:
        yield
    finally:
        _handled.difference_update(numbers)


def _reset() -> None:
    """In the forked process."""
    if not _handled:
        return
    signal.set_wakeup_fd(-1)
    for number in _handled:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _handled.clear()


os.register_at_fork(after_in_child=_reset)
