"""What only metrics ask of the store: numbers of the whole, and counts of programs that are gone at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

from perdure.core.frozen import frozen
from perdure.store.base import Query, Row, Steps
from perdure.store.reading import Reading
from perdure.store.stuck import BEAT_MS

#: Jobs that another service has (worker 0) are not heard of until it answers.
_HEARD = "SELECT min(coalesce(beat_ms, claimed_ms)) FROM job WHERE state = 'running' AND worker > 0"
_WORKERS = "SELECT count(*), min(silent_since_ms) FROM worker WHERE kind = 'worker' AND beat_ms > $1"
_TALLIES = "SELECT name, value FROM tally WHERE name IN ('degraded', 'repaired', 'chunks_lost')"
_ADD = (
    "INSERT INTO metric (name, value) VALUES ($1, $2) "
    "ON CONFLICT (name) DO UPDATE SET value = metric.value + excluded.value"
)
_HOSTS = "SELECT name, value FROM tally WHERE substr(name, 1, length(CAST($1 AS text))) = CAST($1 AS text)"


@frozen
class Pulse:
    """How the whole store is doing. `workers` were heard of lately; `heard_ms`: the running job that was heard of
    longest ago, None if none runs; `silent_since_ms`: since when a worker has stood still, None if all run."""

    now_ms: int
    workers: int
    heard_ms: int | None
    silent_since_ms: int | None
    degraded: int
    repaired: int
    chunks_lost: int


def traceparent_in(meta: bytes) -> str | None:
    """The `traceparent` in a document's meta."""
    if b"traceparent" not in meta:  # most have none, and need not be read for it
        return None
    found = json.loads(meta).get("traceparent")
    return found if isinstance(found, str) else None


class Metering(Reading):
    """Verbs of the store for metrics."""

    _write: Callable[[Callable[[], Steps[Any]]], Any]

    async def pulse(self) -> Pulse:
        """A few numbers that cost next to nothing, however large the store is."""

        def steps() -> Steps[Pulse]:
            now_ms = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            heard_ms = (yield Query(_HEARD))[0][0]
            workers, silent_since_ms = (yield Query(_WORKERS, (now_ms - BEAT_MS,)))[0]
            tallies: dict[str, int] = dict((yield Query(_TALLIES)))
            counted = (int(tallies.get(name, 0)) for name in ("degraded", "repaired", "chunks_lost"))
            return Pulse(now_ms, workers, heard_ms, silent_since_ms, *counted)

        return await self._read(steps)

    async def traceparent(self, org: str, document_id: str) -> str | None:
        """The trace that a document belongs to, if it came with one."""
        found = await self.document(org, document_id)
        return None if found is None else traceparent_in(found.meta)

    async def count_for(self, host: str, counts: Mapping[str, int]) -> dict[str, int]:
        """Add to what the short-lived programs of this host have counted so far; all of it."""
        begin = f"host {host.replace(' ', '_')} "

        def steps() -> Steps[list[Row]]:
            for name, amount in sorted(counts.items()):
                yield Query(self.sql.TALLY_ADD, (begin + name, amount))
            return (yield Query(_HOSTS, (begin,)))

        found: list[Row] = await self._write(steps)
        return {name.removeprefix(begin): int(value) for name, value in found}

    async def add_metrics(self, counted: Mapping[str, float]) -> None:
        """Add to what processes that nobody scrapes have counted so far."""

        def steps() -> Steps[None]:
            yield Query(_ADD, rows=sorted(counted.items()))

        await self._write(steps)

    async def metrics(self) -> dict[str, float]:
        """All that such processes have counted."""
        return dict(await self._rows("SELECT name, value FROM metric"))

    async def lock_host(self, host: str) -> bool:
        """Whether we alone may tell of this host's counts now, until `unlock_host`."""
        return await self.driver.lock("push", crc32(host.encode()) >> 1)

    async def unlock_host(self, host: str) -> None:
        await self.driver.unlock("push", crc32(host.encode()) >> 1)
