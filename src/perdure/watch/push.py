"""Metrics of a program that is gone before anybody asks it, brought to a Pushgateway.

What such programs of one host have done is added up in the store, under the host's name, and all of it is pushed each
time: counters never go back, and a push that failed is made good by the next. Host and store are the grouping key, so
two hosts do not overwrite each other's numbers, and neither do two stores. A push replaces the whole group (PUT):
what is not told any more is gone there, too.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from prometheus_client import push_to_gateway

from perdure.errors import StoreBusy, address_shown, redacted
from perdure.settings import Settings
from perdure.store.sql_store import SqlStore
from perdure.watch.board import Board, Key
from perdure.watch.metrics import RETRY_JOB
from perdure.watch.overall import Overall
from perdure.watch.render import registry_of

JOB = "perdure_sweep"
PATIENCE_S = 10.0
TURN_S = 20.0
COUNTERS = frozenset(metric.name for metric in RETRY_JOB if metric.kind == "counter")
GAUGES = frozenset(metric.name for metric in RETRY_JOB if metric.kind == "gauge")


class Pusher:
    """Pushes what is counted on a board; one for as long as the program lives."""

    def __init__(self, settings: Settings, url: str, store: SqlStore, board: Board, host: str = "") -> None:
        self.gateway = settings.pushgateway_url
        self.group = {"instance": host or socket.gethostname(), "store": store_name(url)}
        self.store = store
        self.board = board
        self._told: dict[Key, float] = {}

    async def push(self) -> str | None:
        """Tell what happened since the last time; what went wrong, if anything did. Nothing is lost then."""
        if self.gateway is None:
            return "METRICS_BACKEND is prometheus_pushgateway, but PUSHGATEWAY_URL is not set; nothing was pushed"
        try:
            async with self._turn():
                numbers = await self._added_up()
                await asyncio.to_thread(
                    push_to_gateway,
                    self.gateway,
                    JOB,
                    registry_of(numbers, RETRY_JOB),
                    self.group,
                    PATIENCE_S,
                )
        except Exception as error:  # whatever it was, the sweep was done
            why = str(error) or type(error).__name__
            where = address_shown(self.gateway)
            return redacted(
                f"the metrics could not be pushed to {where}: {why}; the next push tells all of them"
            )
        return None

    async def _added_up(self) -> dict[Key, float]:
        """What all programs of this host have counted so far, ours included, and how the store is doing now."""
        counted = {key: value for key, value in self.board.read().items() if key[0] in COUNTERS}
        more = {json.dumps(key): round(value - self._told.get(key, 0)) for key, value in counted.items()}
        total = await self.store.count_for(self.group["instance"], more)
        self._told = counted
        overall = await Overall(self.store, self.board).read()
        now = {key: value for key, value in overall.items() if key[0] in GAUGES}
        return now | {tuple(json.loads(name)): float(value) for name, value in total.items()}

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Two at once on one host would take turns in telling less than was told already."""
        host, give_up_s = self.group["instance"], time.monotonic() + TURN_S
        while not await self.store.lock_host(host):
            if time.monotonic() > give_up_s:
                raise StoreBusy("another program of this host is pushing for too long")
            await asyncio.sleep(0.1)
        try:
            yield
        finally:
            await self.store.unlock_host(host)


def store_name(url: str) -> str:
    """The address of a store without what is nobody's business."""
    parts = urlsplit(url)
    return f"{parts.hostname or ''}{parts.path}".strip("/") or "default"
