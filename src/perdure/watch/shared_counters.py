"""Counters of processes that nobody scrapes, added up in the store; an HTTP server shows them.

A worker with a port of its own shows there what it counts and adds nothing here, and one that pushes does not add the
metrics that it pushes, so a sum over all that is scraped counts nothing twice. What a process that is killed has
counted in its last seconds is lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from perdure.core.events import Events
from perdure.errors import StoreError
from perdure.store.sql_store import SqlStore
from perdure.watch.board import Board, Key, together
from perdure.watch.metrics import BY_NAME, METRICS

EVERY_S = 5.0
LAST_S = 5.0  # for the last numbers of a process that stops
#: Counters and histograms; what each process shows of itself is its own.
SHARED = frozenset(
    metric.name
    for metric in METRICS
    if metric.of == "process" and metric.kind != "gauge" and metric.name != "perdure_scrape_errors_total"
)
_log = logging.getLogger("perdure.metrics")
T = TypeVar("T")


class ToItsEnd:
    """Runs one piece of work after the other, each to its end even if its caller is cancelled: the store may write all
    the same, and numbers that nobody noted as written would be added again."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The work's answer. Raises: what it raises."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        task = asyncio.create_task(work())
        self._task = task
        return await asyncio.shield(task)


class SharedCounters:
    """What the boards of this process count, added to what others have."""

    def __init__(
        self, boards: Sequence[Board], store: SqlStore, elsewhere: frozenset[str] = frozenset()
    ) -> None:
        """`elsewhere`: metrics that are shown in another way."""
        self.boards = boards
        self._names = SHARED - elsewhere
        self.store = store
        self._added: dict[Key, float] = {}
        self._adding = ToItsEnd()

    async def add(self) -> None:
        """Add what was counted since the last time; a new number is added even if it is 0. StoreError."""
        await self._adding.run(self._add)

    async def _add(self) -> None:
        counted = {key: value for key, value in together(self.boards).items() if key[0] in self._names}
        more = {key: value - self._added.get(key, 0.0) for key, value in counted.items()}
        new = {json.dumps(key): n for key, n in more.items() if n or key not in self._added}
        if new:
            await self.store.add_metrics(new)
        self._added = counted

    async def read(self) -> dict[Key, float]:
        """What all of them have counted, as far as this release knows it. StoreError."""
        found = {tuple(json.loads(name)): value for name, value in (await self.store.metrics()).items()}
        return {key: value for key, value in found.items() if _known(key)}

    async def run(self) -> None:
        """Add every few seconds until it is cancelled, and then once more."""
        told = False
        try:
            while True:
                try:
                    await self.add()
                    told = False
                except StoreError as error:  # the next time adds it
                    if not told:
                        _log.warning("what this process counts could not be added up: %s", error)
                    told = True
                await asyncio.sleep(EVERY_S)
        finally:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self.add()


async def share_worker(child: Board, events: Events, store: SqlStore, elsewhere: frozenset[str]) -> None:
    """Add up what a supervisor sees and what its child counts on a board that they share, until it is cancelled."""
    from perdure.watch.meter import Meter

    own = Board.private()
    meter = Meter(own, events)
    try:
        await SharedCounters((own, child), store, elsewhere).run()
    finally:
        meter.close()


def _known(key: Key) -> bool:
    """Whether it is a metric of this release: another one may have given it other labels."""
    metric = BY_NAME.get(key[0])
    return (
        metric is not None
        and key[0] in SHARED
        and len(key) - 1 == len(metric.labels) + (metric.kind == "histogram")
    )
