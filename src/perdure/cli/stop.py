"""Ctrl-C, for commands that end what is under way before they stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPED = 130  # the exit status


class Stop:
    """Whether somebody pressed Ctrl-C; who presses it twice does not want to wait."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._task = asyncio.current_task()

    def __call__(self) -> None:
        if self.asked.is_set() and self._task is not None:
            self._task.cancel()
        self.asked.set()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
