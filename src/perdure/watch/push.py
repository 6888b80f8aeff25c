"""Metrics brought to a Pushgateway: those of a program that is gone before anybody asks it, and of workers that are
asked to (`METRICS_BACKEND`).

What such programs of one host have done is added up in the store, under the host's name, and all of it is pushed each
time: counters never go back, and a push that failed is made good by the next. Host and store are the grouping key, so
two hosts do not overwrite each other's numbers, and neither do two stores. A push replaces the whole group (PUT):
what is not told any more is gone there, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from urllib.parse import unquote, urlsplit

from prometheus_client import push_to_gateway
from prometheus_client.exposition import basic_auth_handler, default_handler

from perdure.core.events import AnyEvent, Events, StuckSwept
from perdure.errors import StoreBusy, address_shown, redacted
from perdure.store.sql_store import SqlStore
from perdure.watch.board import SUM, Board, Key, together
from perdure.watch.meter import Meter
from perdure.watch.metrics import RETRY_JOB
from perdure.watch.overall import Overall
from perdure.watch.render import registry_of
from perdure.watch.shared_counters import ToItsEnd

JOB = "perdure_sweep"
PATIENCE_S = 10.0
TURN_S = 20.0
EVERY_S = 60.0  # between two pushes of a worker; it pushes after each sweep and when it stops besides
COUNTED = frozenset(metric.name for metric in RETRY_JOB if metric.kind != "gauge")
_log = logging.getLogger("perdure.metrics")
GAUGES = frozenset(metric.name for metric in RETRY_JOB if metric.kind == "gauge")


class Pusher:
    """Pushes what is counted on these boards; one for as long as the program lives."""

    def __init__(
        self, gateway: str, url: str, store: SqlStore, boards: Sequence[Board], host: str = ""
    ) -> None:
        self.gateway = gateway
        self.group = {"instance": host or socket.gethostname(), "store": store_name(url)}
        self.store = store
        self.boards = boards
        self._told: dict[Key, int] = {}
        self._counting = ToItsEnd()

    async def push(self) -> str | None:
        """Tell what happened since the last time; what went wrong, if anything did. Nothing is lost then."""
        try:
            async with self._turn():
                registry = registry_of(await self._added_up(), RETRY_JOB)
                where, handler = _authorised(self.gateway)
                await asyncio.to_thread(
                    push_to_gateway, where, JOB, registry, self.group, PATIENCE_S, handler
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
        total = await self._counting.run(self._count)
        overall = await Overall(self.store, self.boards[0]).read()
        now = {key: value for key, value in overall.items() if key[0] in GAUGES}
        named = ((tuple(json.loads(name)), value) for name, value in total.items())
        return now | {key: value / _scale(key) for key, value in named}

    async def _count(self) -> dict[str, int]:
        read = together(self.boards)
        counted = {key: round(value * _scale(key)) for key, value in read.items() if key[0] in COUNTED}
        more = {
            json.dumps(key): value - self._told.get(key, 0)
            for key, value in counted.items()
            if value != self._told.get(key)  # a name that is not known begins at 0
        }
        total = await self.store.count_for(self.group["instance"], more)
        self._told = counted
        return total

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


def _authorised(gateway: str) -> tuple[str, Callable[..., Callable[[], None]]]:
    """The address without user and password, and how they are sent instead."""
    parts = urlsplit(gateway)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return gateway, default_handler
    name, _, password = map(unquote, user.partition(":"))
    return parts._replace(netloc=host).geturl(), partial(basic_auth_handler, username=name, password=password)


async def push_worker(child: Board, events: Events, store: SqlStore, gateway: str, url: str) -> None:
    """Push what a supervisor and its child count, until it is cancelled: then once more. A problem is logged once."""
    own = Board.private()
    meter = Meter(own, events)
    pusher, swept, told = Pusher(gateway, url, store, (own, child)), asyncio.Event(), None

    def heard(event: AnyEvent) -> None:
        if isinstance(event, StuckSwept):
            swept.set()

    leave = events.subscribe(heard)
    try:
        while True:
            problem = await pusher.push()
            if problem is not None and problem != told:
                _log.warning("%s", problem)
            told = problem
            swept.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(swept.wait(), EVERY_S)
    finally:
        leave()
        meter.close()
        if (problem := await pusher.push()) is not None:
            _log.warning("%s", problem)


def _scale(key: Key) -> int:
    """The store keeps whole numbers: seconds that are added up are kept as milliseconds."""
    return 1000 if key[-1] == SUM else 1


def store_name(url: str) -> str:
    """The address of a store without what is nobody's business."""
    parts = urlsplit(url)
    return f"{parts.hostname or ''}{parts.path}".strip("/") or "default"
