"""What is true of the whole store, read from it for a scrape: the same whichever process is asked.

Read at most every few seconds and for at most a few seconds, each part on its own: one that cannot be read is counted
and left out, and the scrape goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from perdure.store.sql_store import SqlStore
from perdure.store.stuck import escalated
from perdure.watch.board import Board, Key
from perdure.watch.metrics import (
    BREAKER_STATES,
    BY_NAME,
    COLLECTIONS,
    DEPENDENCY_STATES,
    JOB_STATES,
    LABEL_VALUES_MAX,
    METRICS,
    OTHER,
    STATES,
    label,
)
from perdure.watch.shared_counters import SharedCounters

FRESH_S = 3.0
PATIENCE_S = 5.0
_log = logging.getLogger("perdure.metrics")

PER_COLLECTION = [
    metric.name for metric in METRICS if metric.of == "process" and metric.labels == ("collection",)
]

#: Reads one part of the store and notes what it finds.
Part = Callable[["Overall"], Awaitable[None]]


class Overall:
    """The store's own numbers, kept for a few seconds; what goes wrong with them is counted on `board`."""

    def __init__(self, store: SqlStore, board: Board, shared: SharedCounters | None = None) -> None:
        self.store = store
        self.board = board
        self.shared = shared
        self.found: dict[Key, float] = {}
        self.counted: dict[Key, float] = {}  # by all processes that add theirs up
        self._lock = asyncio.Lock()
        self._read_s = -FRESH_S
        for part in (*PARTS, *(["workers"] if shared is not None else [])):
            board.start("perdure_scrape_errors_total", part)

    async def read(self) -> dict[Key, float]:
        """All of them, at most a few seconds old; those of a part that fails are missing."""
        async with self._lock:
            if time.monotonic() - self._read_s >= FRESH_S:
                self.found = {}
                for name, part in PARTS.items():
                    await self._try(name, part)
                self._read_s = time.monotonic()
            known, self.counted = dict(self.found), {}
            if self.shared is not None:
                await self._try("workers", _workers)
            return known | self.counted

    async def _try(self, name: str, part: Part) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await part(self)
        except Exception as error:  # whatever it was, the other numbers are wanted all the same
            self.board.add("perdure_scrape_errors_total", name)
            _log.warning("metrics of %s could not be read: %s", name, error or type(error).__name__)

    def start(self, name: str) -> None:
        """Let the values of its labels that are known begin at 0."""
        for labels in BY_NAME[name].known:
            self.put(name, *labels, value=0)

    def put(self, name: str, *labels: str, value: float) -> None:
        self.found[name, *map(label, labels)] = float(value)

    def add(self, name: str, *labels: str, value: float) -> None:
        """Several may be called the same."""
        key = (name, *map(label, labels))
        self.found[key] = self.found.get(key, 0.0) + value

    def most(self, name: str, *labels: str, value: float) -> None:
        """The largest of several that are called the same."""
        key = (name, *map(label, labels))
        self.found[key] = max(self.found.get(key, 0.0), float(value))

    def least(self, name: str, *labels: str, value: float) -> None:
        """The smallest of several that are called the same."""
        key = (name, *map(label, labels))
        self.found[key] = min(self.found.get(key, value), float(value))


async def _pulse(to: Overall) -> None:
    pulse = await to.store.pulse()
    heard_ms = pulse.now_ms if pulse.heard_ms is None else pulse.heard_ms
    to.put("perdure_heartbeat_age_seconds", value=max(0, pulse.now_ms - heard_ms) / 1000)
    silent_ms = pulse.now_ms if pulse.silent_since_ms is None else pulse.silent_since_ms
    to.put("perdure_loop_silent_seconds", value=max(0, pulse.now_ms - silent_ms) / 1000)
    to.put("perdure_workers", value=pulse.workers)
    to.put("perdure_degraded_total", value=pulse.degraded)
    to.put("perdure_repaired_total", value=pulse.repaired)
    to.put("perdure_chunk_deletions_unexpected_total", value=pulse.chunks_lost)


async def _counts(to: Overall) -> None:
    now_ms, queues, counts = await to.store.now_ms(), await to.store.queues(), await to.store.counts()
    to.start("perdure_documents")
    collections = _told_apart(collection for _, collection in counts.documents)
    for (_, collection), states in counts.documents.items():
        for state in STATES:
            to.add("perdure_documents", collections[collection], state, value=states.get(state, 0))
        for metric in PER_COLLECTION:  # what is counted of a collection of somebody's own begins at 0 as well
            to.board.start(metric, collections[collection])
    to.start("perdure_documents_open")
    for state, count in counts.live.items():
        to.put("perdure_documents_open", state, value=count)
    names = _told_apart(queue.name for queue in queues)
    for queue in queues:
        name = names[queue.name]
        waited_ms = 0 if queue.ready_since_ms is None else now_ms - queue.ready_since_ms
        to.most("perdure_queue_paused", name, value=queue.paused)
        to.most("perdure_queue_oldest_seconds", name, value=max(0, waited_ms) / 1000)
        for state in JOB_STATES:
            count = counts.queues.get(queue.name, {}).get(state, 0)
            to.add("perdure_queue_depth", name, state, value=count)


async def _dependencies(to: Overall) -> None:
    now_ms, known = await to.store.now_ms(), await to.store.dependencies()
    names = _told_apart(one.name for one in known)
    for one in known:
        name = names[one.name]
        down_s = 0.0 if one.since_ms is None else max(0, now_ms - one.since_ms) / 1000
        to.add("perdure_documents_held", name, value=one.held)
        to.most("perdure_dependency_held_seconds", name, value=down_s)
        answered = 1.0 if one.success_share is None and one.since_ms is None else one.success_share
        if answered is not None:  # or nobody knows: it is held, and nobody asks it
            to.least("perdure_dependency_success_share", name, value=answered)
        for state in DEPENDENCY_STATES:
            to.most("perdure_dependency_state", name, state, value=state == one.state)
        to.most("perdure_dependency_breaker_state", name, value=BREAKER_STATES.index(one.breaker))
        to.add("perdure_dependency_rate_per_second", name, value=one.rate_per_s)
        to.add("perdure_dependency_limit_per_second", name, value=one.limit_per_s or 0)
        to.add("perdure_dependency_requests_in_flight", name, value=one.in_flight)
        to.least("perdure_dependency_tokens", name, value=one.tokens)
        paused_s = max(0, (one.paused_until_ms or now_ms) - now_ms) / 1000
        to.most("perdure_dependency_paused_seconds", name, value=paused_s)


async def _outbox(to: Overall) -> None:
    now_ms, outbox = await to.store.now_ms(), await to.store.outbox_state()
    waited_ms = 0 if outbox.since_ms is None else now_ms - outbox.since_ms
    to.put("perdure_outbox_events", value=outbox.waiting)
    to.put("perdure_outbox_oldest_seconds", value=max(0, waited_ms) / 1000)


async def _feed(to: Overall) -> None:
    oldest = await to.store.driver.oldest_writer()
    to.put("perdure_feed_waiting_seconds", value=0.0 if oldest is None else max(0, oldest.since_ms) / 1000)


async def _retry_job(to: Overall) -> None:
    now_ms, told = await to.store.now_ms(), await to.store.retry_job()
    for name, found in (
        ("retry_job_stuck_documents", told.stuck),
        ("retry_job_failed_documents", told.failed),
    ):
        to.start(name)
        names = _told_apart(found)
        for collection, count in found.items():
            to.add(name, names[collection], value=count)
    to.start("perdure_follow_ups_dead")
    names = _told_apart(told.follow_ups)
    for job, count in told.follow_ups.items():
        to.add("perdure_follow_ups_dead", names[job], value=count)
    since_ms = now_ms if told.stuck_since_ms is None else told.stuck_since_ms
    to.put("perdure_escalation_tier", value=escalated(told, now_ms).tier)
    to.put("perdure_starved_documents", value=sum(told.starved.values()))
    to.put("perdure_stuck_oldest_seconds", value=max(0, now_ms - since_ms) / 1000)


async def _audit(to: Overall) -> None:
    """A leader looks every minute; until one has, nothing is said."""
    difference = (await to.store.audited()).difference
    if difference is not None:
        to.put("perdure_audit_difference", value=difference)


async def _workers(to: Overall) -> None:
    """Counters of the processes that add theirs up; ours first, so that none of them ever seems to go back."""
    if to.shared is not None:
        await to.shared.add()
        to.counted = await to.shared.read()


def _told_apart(names: Iterable[str], known: Iterable[str] = COLLECTIONS) -> dict[str, str]:
    """How each is called: those that are known and the first of the others by themselves, the rest `other`."""
    found = set(names)
    shown = [*(found & set(known)), *sorted(found - set(known))][:LABEL_VALUES_MAX]
    return defaultdict(lambda: OTHER, {name: name for name in shown})


PARTS: dict[str, Part] = {
    "pulse": _pulse,
    "counts": _counts,
    "dependencies": _dependencies,
    "outbox": _outbox,
    "feed": _feed,
    "retry_job": _retry_job,
    "audit": _audit,
}
